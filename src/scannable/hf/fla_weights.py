"""GLA, DeltaNet and Gated DeltaNet in the folders that flash-linear-attention's models write: read into an `LM`.

Neither flash-linear-attention nor a GPU is needed. A setting that this library has no equal for is refused by name.
RWKV-7 is not read: its layers mix in the values of the first one, and its channel mixing carries a state, where an `LM`
has layers that stand alone and MLPs without memory.
"""

from pathlib import Path
from typing import Any

import torch

from scannable.hf.their_folder import Weights, load_folder
from scannable.models.layer_options import DeltaNetOptions, GatedDeltaNetOptions, GLAOptions, LayerOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.storage.model_file import ModelFileError

OUTSIDE = {
    "embedding.weight": "model.embeddings.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
SHARED = {
    "norm.weight": ("attn_norm.weight",),
    "mixer.out.weight": ("attn.o_proj.weight",),
    "mlp_norm.weight": ("mlp_norm.weight",),
    "mlp.into.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.out.weight": ("mlp.down_proj.weight",),
}
DELTA = {
    **SHARED,
    "mixer.query_key_value.weight": ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"),
    "mixer.convolution.weight": ("attn.q_conv1d.weight", "attn.k_conv1d.weight", "attn.v_conv1d.weight"),
    "mixer.strength.weight": ("attn.b_proj.weight",),
    "mixer.norm.weight": ("attn.o_norm.weight",),
}
INSIDE = {
    "gla": {
        **SHARED,
        "mixer.query_key_value_gate.weight": (
            *("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.g_proj.weight"),
        ),
        "mixer.decay.0.weight": ("attn.gk_proj.0.weight",),
        "mixer.decay.1.weight": ("attn.gk_proj.1.weight",),
        "mixer.decay.1.bias": ("attn.gk_proj.1.bias",),
        "mixer.norm.weight": ("attn.g_norm.weight",),
    },
    "delta_net": DELTA,
    "gated_deltanet": {
        **DELTA,
        "mixer.step_size.weight": ("attn.a_proj.weight",),
        "mixer.step_size_bias": ("attn.dt_bias",),
        "mixer.log_rate": ("attn.A_log",),
        "mixer.out_gate.weight": ("attn.g_proj.weight",),
    },
}
"""The names of a block's weights: ours, and those of theirs that lie in it one after the other."""

EVERYWHERE: dict[str, tuple[Any, ...]] = {"attn": (None,), "attnres_block_size": (None,), "hidden_act": ("swish",)}
SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "gla": {
        **EVERYWHERE,
        "feature_map": (None,),
        "use_short_conv": (False,),
        "use_output_gate": (True,),
        "clamp_min": (None,),
        "elementwise_affine": (True,),
    },
    "delta_net": {
        **EVERYWHERE,
        "use_gate": (False,),
        "use_short_conv": (True,),
        "use_beta": (True,),
        "qk_norm": ("l2",),
        "qk_activation": ("silu",),
    },
    "gated_deltanet": {
        **EVERYWHERE,
        "use_gate": (True,),
        "use_short_conv": (True,),
        "output_gate_activation": ("swish", "silu"),
    },
}
"""The values of their settings that a layer here has; the first is theirs by default."""


def load_fla(folder: str | Path) -> LM:
    """The GLAForCausalLM, DeltaNetForCausalLM or GatedDeltaNetForCausalLM that `save_pretrained` wrote into `folder`.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):  # it warns where there is no GPU
    ...     from fla.models import GLAConfig, GLAForCausalLM
    >>> from scannable.hf.fla_weights import load_fla
    >>> theirs = GLAConfig(vocab_size=50, hidden_size=32, num_heads=2, num_hidden_layers=3)
    >>> GLAForCausalLM(theirs).save_pretrained(folder / "gla")
    >>> [options.layer for options in load_fla(folder / "gla").config.layers]
    ['gla', 'gla', 'gla']
    """
    return load_folder(folder, _our_config, _our_weights)


