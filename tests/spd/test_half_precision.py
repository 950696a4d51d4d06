"""In half precision no correct model is refused, and no broken one passes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.layers.state import TensorState
from scannable.models.lm_state import LMState
from scannable.spd.expected import SLACK, TOLERANCE, Expected, scale_of
from scannable.spd.report import Difference

ROWS = list(sc.zoo.LAYERS)


def tokens_of(seed: int, n: int = 70) -> Tensor:
    return torch.randint(40, (2, n), generator=torch.Generator().manual_seed(seed))


def model_of(row: str, depth: int, seed: int = 0, kind: type[sc.LM] = sc.LM) -> sc.LM:
    torch.manual_seed(seed)
    return kind(sc.LMConfig(vocab_size=40, layers=(row,) * depth, width=16, heads=2))


def psm_of(depth: int, seed: int = 0, kind: type[sc.TransformerPSM] = sc.TransformerPSM) -> sc.TransformerPSM:
    torch.manual_seed(seed)
    return kind(sc.TransformerPSMConfig(40, 16, chunk_length=4, heads=2, agg_layers=depth, inf_layers=depth))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("row", [*ROWS, "psm"])
def test_a_correct_model_passes(row: str, depth: int) -> None:
    for seed, dtype in ((0, torch.bfloat16), (1, torch.bfloat16), (2, torch.float16)):
        model = psm_of(depth, seed) if row == "psm" else model_of(row, depth, seed)
        sc.verify_duality(model, tokens_of(seed, 50), dtype=dtype, splits=1).raise_if_failed()


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("row", ["deltanet", "psm"])
def test_a_correct_model_passes_on_a_few_tokens(row: str, n: int) -> None:
    for seed in range(5):
        model = psm_of(4, seed) if row == "psm" else model_of(row, 4, seed)
        sc.verify_duality(model, tokens_of(seed, n)[:1], dtype=torch.bfloat16).raise_if_failed()


# Each of these is broken on purpose.


class StateOfTheTokenBefore(sc.LM):
    """Every step goes on from the state one token too early."""

    def _consume(self, tokens: Tensor, state: LMState, lengths: Any) -> Any:
        hidden, after = super()._consume(tokens, state, lengths)
        late = tokens.shape[1] == 1 and state.position > 0
        return hidden, _in_place_of(state, after) if late else after


class DroppedToken(sc.LM):
    """Streaming forgets token 20."""

    def _consume(self, tokens: Tensor, state: LMState, lengths: Any) -> Any:
        hidden, after = super()._consume(tokens, state, lengths)
        return hidden, _in_place_of(state, after) if state.position == 20 else after


class LeakedFuture(sc.LM):
    """In parallel every output holds something of the next token."""

    def hidden(self, tokens: Tensor, **options: Any) -> Tensor:
        hidden = super().hidden(tokens, **options)
        return hidden + 0.1 * hidden.roll(-1, 1)


class StateOfAnotherRow(sc.LM):
    """After token 30 both rows change places."""

    def _consume(self, tokens: Tensor, state: LMState, lengths: Any) -> Any:
        hidden, after = super()._consume(tokens, state, lengths)
        if state.position == 30:
            after = after.select([1, 0])
        return hidden, after


def _in_place_of(old: LMState, new: LMState) -> LMState:
    """The old state, which says that it is the new one."""
    layers = (TensorState(new.positions, layer.parts) for layer in old.layers if isinstance(layer, TensorState))
    return LMState(new.positions, tuple(layers))


BROKEN = [StateOfTheTokenBefore, DroppedToken, LeakedFuture, StateOfAnotherRow]


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize(
    ("row", "depth"),
    [
        ("deltanet", 1),
        ("mamba", 1),
        *(pytest.param(row, 4, marks=pytest.mark.slow) for row in ("deltanet", "gla", "s4")),
    ],
)
def test_a_broken_model_is_caught(row: str, kind: type[sc.LM], depth: int) -> None:
    report = sc.verify_duality(model_of(row, depth, kind=kind), tokens_of(0), dtype=torch.bfloat16, splits=1)
    assert not report.passed


class UnforkedBuffers(sc.TransformerPSM):
    """A fork that shares the chunk in progress with its stream."""

    def _empty(self, batch_size: int) -> Any:
        state = super()._empty(batch_size)
        return _Unforked(state.positions, state.scans, state.buffers)

    def _consume(self, tokens: Tensor, state: Any, lengths: Any) -> Any:
        hidden, after = super()._consume(tokens, state, lengths)
        return hidden, _Unforked(after.positions, after.scans, after.buffers)


class _Unforked(sc.PSMState):
    def fork(self) -> Any:
        buffers, whole = self.buffers, super().fork()
        assert whole.buffers.cache is not None and buffers.cache is not None
        whole.buffers.cache.keys, whole.buffers.cache.values = buffers.cache.keys, buffers.cache.values
        return _Unforked(whole.positions, whole.scans, whole.buffers)


class DroppedChunk(sc.TransformerPSM):
    """The fifth chunk is never pushed when streaming."""

    def _consume(self, tokens: Tensor, state: sc.PSMState, lengths: Any) -> Any:
        hidden, after = super()._consume(tokens, state, lengths)
        if after.position // 4 == 5 and state.position // 4 == 4:
            after = sc.PSMState(after.positions, state.scans, after.buffers)
        return hidden, after


class NotANumberInParallel(sc.TransformerPSM):
    """As where float16 overflows and float32 does not."""

    def hidden(self, tokens: Tensor, **options: Any) -> Tensor:
        hidden = super().hidden(tokens, **options)
        return hidden if hidden.dtype == torch.float32 else hidden.index_fill(1, torch.tensor([9]), float("nan"))


@pytest.mark.parametrize("kind", [UnforkedBuffers, DroppedChunk, NotANumberInParallel])
def test_a_broken_scan_is_caught(kind: type[sc.TransformerPSM]) -> None:
    report = sc.verify_duality(psm_of(2, kind=kind), tokens_of(0), dtype=torch.bfloat16, splits=1)
    assert not report.passed


def test_weights_in_half_precision_under_outputs_in_float32_are_judged_as_half_precision() -> None:
    class Float32Outputs(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return logits.float()

    model = model_of("deltanet", 4).bfloat16()
    model.head = nn.Sequential(model.head, Float32Outputs())
    report = sc.verify_duality(model, tokens_of(0), splits=1)
    report.raise_if_failed()
    assert report.dtype == "float32" and report.tolerance is None


def test_autocast_is_judged_as_half_precision() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        report = sc.verify_duality(psm_of(1), tokens_of(0), splits=1)
    report.raise_if_failed()
    assert report.dtype == "bfloat16" and report.tolerance is None


def test_the_check_leaves_the_weights_alone() -> None:
    model = psm_of(1).bfloat16()
    before = [weight.clone() for weight in model.state_dict().values()]
    sc.verify_duality(model, tokens_of(0), splits=1)
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))


def test_float32_and_float64_keep_their_tolerances() -> None:
    assert TOLERANCE[torch.float64] == 1e-10 and TOLERANCE[torch.float32] == 2e-4
    tokens, outputs = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[[3.0], [-3.0]]], dtype=torch.float64)
    expected = Expected.of(None, tokens, outputs, None)
    assert expected.allowed.tolist() == [[3e-10, 3e-10]] and expected.outputs is outputs
    assert expected.difference("", outputs + torch.tensor([[[2.9e-10], [0]]])).passed
    found = expected.difference("", outputs + torch.tensor([[[0], [3.1e-10]]]))
    assert not found.passed and (found.row, found.position) == (0, 1)


@pytest.mark.parametrize("outlier", [float("inf"), float("-inf"), float("nan"), -1e30, 1e30])
def test_the_scale_is_that_of_the_outputs_without_the_ones_that_mean_never(outlier: float) -> None:
    assert scale_of(torch.tensor([3.0, -4.0, 3.0, -4.0])) == 12.5**0.5
    assert scale_of(torch.tensor([3.0, -4.0, 3.0, -4.0, outlier])) == 12.5**0.5
    assert scale_of(torch.tensor([3.0, -4.0, 3.0, -4.0, 0.0])) == 12.5**0.5
    assert scale_of(torch.tensor([outlier] if outlier not in (-1e30, 1e30) else [0.0])) == 0.0


@pytest.mark.parametrize("outlier", [float("-inf"), -1e30])
def test_an_outlier_makes_no_room_for_mistakes(outlier: float) -> None:
    outputs = torch.randn(1, 5, 8)
    outputs[..., 0] = outlier
    expected = Expected.of(None, torch.zeros(1, 5, dtype=torch.int64), outputs, None)
    assert expected.difference("", outputs).value == 0
    wrong = outputs.clone()
    wrong[0, 3, 4] += 0.01
    found = expected.difference("", wrong)
    assert not found.passed and found.position == 3


def test_no_place_is_allowed_less_than_half_of_all_are() -> None:
    torch.manual_seed(0)
    model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla", "deltanet"))).bfloat16().eval()
    tokens = torch.randint(50, (2, 40))
    with torch.no_grad():
        found = Expected.of(model, tokens, model(tokens), None)
    least = found.allowed.min()
    # The median is the floor, so that a place whose rounding happens to cancel is not judged by that.
    assert float((found.allowed == least).double().mean()) >= 0.5
    # Nor is any held to less than the rounding of the outputs themselves.
    assert float(least) >= SLACK * torch.finfo(torch.bfloat16).eps * found.scale


def test_outputs_of_no_positions_do_not_differ() -> None:
    outputs = torch.ones(2, 5, 3)
    expected = Expected(outputs, torch.full((2, 5), 1e-5), 1.0, 1e-5, None)
    nothing = expected.difference("in pieces", outputs[:, :0], start=5)
    assert nothing == Difference("in pieces", 0.0, 0, 5, 0.0)
    assert nothing.passed and nothing.excess == 0.0
