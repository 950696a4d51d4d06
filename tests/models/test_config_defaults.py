"""What a configuration is, where nothing is said: a saved name and a recipe rely on it."""

from dataclasses import asdict

import scannable as sc
from scannable.models.layer_options import PSMOptions

PSM = {
    "chunk_length": 64, "agg_layers": 2, "inf_layers": 2, "agg_heads": None, "dropout": 0.0, "compress": "right_half",
    "agg_causal": False, "sinusoids": False, "literal_identity": False, "checkpoint": False, "state_noise": 0.0,
    "unit_states": False, "positions": "learned", "norm": "layer", "mlp": "gelu", "qk_norm": False, "convolution": 0,
    "prefix": "carried", "recent": 0,
}  # fmt: skip


def test_transformer_psm() -> None:
    sizes = {"vocab_size": 9, "width": 256, "heads": 4, "out_size": None, "tie_weights": False}
    assert asdict(sc.TransformerPSMConfig(9)) == PSM | sizes


def test_a_layer_of_it_has_one_layer_in_agg_and_in_inf() -> None:
    one = {"agg_layers": 1, "inf_layers": 1, "heads": None, "with_mlp": None}
    assert asdict(PSMOptions()) == PSM | one


def test_a_stack_of_layers() -> None:
    assert asdict(sc.LMConfig(9, ("gla",))) == {
        "vocab_size": 9, "layers": ("gla",), "width": 256, "heads": 4, "mlp": None, "activation": "gelu",
        "mlp_width": None, "mlp_bias": True, "norm": "rms", "positions": 0, "sinusoids": False, "out_size": None,
        "tie_weights": False, "dropout": 0.0, "eps": 1e-5, "init_std": None, "checkpoint": False,
    }  # fmt: skip
