"""The affine zoo: one template, s_t = E_t ▶ s_(t-1) + f_t, and every row of Table 1 as an instance of it."""

from scannable.affine.lm import ZooConfig, ZooLM, ZooState
from scannable.model_file import register_model

register_model(ZooLM, ZooConfig)

__all__ = ["ZooConfig", "ZooLM", "ZooState"]
