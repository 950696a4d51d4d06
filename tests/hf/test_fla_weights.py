"""Weights of flash-linear-attention make the same model here."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import scannable as sc
from scannable.hf.fla_weights import INSIDE, OUTSIDE, load_fla

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fla.models

    from fla_on_cpu import replace_kernels

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gla": ("GLA", {}),
    "gla, other sizes, unfused, tied": (
        "GLA",
        {
            "expand_k": 0.75,
            "expand_v": 1.5,
            "intermediate_size": 40,
            "norm_eps": 1e-3,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
    ),
    "deltanet": ("DeltaNet", {}),
    "deltanet, other sizes, negative eigenvalues": (
        "DeltaNet",
        {"expand_k": 0.5, "expand_v": 2.0, "allow_neg_eigval": True, "conv_size": 3, "hidden_ratio": 20},
    ),
    "gated deltanet": ("GatedDeltaNet", {"head_dim": 9}),
    "gated deltanet, other sizes, negative eigenvalues": (
        "GatedDeltaNet",
        # Heads that do not divide the width, as in the published models.
        {
            "num_heads": 5,
            "head_dim": 4,
            "expand_v": 1.5,
            "allow_neg_eigval": True,
            "conv_size": 2,
            "norm_eps": 1e-3,
            "output_gate_activation": "silu",
            "tie_word_embeddings": True,
        },
    ),
}


def theirs(name: str, folder: Path) -> Any:
    """A model of flash-linear-attention in float64, away from its start, saved into `folder`."""
    torch.manual_seed(0)
    kind, changes = MODELS[name]
    config = getattr(fla.models, f"{kind}Config")(**SIZES | changes)
    model = getattr(fla.models, f"{kind}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def tokens_of(*shape: int) -> Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(1))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_fla(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernels(monkeypatch)
    model, ours = theirs(name, tmp_path), load_fla(tmp_path)
    tokens = tokens_of(2, 70)
    expected, found = model(tokens, use_cache=False).logits, ours(tokens)
    # Logits that are all alike would say little.
    assert float(expected.std()) > 0.3
    assert_close(found, expected)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    gradients: dict[str, Tensor] = {
        parameter.replace("g_norm_swish_gate", "g_norm"): value.grad for parameter, value in model.named_parameters()
    }
    for parameter, value in ours.named_parameters():
        assert value.grad is not None
        block = parameter.split(".", 2)
        if block[0] == "blocks":
            parts = [gradients[f"model.layers.{block[1]}.{part}"] for part in INSIDE[model.config.model_type][block[2]]]
            # All heads share one gain there.
            gradient = value.grad.sum(0) if block[2] == "mixer.norm.weight" else value.grad
            assert_close(gradient, torch.cat(parts))
        else:
            assert_close(value.grad, gradients[OUTSIDE[parameter]])


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_steps_give_the_logits_of_fla(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernels(monkeypatch)
    model, ours = theirs(name, tmp_path), load_fla(tmp_path)
    tokens = tokens_of(2, 40)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    logits, state = ours.prefill(tokens[:, :29], ours.initial_state(2))
    assert_close(logits, expected[:, :29])
    for position in range(29, 40):
        logits, state = ours.step(tokens[:, position], state)
        assert_close(logits, expected[:, position])


REFUSED = [
    ("gla", {"model_type": "rwkv7"}, "an 'rwkv7' model, whose layers mix in the values of the first one.*Run it with"),
    ("gla", {"model_type": "mamba"}, "a 'mamba' model; only gla, delta_net, gated_deltanet can be read"),
    ("gla", {"model_type": ["gla"]}, r"a \['gla'\] model; only gla"),
    (
        "gla",
        {"attn": {"layers": [1], "num_heads": 2}},
        r"attn=\{'layers': \[1\], 'num_heads': 2\} has no equal.*only None",
    ),
    ("gla", {"attnres_block_size": 2}, "attnres_block_size=2 has no equal here, only None; run this model with flash"),
    ("gla", {"hidden_act": "powlu"}, "hidden_act='powlu' has no equal here, only 'swish'"),
    ("gla", {"feature_map": "relu"}, "feature_map='relu' has no equal here, only None"),
    ("gla", {"use_short_conv": True}, "use_short_conv=True has no equal here, only False"),
    ("gla", {"use_output_gate": False}, "use_output_gate=False has no equal here, only True"),
    ("gla", {"clamp_min": -1.0}, r"clamp_min=-1\.0 has no equal here, only None"),
    ("gla", {"elementwise_affine": False}, "elementwise_affine=False has no equal here, only True"),
    ("gla", {"num_kv_heads": 1}, "num_kv_heads=1 has no equal here, only None or 2"),
    ("deltanet", {"use_gate": True}, "use_gate=True has no equal here, only False"),
    ("deltanet", {"use_short_conv": False}, "use_short_conv=False has no equal here, only True"),
    ("deltanet", {"use_beta": False}, "use_beta=False has no equal here, only True"),
    ("deltanet", {"qk_norm": "sum"}, "qk_norm='sum' has no equal here, only 'l2'"),
    ("deltanet", {"qk_activation": "elu"}, "qk_activation='elu' has no equal here, only 'silu'"),
    ("gated deltanet", {"use_gate": False}, "use_gate=False has no equal here, only True"),
    ("gated deltanet", {"use_short_conv": False}, "use_short_conv=False has no equal here, only True"),
    ("gated deltanet", {"num_v_heads": 4}, "num_v_heads=4 has no equal here, only None or 2"),
    (
        "gated deltanet",
        {"output_gate_activation": "sigmoid"},
        "output_gate_activation='sigmoid' has no equal here, only 'swish' or 'silu'",
    ),
    ("gla", {"num_heads": 0}, r"config\.json: .*zero"),
    ("gla", {"norm_eps": 0}, r"config\.json: eps=0.* must be above 0"),
    ("gla", {"expand_k": 1.0}, "the configuration and the weights do not fit"),
    ("gla", {"num_hidden_layers": 3}, r"the weights lack something: KeyError.*layers\.2\."),
    ("gla", {"num_hidden_layers": 1}, r"a weight 'model\.layers\.1\..* is not known in a gla model"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_what_has_no_equal_here_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(sc.ModelFileError, match=message):
        load_fla(tmp_path)


SHARED = (
    "attn", "attnres_block_size", "hidden_act", "norm_eps", "hidden_ratio", "intermediate_size", "tie_word_embeddings",
)  # fmt: skip
DELTA = ("use_gate", "use_short_conv", "allow_neg_eigval", "conv_size", "expand_v")
LEFT_OUT = {
    "gla": (
        *(*SHARED, "feature_map", "use_short_conv", "use_output_gate", "clamp_min", "elementwise_affine"),
        *("num_kv_heads", "expand_k", "expand_v"),
    ),
    "deltanet": (*SHARED, *DELTA, "use_beta", "qk_norm", "qk_activation", "expand_k"),
    "gated deltanet": (*SHARED, *DELTA, "output_gate_activation", "num_v_heads"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_configuration_leaves_out_is_what_fla_takes_for_it(name: str, tmp_path: Path) -> None:
    theirs(name, tmp_path)
    whole, path = load_fla(tmp_path).config, tmp_path / "config.json"
    written = json.loads(path.read_text())
    for left_out in LEFT_OUT[name]:
        path.write_text(json.dumps({field: value for field, value in written.items() if field != left_out}))
        assert left_out in written
        assert load_fla(tmp_path).config == whole, left_out


def test_a_model_that_was_read_trains_and_is_saved_as_any_other(tmp_path: Path) -> None:
    theirs("gla", tmp_path / "theirs")
    model, tokens = load_fla(tmp_path / "theirs").float(), tokens_of(2, 30)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.01), model(tokens)
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    # In place: the gains of the heads must not lie over each other.
    optimizer.step()
    assert not torch.equal(model(tokens), before)
    sc.save_model(model, tmp_path / "ours")
    assert torch.equal(sc.load_model(tmp_path / "ours")(tokens), model(tokens))
