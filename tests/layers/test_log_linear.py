"""Log-linear attention computes and holds what it reads, and its rows may stand at different positions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable import zoo
from scannable.layers import log_linear
from scannable.layers.affine.recurrence import MODES, Mode
from scannable.layers.log_linear_state import LogLinearState
from scannable.layers.state import State
from scannable.scan.tree import flatten, unflatten

CHUNK = 8


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_of(chunk: int = CHUNK, width: int = 8) -> zoo.LogLinearAttention:
    torch.manual_seed(0)
    layer = zoo.LogLinearAttention(width, 2, chunk=chunk)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def leaves(state: Any) -> list[Tensor]:
    return flatten(state)[0]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for x, y in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("chunks", [1, 2, 3, 63, 64, 65])
def test_as_many_compositions_as_pairs_of_chunks(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    composed, compose = [0], log_linear.compose

    def counted(older: Any, newer: Any) -> Any:
        composed[0] += older.offset.shape[0]
        return compose(older, newer)

    monkeypatch.setattr(log_linear, "compose", counted)
    layer, x = layer_of(), torch.randn(2, chunks * CHUNK + 3, 8)
    layer(x)
    merges = chunks - chunks.bit_count()  # 63 for 64 chunks, where the folds would take 57 more
    assert composed == [merges]
    composed[0], state = 0, layer.initial_state(2)
    for piece in x.split(13, 1):
        _, state = layer.extend(piece, state)
    assert composed == [merges]


def test_a_state_holds_its_roots_and_the_chunk_in_progress() -> None:
    layer = layer_of()
    for n in (1, 7, 63, 64, 65, 8 * 255 + 5):
        _, state = layer.extend(torch.randn(3, n, 8), layer.initial_state(3))
        expected = 3 * 2 * 8 * ((n // 8).bit_count() * (4 * 4 + 1) + n % 8 * (4 + 4 + 1))
        assert state.nbytes == layer.state_nbytes(n, 3) == expected
        assert sum(leaf.untyped_storage().nbytes() for leaf in leaves(state)) == expected


@pytest.mark.parametrize("mode", MODES)
@given(pieces=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_each_row_goes_its_own_way(pieces: list[list[int]], mode: Mode) -> None:
    layer = layer_of()
    state: State = layer.initial_state(3)
    alone: list[State] = [layer.initial_state(1) for _ in range(3)]
    for lengths in pieces:
        x = torch.randn(3, max(lengths), 8)
        y, state = layer.extend(x, state, lengths=torch.tensor(lengths), mode=mode)
        assert y.shape == x.shape
        for i, n in enumerate(lengths):
            y_alone, alone[i] = layer.extend(x[i : i + 1, :n], alone[i])
            assert_same(y[i : i + 1, :n], y_alone)
    assert state.positions == tuple(sum(column) for column in zip(*pieces, strict=True))
    assert state.position == max(state.positions)
    assert isinstance(state, LogLinearState) and len(state.groups) == len(set(state.positions))
    assert state.nbytes == sum(layer.state_nbytes(position) for position in state.positions)
    for i in range(3):
        assert_same(state.row(i), alone[i])


@pytest.mark.parametrize("n", [1, 7, 63, 65])
def test_gradients_of_rows_of_different_lengths_are_those_of_each_alone(n: int) -> None:
    layer, lengths = layer_of(), torch.tensor([n, 0, (n + 1) // 2, n])
    x = torch.randn(4, n + 9, 8, requires_grad=True)
    weight = torch.randn(4, n + 9, 8)
    state, total = layer.initial_state(4), torch.zeros(())
    # The second piece starts from rows at different positions, and has one length for all.
    for piece, counts in ((x[:, :n], lengths), (x[:, n:], None)):
        y, state = layer.extend(piece, state, lengths=counts)
        asked = weight[:, :n] if counts is not None else weight[:, n:]
        kept = torch.arange(piece.shape[1]) < (lengths if counts is not None else torch.full((4,), 9))[:, None]
        total = total + (y * asked * kept[..., None]).sum()
    found = torch.autograd.grad(total, [x, *layer.parameters()])
    total = torch.zeros(())
    for i, length in enumerate(lengths.tolist()):
        kept = torch.cat((torch.arange(length), torch.arange(n, n + 9)))
        total = total + (layer(x[i : i + 1, kept]) * weight[i : i + 1, kept]).sum()
    expected = torch.autograd.grad(total, [x, *layer.parameters()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gradients_go_through_a_state_with_rows_at_different_positions() -> None:
    layer = layer_of(chunk=2, width=4)
    start = layer.extend(torch.randn(3, 5, 4), layer.initial_state(3), lengths=torch.tensor([5, 2, 5]))[1]
    parts, structure = flatten(start)

    def function(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        y, state = layer.extend(x, unflatten(structure, parts), lengths=torch.tensor([3, 4, 4]))
        return y, *leaves(state)

    inputs = [part.detach().clone().requires_grad_() for part in (torch.randn(3, 4, 4), *parts)]
    assert torch.autograd.gradcheck(function, inputs)


def test_rows_that_meet_again_share_one_counter_again() -> None:
    layer, x = layer_of(), torch.randn(3, 30, 8)
    _, state = layer.extend(x[:, :20], layer.initial_state(3), lengths=torch.tensor([20, 4, 9]))
    assert isinstance(state, LogLinearState) and len(state.groups) == 3
    later = torch.zeros(3, 21, 8)
    for i, n in enumerate([20, 4, 9]):
        later[i, : 25 - n] = x[i, n:25]
    _, state = layer.extend(later, state, lengths=torch.tensor([5, 21, 16]))
    assert isinstance(state, LogLinearState) and [group.rows for group in state.groups] == [(0, 1, 2)]
    assert_same(state, layer.extend(x[:, :25], layer.initial_state(3))[1])


def test_states_join_and_rows_are_taken_out_again() -> None:
    layer = layer_of()
    one = layer.extend(torch.randn(2, 19, 8), layer.initial_state(2))[1]
    other = layer.extend(torch.randn(3, 19, 8), layer.initial_state(3), lengths=torch.tensor([19, 3, 0]))[1]
    both = sc.join([one, other, one])
    assert isinstance(both, LogLinearState) and both.positions == (19, 19, 19, 3, 0, 19, 19)
    assert [group.rows for group in both.groups] == [(4,), (3,), (0, 1, 2, 5, 6)]
    assert_same(both.select([2, 3, 4]), other)
    assert_same(both.select([6, 0]), one.select([1, 0]))
    x = torch.randn(7, 6, 8)
    y, after = layer.extend(x, both)
    y_other, after_other = layer.extend(x[2:5], other)
    assert_same(y[2:5], y_other)
    assert_same(after.select([2, 3, 4]), after_other)
    twice = both.select([3, 3])
    assert twice.batch_size == 2 and twice.positions == (3, 3)
    with pytest.raises(IndexError, match="row 7 of a batch of 7 streams; rows count from 0"):
        both.row(7)
    with pytest.raises(ValueError, match=r"states over chunks of \[8, 16\] positions do not join"):
        sc.join([one, layer_of(16).initial_state(1)])


def test_a_saved_stream_of_rows_at_different_positions_goes_on_bit_for_bit(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = sc.LM(sc.LMConfig(40, ("log_linear",) * 2, width=16, heads=2)).eval()
    tokens, lengths = torch.randint(0, 40, (3, 70)), torch.tensor([70, 65, 1])
    _, state = model.prefill(tokens, model.initial_state(3), lengths=lengths)
    _, state = model.prefill(tokens, state, lengths=lengths.flip(0))
    sc.save_state(state, tmp_path / "stream.safetensors")
    resumed = sc.load_state(tmp_path / "stream.safetensors")
    assert isinstance(resumed.layers[0], LogLinearState)
    assert resumed.positions == resumed.layers[0].positions == (71, 130, 71)
    assert torch.equal(model.step(tokens[:, 0], resumed)[0], model.step(tokens[:, 0], state)[0])


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_state_that_holds_a_row_twice_or_counts_other_chunks_is_refused() -> None:
    layer = layer_of()
    _, state = layer.extend(torch.randn(2, 9, 8), layer.initial_state(2))
    assert isinstance(state, LogLinearState)
    doubled = LogLinearState(CHUNK, (*state.groups, state.row(0).groups[0]))
    with pytest.raises(ValueError, match="the state holds 3 rows, expected 2; another model or batch made it"):
        layer.extend(torch.randn(2, 1, 8), doubled)
    with pytest.raises(ValueError, match="a layer with another chunk than 16 made it"):
        layer_of(16).extend(torch.randn(2, 1, 8), state)
