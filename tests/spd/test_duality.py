"""The check must catch mistakes: each model here is broken on purpose."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.scan import scan
from scannable.spd import bounds


def tiny(kind: type[sc.TransformerPSM] = sc.TransformerPSM) -> Any:
    torch.manual_seed(0)
    return kind(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=4, heads=2)).double()


class LeakyInParallel(sc.TransformerPSM):
    """Inf sees the aggregate of its own chunk, as Alg. 4 prints it."""

    def hidden(self, tokens: Tensor, **_: Any) -> Tensor:
        x = self.enc(nn.functional.pad(tokens, (0, -tokens.shape[1] % 4)).unflatten(1, (-1, 4)))
        s = scan(self.agg, x, identity=self.identity, dim=1, inclusive=True)
        return self.inf(s, x).flatten(1, 2)[:, : tokens.shape[1]]


class SwappedAgg(sc.TransformerPSM):
    """The parallel scan swaps the operands."""

    def hidden(self, tokens: Tensor, **_: Any) -> Tensor:
        agg = self.layer.agg
        self.layer.agg = _Swapped(agg)
        try:
            return super().hidden(tokens)
        finally:
            self.layer.agg = agg


class _Swapped(nn.Module):
    def __init__(self, agg: nn.Module) -> None:
        super().__init__()
        self.agg = agg

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return self.agg(newer, older)


class StaleCache(sc.TransformerPSM):
    """A new chunk starts without its new prefix in the cache: the old one's keys and values stay."""

    def extend(self, tokens: Tensor, state: sc.PSMState, **_: Any) -> Any:
        cache = state.buffers.cache
        assert cache is not None
        kept = cache.clone()
        result = super().extend(tokens, state)
        if state.position >= 4 and state.position % 4 == 0 and tokens.shape[1] == 1:
            for now, before in zip((*cache.keys, *cache.values), (*kept.keys, *kept.values), strict=True):
                now[:, :, :4] = before[:, :, :4]
        return result


