"""Mamba and Mamba-2 in the folders that `transformers` writes: read into an `LM`, and written back.

Only JSON and safetensors are read and written; `transformers` itself is not needed.
"""

import json
import re
from math import inf, isfinite
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from scannable.hf.their_folder import Weights, load_folder
from scannable.models.layer_options import LayerOptions, Mamba2Options, MambaOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.storage.files import write_whole
from scannable.storage.model_file import ModelFileError

OUTSIDE = {
    "backbone.embeddings.weight": "embedding.weight",
    "backbone.norm_f.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
SHARED = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.into.weight",
    "mixer.in_proj.bias": "mixer.into.bias",
    "mixer.conv1d.weight": "mixer.convolution.weight",
    "mixer.conv1d.bias": "mixer.convolution.bias",
    "mixer.out_proj.weight": "mixer.out.weight",
    "mixer.out_proj.bias": "mixer.out.bias",
}
INSIDE = {
    "mamba": {
        **SHARED,
        "mixer.x_proj.weight": "mixer.space.selection.weight",
        "mixer.dt_proj.weight": "mixer.space.step_size.weight",
        "mixer.dt_proj.bias": "mixer.space.step_size_bias",
        "mixer.A_log": "mixer.space.log_rate",
        "mixer.D": "mixer.space.skip",
    },
    "mamba2": {
        **SHARED,
        "mixer.dt_bias": "mixer.step_size_bias",
        "mixer.A_log": "mixer.log_rate",
        "mixer.D": "mixer.skip",
        "mixer.norm.weight": "mixer.norm.weight",
    },
}
"""The names of a block's weights: theirs, and ours."""


def load_mamba(folder: str | Path) -> LM:
    """The MambaForCausalLM or Mamba2ForCausalLM that `save_pretrained` wrote into `folder`, as an `LM`.

    >>> from scannable.hf.mamba_weights import load_mamba, save_mamba
    >>> theirs = sc.LMConfig(vocab_size=50, width=16, layers=("mamba", "mamba"), tie_weights=True)
    >>> save_mamba(sc.LM(theirs), folder / "mamba")
    >>> [options.layer for options in load_mamba(folder / "mamba").config.layers]
    ['mamba', 'mamba']
    """
    return load_folder(folder, _our_config, _our_weights)


