"""What every model shares: the same arguments, checked in the same way, before anything is written."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.baselines import (
    GPT2Baseline,
    GPT2BaselineConfig,
    MambaBaseline,
    MambaBaselineConfig,
)
from scannable.models.base import CausalModel
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig

# transformers imports much, and some of it warns.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shapes_unchecked")]

SIZES: dict[str, Any] = {"vocab_size": 40, "width": 16}


class MeanAgg(nn.Module):
    def forward(self, older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        return torch.tanh(older - 2 * newer)


class SumInf(nn.Module):
    def forward(self, prefix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return prefix + x.cumsum(-2)


MODELS: dict[str, Callable[[], CausalModel[Any]]] = {
    "psm": lambda: sc.TransformerPSM(sc.TransformerPSMConfig(**SIZES, chunk_length=4, heads=2)),
    "own parts": lambda: sc.PrefixScannableModel(nn.Embedding(40, 16), MeanAgg(), SumInf(), 0.0, 4),
    "gla": lambda: sc.LM(sc.LMConfig(**SIZES, layers=("gla",) * 2, heads=2)),
    "log_linear": lambda: sc.LM(sc.LMConfig(**SIZES, layers=("log_linear",), heads=2)),
    "hybrid": lambda: sc.LM(sc.LMConfig(**SIZES, layers=("lstm", "mamba", "log_linear"), heads=2, positions=50)),
    "gpt2": lambda: GPT2Baseline(GPT2BaselineConfig(**SIZES, heads=2, layers=1, context=50)),
    "window": lambda: LM(LMConfig(**SIZES, layers=(AttentionOptions(window=5),), heads=2)),
    "mamba": lambda: MambaBaseline(MambaBaselineConfig(**SIZES, layers=1, state_size=4)),
}
each = pytest.mark.parametrize("name", MODELS)


def model_of(name: str) -> CausalModel[Any]:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def tokens_of(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(seed))


@each
@pytest.mark.parametrize(("kept", "expected"), [(None, 9), (0, 0), (1, 1), (8, 8), (9, 9), (10, 9), (99, 9)])
def test_the_last_logits_are_kept_or_all_if_there_are_fewer(name: str, kept: int | None, expected: int) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    every = model(tokens)
    assert every.shape[:2] == (2, 9)
    found = model(tokens, logits_to_keep=kept)
    assert found.shape[:2] == (2, expected)
    torch.testing.assert_close(found, every[:, 9 - expected :])
    _, state = model.prefill(tokens_of(2, 3, seed=2), model.initial_state(2))
    going_on, after = model.prefill(tokens, state.fork())
    found, same = model.prefill(tokens, state, logits_to_keep=kept)
    torch.testing.assert_close(found, going_on[:, 9 - expected :])
    assert same.position == after.position == 12
    torch.testing.assert_close(model.step(tokens[:, 0], same)[0], model.step(tokens[:, 0], after)[0])


@each
@pytest.mark.parametrize("kept", [-1, True, 1.0, "1"])
def test_other_logits_to_keep_are_refused_and_the_state_stays(name: str, kept: Any) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    state = model.initial_state(2)
    message = f"logits_to_keep={kept!r} must be a whole number of at least 0; None keeps all"
    with pytest.raises(ValueError, match=message):
        model(tokens, logits_to_keep=kept)
    with pytest.raises(ValueError, match=message):
        model.prefill(tokens, state, logits_to_keep=kept)
    torch.testing.assert_close(model.prefill(tokens, state)[0], model(tokens), rtol=1e-4, atol=1e-4)


@each
def test_tokens_of_any_integer_dtype_give_the_same(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    expected = model(tokens)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64):
        assert torch.equal(model(tokens.to(dtype)), expected)
        logits, state = model.prefill(tokens[:, :8].to(dtype), model.initial_state(2))
        last, _ = model.step(tokens[:, 8].to(dtype), state)
        torch.testing.assert_close(torch.cat((logits, last[:, None]), 1), expected, rtol=1e-4, atol=1e-4)


WRONG_TOKENS = [
    (torch.zeros(2, 9), r"tokens have the shape \(2, 9\) and dtype torch.float32; expected integers of shape"),
    (torch.zeros(2, 9, dtype=torch.complex64), "dtype torch.complex64; expected integers"),
    (torch.zeros(2, 9, dtype=torch.bool), "dtype torch.bool; expected integers"),
    (torch.zeros(9, dtype=torch.int64), r"tokens have the shape \(9,\) .* of shape \(batch, length\)"),
    (torch.full((2, 9), -1), "token -1 is outside the vocabulary of 40; is this the tokenizer"),
    (torch.full((2, 9), 40), "token 40 is outside the vocabulary of 40"),
]


@each
def test_wrong_tokens_are_refused_and_the_state_stays(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    _, state = model.prefill(tokens[:, :5], model.initial_state(2))
    for wrong, message in WRONG_TOKENS:
        for call in (model, model.hidden, lambda x: model.prefill(x, state)):
            with pytest.raises(ValueError, match=message):
                call(wrong)
        if wrong.ndim == 2:
            with pytest.raises(ValueError, match=message.replace(r"\(2, 9\)", r"\(2,\)")):
                model.step(wrong[:, 0], state)
    with pytest.raises(TypeError, match=r"tokens are a list; .* \(batch, length\): torch.tensor\(tokens\) makes one"):
        model([[1, 2]])
    with pytest.raises(TypeError, match=r"tokens are a int; expected a tensor of integers of shape \(batch,\)"):
        model.step(3, state)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(model.prefill(tokens[:, 5:], state)[0], model(tokens)[:, 5:], rtol=1e-4, atol=1e-4)


@each
def test_a_wrong_state_is_refused_and_stays(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    _, state = model.prefill(tokens[:, :5], model.initial_state(2))
    kind = type(state).__name__
    for wrong in (None, {}, model_of("gpt2" if name == "gla" else "gla").initial_state(2)):
        if type(wrong) is type(state):
            continue
        with pytest.raises(TypeError, match=rf"from a {kind}, .* not from .*; initial_state\(batch_size\) starts one"):
            model.step(tokens[:, 0], wrong)
    for rows in (1, 3):
        with pytest.raises(
            ValueError, match=rf"{rows} rows of tokens for a state of 2|{rows} rows for a state of 2|another|expected"
        ):
            model.step(tokens_of(rows), state)
    with pytest.raises(ValueError, match=r"batch_size=0 must be a whole number of at least 1"):
        model.initial_state(0)
    for wrong in (True, 2.0, "2"):
        with pytest.raises(ValueError, match="batch_size="):
            model.initial_state(wrong)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(model.prefill(tokens[:, 5:], state)[0], model(tokens)[:, 5:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["psm", "gpt2"])
def test_a_state_that_was_used_up_is_refused(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    state = model.initial_state(2)
    model.prefill(tokens, state)
    for call in (lambda: model.prefill(tokens, state), lambda: model.step(tokens[:, 0], state), state.fork):
        with pytest.raises(
            ValueError, match=r"position 0, but .* gone on to (position )?9; use the state .* fork\(\) before"
        ):
            call()


@each
def test_no_tokens_and_no_rows(name: str) -> None:
    model = model_of(name)
    width = model(tokens_of(1, 1)).shape[-1]
    assert model(tokens_of(0, 5)).shape == (0, 5, width) and model(tokens_of(2, 0)).shape == (2, 0, width)
    state = model.prefill(tokens_of(2, 5), model.initial_state(2))[1]
    logits, after = model.prefill(tokens_of(2, 0), state)
    assert logits.shape == (2, 0, width) and after.position == 5
    assert model.loss(tokens_of(2, 0), tokens_of(2, 0)) == 0


@each
def test_the_loss_refuses_targets_that_do_not_fit(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    with pytest.raises(ValueError, match=r"outputs for \(2, 9\) positions but targets for \(2, 8\)"):
        model.loss(tokens, tokens[:, 1:])
    with pytest.raises(ValueError, match=r"targets have the dtype torch\.float32; expected integers, -100 for none"):
        model.loss(tokens, tokens.float())
    with pytest.raises(ValueError, match="slice_length=0 must be a whole number of at least 1"):
        model.loss(tokens, tokens, slice_length=0)


@each
def test_the_formula_for_bytes_refuses_what_is_no_position(name: str) -> None:
    model = model_of(name)
    state = model.prefill(tokens_of(3, 21), model.initial_state(3))[1]
    assert model.state_nbytes(21, 3) == state.nbytes
    for wrong in (-1, 1.5):
        with pytest.raises(ValueError, match=rf"position={wrong} must be a whole number of at least 0"):
            model.state_nbytes(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="batch_size=0 must be"):
        model.state_nbytes(1, 0)


@each
def test_streaming_keeps_no_graph(name: str) -> None:
    model = model_of(name)
    logits, state = model.prefill(tokens_of(1, 5), model.initial_state(1))
    assert not logits.requires_grad and not model.step(tokens_of(1), state)[0].requires_grad
    assert model(tokens_of(1, 5)).requires_grad


def test_one_class_says_what_models_share() -> None:
    shared = {"loss", "initial_state", "state_nbytes"}
    for name in MODELS:
        kind = type(model_of(name))
        assert issubclass(kind, CausalModel)
        again = [part for part in shared for base in kind.__mro__ if part in vars(base) and base is not CausalModel]
        assert again == []


@pytest.mark.parametrize(
    "config",
    [
        "scannable.models.lm_config.LMConfig(40, ('mamba',))",
        "scannable.models.transformer_psm_config.TransformerPSMConfig(40)",
    ],
)
def test_a_configuration_is_made_and_checked_without_torch(config: str) -> None:
    module = config.partition("(")[0].rpartition(".")[0]
    code = f"import sys; sys.modules['torch'] = None; import {module}; print({config}.vocab_size)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "40", done.stderr


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (sc.LMConfig, {"tie_weights": 1}, "tie_weights=1 must be True or False"),
        (sc.LMConfig, {"checkpoint": None}, "checkpoint=None must be True or False"),
        (sc.LMConfig, {"mlp": 1}, "mlp=1 must be True or False, or None"),
        (sc.LMConfig, {"eps": 0.0}, "eps=0.0 must be above 0"),
        (sc.LMConfig, {"eps": float("nan")}, "eps=nan must be above 0"),
        (sc.LMConfig, {"layers": None}, "layers=None must be a tuple of at least one layer"),
        (sc.LMConfig, {"layers": (["gla"],)}, r"layers\[0\]=\['gla'\] is none of"),
        (sc.LMConfig, {"sinusoids": 1}, "sinusoids=1 must be True or False"),
        (sc.LMConfig, {"dropout": True}, r"dropout=True must lie in \[0, 1\)"),
        (sc.LMConfig, {"heads": None}, "heads=None must be a whole number of at least 1"),
        (sc.TransformerPSMConfig, {"state_noise": float("inf")}, "state_noise=inf must be 0 or above"),
        (sc.TransformerPSMConfig, {"agg_heads": 0}, "agg_heads=0 must be a whole number"),
        (sc.TransformerPSMConfig, {"unit_states": "yes"}, "unit_states='yes' must be True or False"),
    ],
)
def test_a_wrong_configuration_is_named(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(40, **options)