class DroppedChunk(sc.TransformerPSM):
    """Every fifth chunk is never pushed when streaming."""

    def extend(self, tokens: Tensor, state: sc.PSMState, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        if after.position // 4 == 5 and state.position // 4 == 4:
            after = sc.PSMState(after.positions, state.scans, after.buffers)
        return outputs, after


class NotANumber(sc.TransformerPSM):
    def step(self, token: Tensor, state: Any) -> Any:
        outputs, state = super().step(token, state)
        return outputs * float("nan") if state.position == 30 else outputs, state


class ForkSharesItsBuffers(sc.TransformerPSM):
    """A fork that copies the books but not the tensors: what one stream writes, the other reads."""

    def initial_state(self, batch_size: int) -> Any:
        state = super().initial_state(batch_size)
        return _Shallow(state.positions, state.scans, state.buffers)

    def extend(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        return outputs, _Shallow(after.positions, after.scans, after.buffers)


class _Shallow(sc.PSMState):
    def fork(self) -> Any:
        assert self.buffers.cache is not None
        return _Shallow(self.positions, self.scans, replace(self.buffers, cache=replace(self.buffers.cache)))


class MixedRows(sc.TransformerPSM):
    """Every row's output holds a little of the others', in parallel and step by step alike."""

    def forward(self, tokens: Tensor, *, logits_to_keep: int | None = None, **_: Any) -> Tensor:
        outputs = super().forward(tokens, logits_to_keep=logits_to_keep)
        return outputs + 0.01 * outputs.mean(0)

    def extend(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        return outputs + 0.01 * outputs.mean(0), after


class WrongAtChunkEnds(sc.TransformerPSM):
    """Prefill of several tokens from the end of a chunk is wrong."""

    def extend(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        return outputs * 2 if state.position and state.position % 4 == 0 and tokens.shape[1] > 1 else outputs, after


class WrongPrefillOfOne(sc.TransformerPSM):
    def prefill(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = super().prefill(tokens, state)
        return outputs * 2 if tokens.shape[1] == 1 else outputs, after


class MaskedAndRandom(sc.TransformerPSM):
    """A masked logit must not hide that the others are noise."""

    masked = float("-inf")

    def forward(self, tokens: Tensor, *, logits_to_keep: int | None = None, **_: Any) -> Tensor:
        outputs = super().forward(tokens, logits_to_keep=logits_to_keep)
        return torch.cat((torch.full_like(outputs[..., :1], self.masked), outputs[..., 1:]), -1)

    def extend(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        return torch.randn_like(outputs), after


class HugeAndRandom(MaskedAndRandom):
    masked = -1e30


class Masked(MaskedAndRandom):
    def extend(self, tokens: Tensor, state: Any, **_: Any) -> Any:
        outputs, after = sc.TransformerPSM.extend(self, tokens, state)
        return torch.cat((torch.full_like(outputs[..., :1], self.masked), outputs[..., 1:]), -1), after


def test_a_masked_logit_is_no_difference() -> None:
    sc.verify_duality(tiny(Masked), torch.randint(13, (2, 60))).raise_if_failed()


def test_a_wrong_position_is_caught_at_once() -> None:
    class WrongPosition(sc.TransformerPSM):
        def step(self, token: Tensor, state: Any) -> Any:
            outputs, after = super().step(token, state)
            return outputs, _Elsewhere(after) if after.position == 3 else after

    class _Elsewhere:
        position = 7

        def __init__(self, state: Any) -> None:
            self.state = state

    with pytest.raises(AssertionError, match="the state says position 7 after 3 tokens"):
        sc.verify_duality(tiny(WrongPosition), torch.randint(13, (2, 60)))


BROKEN = [
    LeakyInParallel, SwappedAgg, StaleCache, DroppedChunk, NotANumber, ForkSharesItsBuffers, MixedRows, WrongAtChunkEnds,
    WrongPrefillOfOne, MaskedAndRandom, HugeAndRandom,
]  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_is_caught(kind: type[sc.TransformerPSM]) -> None:
    tokens = torch.randint(13, (2, 61))
    sc.verify_duality(tiny(), tokens).raise_if_failed()
    report = sc.verify_duality(tiny(kind), tokens)
    assert not report.passed
    with pytest.raises(AssertionError, match="FAILED: " + kind.__name__):
        report.raise_if_failed()


def test_a_dropped_chunk_is_found_where_it_first_matters() -> None:
    report = sc.verify_duality(tiny(DroppedChunk), torch.randint(13, (1, 60)), splits=0)
    assert report.worst.way == "step by step" and report.worst.position >= 20


def test_a_state_larger_than_its_formula_fails() -> None:
    model = tiny()
    model.state_nbytes = lambda position, batch: 10
    assert not sc.verify_duality(model, torch.randint(13, (1, 9))).passed


class Refolding(sc.TransformerPSM):
    """Streaming calls Agg once more a chunk than the counter needs."""

    def extend(self, tokens: Tensor, state: sc.PSMState, **_: Any) -> Any:
        outputs, after = super().extend(tokens, state)
        if after.scans[0].position > state.scans[0].position:
            for root in after.scans[0].roots.values():
                self.agg(root[None], root[None])
        return outputs, after


def test_a_counter_that_refolds_is_caught_by_its_count() -> None:
    report = sc.verify_duality(tiny(Refolding), torch.randint(13, (1, 200)))
    assert not report.passed and all(difference.passed for difference in report.differences)


class RefoldingInParallel(sc.TransformerPSM):
    """The parallel form calls Agg on all chunks twice more than the scan needs."""

    def hidden(self, tokens: Tensor, **rows: Any) -> Tensor:
        x = self.enc(tokens[:, : tokens.shape[1] // 4 * 4].unflatten(1, (-1, 4)))
        for _ in range(2):
            self.agg(x.transpose(0, 1), x.transpose(0, 1))
        return super().hidden(tokens)


def test_every_evaluation_in_parallel_is_counted() -> None:
    tokens = torch.randint(13, (3, 64))
    plain, more = sc.verify_duality(tiny(), tokens), sc.verify_duality(tiny(RefoldingInParallel), tokens)
    assert plain.parallel_evaluations is not None and plain.parallel_calls is not None
    assert more.parallel_evaluations == plain.parallel_evaluations + 2 * 16
    assert more.parallel_calls == plain.parallel_calls + 2
    assert plain.passed and not more.passed


def test_the_report_reads_well_and_counts() -> None:
    model = tiny()
    model.train()
    model.inf.eval()
    report = sc.verify_duality(model, torch.randint(13, (3, 65)))
    assert model.training and model.agg.training and not model.inf.training
    chunks = 16
    assert report.parallel_evaluations == bounds.agg_evaluations(chunks)
    assert report.step_evaluations == bounds.agg_evaluations(chunks)
    assert report.parallel_calls is not None and report.parallel_calls <= bounds.agg_calls(chunks + 1)
    text = str(report)
    for part in (
        "PASSED: TransformerPSM on 3 x 65 tokens, float64",
        "largest difference",
        "step by step",
        "at most 34",
        "bytes",
    ):
        assert part in text


class CumulativeCount:
    """A user's own model with the protocol and nothing else: how often each token was seen so far."""

    class State:
        def __init__(self, position: int, counts: Tensor) -> None:
            self.position, self.counts = position, counts

        @property
        def nbytes(self) -> int:
            return self.counts.nbytes

        def fork(self) -> "CumulativeCount.State":
            return CumulativeCount.State(self.position, self.counts.clone())

    def __call__(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, 7).cumsum(1).double()

    def initial_state(self, batch_size: int) -> "CumulativeCount.State":
        return self.State(0, torch.zeros(batch_size, 7, dtype=torch.float64))

    def prefill(self, tokens: Tensor, state: "CumulativeCount.State") -> Any:
        outputs = self(tokens) + state.counts[:, None]
        return outputs, self.State(state.position + tokens.shape[1], outputs[:, -1])

    def step(self, token: Tensor, state: "CumulativeCount.State") -> Any:
        outputs, state = self.prefill(token[:, None], state)
        return outputs[:, 0], state


def test_a_model_of_ones_own_needs_only_the_protocol() -> None:
    model = CumulativeCount()
    assert isinstance(model, sc.SequenceModel) and isinstance(model.initial_state(1), sc.StreamState)
    report = sc.verify_duality(model, torch.randint(7, (2, 40)))
    assert report.passed and report.parallel_evaluations is None and report.nbytes_bound is None


@pytest.mark.usefixtures("shapes_unchecked")
def test_bad_calls_are_named() -> None:
    with pytest.raises(ValueError, match="a length above 0"):
        sc.verify_duality(tiny(), torch.zeros(1, 0, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"needs an nn\.Module to convert, not CumulativeCount"):
        sc.verify_duality(CumulativeCount(), torch.zeros(1, 3, dtype=torch.int64), dtype=torch.float32)