def save_mamba(model: LM, folder: str | Path) -> None:
    """Write an `LM` of "mamba" or of "mamba2" layers as a folder that `from_pretrained` reads.

    >>> from scannable.hf.mamba_weights import save_mamba
    >>> theirs = sc.LMConfig(vocab_size=50, width=16, layers=("mamba", "mamba"), tie_weights=True)
    >>> save_mamba(sc.LM(theirs), folder / "written")
    >>> sorted(path.name for path in (folder / "written").iterdir())
    ['config.json', 'model.safetensors']
    """
    _check_has_a_place(model)
    kind = model.config.options()[0].layer
    folder = Path(folder)
    names = {ours: theirs for theirs, ours in INSIDE[kind].items()}
    outside = {ours: theirs for theirs, ours in OUTSIDE.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        theirs = f"backbone.layers.{block[1]}.{names[block[2]]}" if block else outside[name]
        tensors[theirs] = tensor.detach().cpu().contiguous()
    write_whole(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    write_whole(folder / "config.json", json.dumps(_their_config(model), indent=2).encode() + b"\n")


def _check_has_a_place(model: LM) -> None:
    """Refuse what no model of transformers is."""
    config = model.config
    first, *others = options = config.options()
    for one in options:
        if one.layer not in INSIDE:
            raise ValueError(f"a {one.layer!r} layer has no place in transformers; only {' and '.join(INSIDE)} have")
    if any(one != first for one in others):
        raise ValueError("transformers' Mamba has the same layer in every block, this model has different ones")
    blocks: Any = model.blocks
    if any(block.mlp is not None for block in blocks):
        raise ValueError("transformers' Mamba has no MLP beside the mixer, this model has")
    if config.norm != "rms":
        raise ValueError(f"transformers' Mamba has RMS norms, this model norm={config.norm!r}")
    if config.positions:
        raise ValueError(f"transformers' Mamba has no learned positions, this model {config.positions}")
    if isinstance(first, Mamba2Options) and first.eps != config.eps:
        raise ValueError(f"transformers has one eps for all norms, this model {config.eps} and {first.eps}")
    if config.out_size not in (None, config.vocab_size):
        raise ValueError(f"a causal language model has an output for each token, this model {config.out_size}")


def _our_weights(theirs: dict[str, Any], weights: Weights) -> Weights:
    return {_ours(name, theirs["model_type"]): tensor for name, tensor in weights.items()}


def _ours(name: str, kind: str) -> str:
    block = re.fullmatch(r"backbone\.layers\.(\d+)\.(.*)", name)
    known = OUTSIDE.get(name) if block is None else INSIDE[kind].get(block[2])
    if known is None:
        raise ModelFileError(f"a weight {name!r} is not known in a {kind} model")
    return known if block is None else f"blocks.{block[1]}.{known}"


def _our_config(theirs: dict[str, Any]) -> LMConfig:
    kind = theirs["model_type"]
    if kind not in tuple(INSIDE):
        raise ValueError(f"it holds a {kind!r} model; only {' and '.join(INSIDE)} can be read")
    if theirs.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelFileError(f"hidden_act={theirs['hidden_act']!r} is not supported; only silu is")
    width, expand, eps = theirs["hidden_size"], theirs.get("expand", 2), theirs.get("layer_norm_epsilon", 1e-5)
    shared: dict[str, Any] = {
        "state_size": theirs["state_size"],
        "expand": expand,
        "convolution": theirs.get("conv_kernel", 4),
        "convolution_bias": theirs.get("use_conv_bias", True),
        "bias": theirs.get("use_bias", False),
    }
    layer: LayerOptions
    heads = 1
    if kind == "mamba":
        rank = theirs.get("time_step_rank", "auto")
        layer = MambaOptions(**shared, step_rank=-(-width // 16) if rank == "auto" else rank)
        inner = theirs.get("intermediate_size", expand * width)
    else:
        heads = theirs["num_heads"]
        low, high = (_number(limit) for limit in theirs.get("time_step_limit", (0.0, inf)))
        limits = (low, high if isfinite(high) else None)
        layer = Mamba2Options(**shared, groups=theirs.get("n_groups", 8), eps=eps, step_size_limits=limits)
        inner = heads * theirs["head_dim"]
    if inner != expand * width:
        raise ModelFileError(f"an inner width of {inner} is not expand={expand} times {width}; that is not supported")
    return LMConfig(
        vocab_size=theirs["vocab_size"],
        layers=(layer,) * theirs["num_hidden_layers"],
        width=width,
        heads=heads,
        tie_weights=theirs.get("tie_word_embeddings", kind == "mamba"),
        eps=eps,
    )


def _their_config(model: LM) -> dict[str, Any]:
    config = model.config
    kind = config.options()[0].layer
    mixer: Any = model.blocks[0].mixer
    theirs: dict[str, Any] = {
        "architectures": ["MambaForCausalLM" if kind == "mamba" else "Mamba2ForCausalLM"],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.layers),
        "layer_norm_epsilon": config.eps,
        "tie_word_embeddings": config.tie_weights,
        "state_size": mixer.state_size,
        "expand": mixer.inner // config.width,
        "conv_kernel": mixer.convolution.length,
        "use_conv_bias": mixer.convolution.bias is not None,
        "use_bias": mixer.into.bias is not None,
        "hidden_act": "silu",
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }
    if kind == "mamba":
        return theirs | {"time_step_rank": mixer.space.sizes[0], "intermediate_size": mixer.inner}
    return theirs | {
        "num_heads": mixer.heads,
        "head_dim": mixer.inner // mixer.heads,
        "n_groups": mixer.groups,
        "time_step_limit": [{"__float__": "Infinity"} if x is None else x for x in mixer.limits],
    }


def _number(value: Any) -> float:
    """A number as transformers writes it: JSON has none for infinity."""
    return float(value["__float__"] if isinstance(value, dict) else value)