def _our_config(theirs: dict[str, Any]) -> LMConfig:
    kind, heads, width, eps = _kind(theirs), theirs["num_heads"], theirs["hidden_size"], theirs.get("norm_eps", 1e-6)
    for name, known in SETTINGS[kind].items():
        _check(theirs, name, known)
    _check(theirs, "num_v_heads" if kind == "gated_deltanet" else "num_kv_heads", (None, heads))
    return LMConfig(
        vocab_size=theirs["vocab_size"],
        layers=(_layer(kind, theirs, width, heads, eps),) * theirs["num_hidden_layers"],
        width=width,
        heads=heads,
        activation="swiglu",
        mlp_width=_mlp_width(theirs, width),
        mlp_bias=False,
        tie_weights=theirs.get("tie_word_embeddings", False),
        eps=eps,
    )


def _kind(theirs: dict[str, Any]) -> str:
    kind = theirs["model_type"]
    if kind == "rwkv7":
        raise ValueError(
            "it holds an 'rwkv7' model, whose layers mix in the values of the first one and whose channel mixing "
            "carries a state; layers stand alone here, so it cannot be read. Run it with flash-linear-attention"
        )
    if kind not in tuple(INSIDE):
        raise ValueError(f"it holds a {kind!r} model; only {', '.join(INSIDE)} can be read")
    return kind


def _check(theirs: dict[str, Any], name: str, known: tuple[Any, ...]) -> None:
    value = theirs.get(name, known[0])
    if value not in known:
        raise ValueError(
            f"{name}={value!r} has no equal here, only {' or '.join(map(repr, known))}; run this model with "
            "flash-linear-attention"
        )


def _layer(kind: str, theirs: dict[str, Any], width: int, heads: int, eps: float) -> LayerOptions:
    if kind == "gated_deltanet":
        keys = theirs.get("head_dim", 256)
        values = round(keys * theirs.get("expand_v", 2.0))
    else:
        keys = round(width * theirs.get("expand_k", 0.5 if kind == "gla" else 1.0)) // heads
        values = round(width * theirs.get("expand_v", 1.0)) // heads
    if kind == "gla":
        return GLAOptions(key_size=keys, value_size=values, eps=eps)
    options = DeltaNetOptions if kind == "delta_net" else GatedDeltaNetOptions
    return options(
        key_size=keys,
        value_size=values,
        negative_eigenvalues=theirs.get("allow_neg_eigval", False),
        convolution=theirs.get("conv_size", 4),
        eps=eps,
    )


def _mlp_width(theirs: dict[str, Any], width: int) -> int:
    """As told; otherwise two thirds of the ratio, in whole blocks of 256."""
    told, ratio = theirs.get("intermediate_size"), theirs.get("hidden_ratio")
    return -(-int(width * (4 if ratio is None else ratio) * 2 / 3) // 256) * 256 if told is None else told


def _our_weights(theirs: dict[str, Any], weights: Weights) -> Weights:
    names, heads = INSIDE[theirs["model_type"]], theirs["num_heads"]
    # GLA has the norm under another name where a kernel does the gate as well.
    left = {name.replace(".g_norm_swish_gate.", ".g_norm."): weight for name, weight in weights.items()}
    ours = {name: left.pop(their) for name, their in OUTSIDE.items() if name != "head.weight" or their in left}
    for i in range(theirs["num_hidden_layers"]):
        for name, parts in names.items():
            weight = torch.cat([left.pop(f"model.layers.{i}.{part}") for part in parts])
            # One gain for all heads there, one for each here.
            ours[f"blocks.{i}.{name}"] = weight.expand(heads, -1) if name == "mixer.norm.weight" else weight
    if left:
        raise ModelFileError(f"a weight {min(left)!r} is not known in a {theirs['model_type']} model")
    return ours
