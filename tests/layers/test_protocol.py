"""One protocol for every sequence layer: ragged rows, packed documents, any pieces, gradients through the state."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.layers import LAYERS, SequenceLayer
from scannable.models.layer_options import OPTIONS

WIDTH, HEADS = 8, 2
SMALL: dict[str, dict[str, Any]] = {"log_linear": {"chunk": 4}, "psm": {"chunk_length": 4}, "mamba2": {"state_size": 4}}
"""Options under which a few positions go through everything."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, SMALL.get(name, {})) for name in LAYERS},
    "attention, window": ("attention", {"window": 5}),
    "attention, convolution": ("attention", {"convolution": 3, "qk_norm": True}),
    "convolved_mlp, swiglu": ("convolved_mlp", {"activation": "swiglu", "convolution": 3, "bias": False}),
    "deltaproduct, gated": ("deltaproduct", {"gated": True}),
    "gla, sizes": ("gla", {"key_size": 3, "value_size": 5, "eps": 1e-2}),
    "deltanet, sizes": ("deltanet", {"key_size": 3, "value_size": 5, "convolution": 1, "eps": 1e-2}),
    "gated_deltanet, sizes": ("gated_deltanet", {"key_size": 5, "value_size": 3, "convolution": 3, "eps": 1e-2}),
    "psm, recent": ("psm", {"chunk_length": 3, "recent": 1}),
}
each = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_of(variant: str) -> SequenceLayer:
    """Away from its start, where gates are alike and biases are 0."""
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    layer = LAYERS[name](WIDTH, HEADS, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def gradients(layer: SequenceLayer, loss: Tensor, *others: Tensor) -> list[Tensor]:
    inputs = [*others, *layer.parameters()]
    return list(torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True, materialize_grads=True))


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths in one tensor; what is behind them is not a number."""
    longest = max(len(row) for row in rows)
    return torch.stack([torch.cat((row, row.new_full((longest - len(row), WIDTH), torch.nan))) for row in rows])


# Rows of different lengths.


@each
def test_each_of_ragged_rows_is_as_if_it_were_alone(variant: str) -> None:
    layer, counts = layer_of(variant), [19, 0, 7, 1, 12]
    rows = [torch.randn(n, WIDTH, requires_grad=True) for n in counts]
    weights = [torch.randn(n, WIDTH) for n in counts]
    x = padded(rows)
    alone = [layer(row[None])[0] for row in rows]
    truth = gradients(layer, torch.cat([(y * w).flatten() for y, w in zip(alone, weights, strict=True)]).sum(), *rows)
    for lengths in (counts, tuple(counts), torch.tensor(counts), torch.tensor(counts, dtype=torch.int32)):
        y = layer(x, lengths=lengths)
        assert y.shape == x.shape
        kept = [y[i, :n] for i, n in enumerate(counts)]
        for found, expected in zip(kept, alone, strict=True):
            assert_close(found, expected)
        found = gradients(
            layer, torch.cat([(y * w).flatten() for y, w in zip(kept, weights, strict=True)]).sum(), *rows
        )
        for one, other in zip(found, truth, strict=True):
            assert_close(one, other)


# Documents packed in a row.


@each
def test_each_of_packed_documents_is_as_if_it_were_alone(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 21, WIDTH, requires_grad=True)
    weight = torch.randn(2, 21, WIDTH)
    same = [0, 1, 6, 14]
    own = [[0, 9], [0, 4, 5, 16, 20]]
    mask = torch.zeros(2, 21, dtype=torch.bool)
    for i, places in enumerate(own):
        mask[i, places] = True
    for starts, each_row in ((same, [same] * 2), ([*same, 21], [same] * 2), (own, own), (mask, own)):
        y = layer(x, starts=starts)
        alone = torch.stack(
            [
                torch.cat([layer(x[i : i + 1, a:b])[0] for a, b in zip(places, [*places[1:], 21], strict=True)])
                for i, places in enumerate(each_row)
            ]
        )
        assert_close(y, alone)
        found, truth = (gradients(layer, (one * weight).sum(), x) for one in (y, alone))
        for one, other in zip(found, truth, strict=True):
            assert_close(one, other)


@each
def test_a_single_document_is_a_row(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 9, WIDTH)
    assert_close(layer(x, starts=[0]), layer(x))
    with pytest.raises(ValueError, match="give lengths for padded rows or starts for packed documents, not both"):
        layer(x, starts=[0, 3], lengths=[9, 5])


# Pieces.


@each
@given(pieces=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(max_examples=12, deadline=None)
def test_ragged_pieces_of_any_size_are_one_pass(variant: str, pieces: list[list[int]]) -> None:
    layer = layer_of(variant)
    totals = [sum(column) for column in zip(*pieces, strict=True)]
    rows = [torch.randn(n, WIDTH) for n in totals]
    for recorded in (False, True):
        state, done, outputs = layer.initial_state(3), [0, 0, 0], [list[Tensor]() for _ in range(3)]
        with torch.set_grad_enabled(recorded):
            for counts in pieces:
                x = padded([row[a : a + n] for row, a, n in zip(rows, done, counts, strict=True)])
                y, state = layer.extend(x, state, lengths=counts)
                done = [a + n for a, n in zip(done, counts, strict=True)]
                for i, n in enumerate(counts):
                    outputs[i].append(y[i, :n])
        assert state.positions == tuple(totals) and state.position == max(totals)
        for row, found in zip(rows, outputs, strict=True):
            assert_close(torch.cat(found), layer(row[None])[0])


@each
def test_gradients_through_x_weights_and_state_are_those_of_one_pass(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(3, 26, WIDTH, requires_grad=True)
    weight = torch.randn(3, 26, WIDTH)
    whole = layer(x)
    truth = gradients(layer, (whole * weight).sum(), x)
    for pieces in ([26], [1, 7, 4, 14], [9, 1, 1, 1, 14], [25, 1]):
        state, outputs = layer.initial_state(3), list[Tensor]()
        for piece in x.split(pieces, 1):
            y, state = layer.extend(piece, state)
            outputs.append(y)
        for one, other in zip(gradients(layer, (torch.cat(outputs, 1) * weight).sum(), x), truth, strict=True):
            assert_close(one, other)


@each
def test_gradients_reach_each_row_through_pieces_of_its_own_length(variant: str) -> None:
    layer, firsts = layer_of(variant), [11, 3, 8]
    rows = [torch.randn(n + 6, WIDTH, requires_grad=True) for n in firsts]
    weight = torch.randn(3, 6, WIDTH)
    _, state = layer.extend(
        padded([row[:n] for row, n in zip(rows, firsts, strict=True)]), layer.initial_state(3), lengths=firsts
    )
    y, _ = layer.extend(torch.stack([row[-6:] for row in rows]), state)
    alone = torch.stack([layer(row[None])[0, -6:] for row in rows])
    assert_close(y, alone)
    found, truth = (gradients(layer, (one * weight).sum(), *rows) for one in (y, alone))
    for one, other in zip(found, truth, strict=True):
        assert_close(one, other)


@each
def test_detaching_cuts_exactly_there(variant: str) -> None:
    layer = layer_of(variant)
    first, second = torch.randn(2, 10, WIDTH, requires_grad=True), torch.randn(2, 9, WIDTH, requires_grad=True)
    y, state = layer.extend(first, layer.initial_state(2))
    cut = state.detach()
    assert not any(tensor.requires_grad for tensor in cut.tensors())
    z, _ = layer.extend(second, cut)
    assert_close(z, layer(torch.cat((first, second), 1))[:, 10:])
    found = gradients(layer, y.square().sum() + z.square().sum(), first, second)
    # The first piece alone, and the second from a state that nobody differentiates.
    with torch.no_grad():
        _, constant = layer.extend(first, layer.initial_state(2))
    z_alone, _ = layer.extend(second, constant)
    truth = gradients(layer, layer(first).square().sum() + z_alone.square().sum(), first, second)
    for one, other in zip(found, truth, strict=True):
        assert_close(one, other)
    # The state that was cut still has its history.
    z_whole, _ = layer.extend(second, state)
    whole = gradients(layer, z_whole.square().sum(), first)
    assert float(whole[0].abs().max()) > 0


# States.


@each
def test_rows_join_and_come_apart_and_streams_fork(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(4, 17, WIDTH)
    more = torch.randn(4, 8, WIDTH)
    places = [17, 5, 0, 8]
    truth = [layer(torch.cat((x[i : i + 1, :n], more[i : i + 1]), 1))[0, n:] for i, n in enumerate(places)]
    with torch.no_grad():
        one, two, three = layer.initial_state(1), layer.initial_state(2), layer.initial_state(1)
        _, one = layer.extend(x[:1], one)
        _, two = layer.extend(x[1:3], two, lengths=[5, 0])
        _, three = layer.extend(x[3:, :8], three)
        assert one.position == 17 and two.position == 5 and two.positions == (5, 0) and two.batch_size == 2
        state = sc.join([one, two, three])
        assert state.positions == (17, 5, 0, 8) and state.position == 17 and state.batch_size == 4
        assert type(state) is type(one)
        assert state.nbytes == sum(tensor.nbytes for tensor in {id(t): t for t in state.tensors()}.values())
        chosen, last, fork, unused = state.select([3, 0, 0]), state.row(3), state.fork(), state.fork()
        assert chosen.positions == (8, 17, 17) and last.positions == (8,)
        for start, rows in ((state, [0, 1, 2, 3]), (chosen, [3, 0, 0]), (last, [3]), (fork, [0, 1, 2, 3])):
            # In two pieces, so that what one stream writes another would see.
            y, after = layer.extend(more[rows][:, :3], start)
            z, after = layer.extend(more[rows][:, 3:], after)
            assert_close(torch.cat((y, z), 1), torch.stack([truth[row] for row in rows]))
            assert after.positions == tuple(places[row] + 8 for row in rows)
        # The states that were joined can still go on.
        assert_close(layer.extend(more[:1], one)[0][0], truth[0])
        assert_close(layer.extend(more[3:], three)[0][0], truth[3])
    for rows in ([4], [-1], [0, 9]):
        with pytest.raises(IndexError, match=rf"row {rows[-1]} of a batch of 4 streams; rows count from 0"):
            unused.select(rows)


@each
def test_the_formula_counts_the_bytes_of_a_state(variant: str) -> None:
    layer = layer_of(variant)
    with torch.no_grad():
        for n in (1, 4, 12, 21):
            _, state = layer.extend(torch.randn(2, n, WIDTH), layer.initial_state(2))
            assert state.nbytes == layer.state_nbytes(n, 2)
            alone = state.row(1)
            assert alone.nbytes == layer.state_nbytes(n, 1)


@each
def test_a_state_moves_to_another_precision(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 20, WIDTH)
    with torch.no_grad():
        expected = layer(x)[:, 13:]
        _, state = layer.extend(x[:, :13], layer.initial_state(2))
        half, same = state.to(torch.float32), state.to("cpu")
        assert all(tensor.dtype != torch.float64 for tensor in half.tensors())
        assert_close(layer.extend(x[:, 13:], same.fork())[0], expected)
        found = layer.float().extend(x[:, 13:].float(), half)[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


@each
def test_a_state_of_inference_mode_goes_on_outside_and_under_gradients(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 20, WIDTH)
    expected = layer(x)[:, 10:]
    with torch.inference_mode():
        _, made = layer.extend(x[:, :10], layer.initial_state(2))
        begun = layer.initial_state(2)
        # And a part of it is read in inference mode still.
        first, _ = layer.extend(x[:, 10:], made.fork())
    assert_close(first.clone(), expected.detach())
    with torch.no_grad():
        assert_close(layer.extend(x[:, 10:], made.fork())[0], expected)
    new = x[:, 10:].clone().requires_grad_()
    y, state = layer.extend(new[:, :3], made)
    z, state = layer.extend(new[:, 3:], state)
    assert_close(torch.cat((y, z), 1), expected)
    constant = layer.extend(x[:, :10], layer.initial_state(2))[1].detach()
    known, _ = layer.extend(new, constant)
    found, truth = (gradients(layer, one.square().sum(), new) for one in (torch.cat((y, z), 1), known))
    for one, other in zip(found, truth, strict=True):
        assert_close(one, other)
    assert_close(layer.extend(x, begun)[0][:, 10:], expected)


@each
def test_nothing_more_leaves_a_state_as_it_is(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 11, WIDTH)
    y, state = layer.extend(x[:, :0], layer.initial_state(2))
    assert y.shape == (2, 0, WIDTH) and state.positions == (0, 0)
    _, state = layer.extend(x[:, :5], state)
    _, state = layer.extend(x[:, :4], state, lengths=[0, 0])
    assert state.positions == (5, 5)
    assert_close(layer.extend(x[:, 5:], state)[0], layer(x)[:, 5:])
    assert layer(x[:0]).shape == (0, 11, WIDTH) and layer(x[:, :0]).shape == (2, 0, WIDTH)


@each
@pytest.mark.usefixtures("shapes_unchecked")
def test_what_is_no_length_and_no_start_is_refused(variant: str) -> None:
    layer, x = layer_of(variant), torch.randn(2, 5, WIDTH)
    state = layer.initial_state(2)
    for lengths in ([5, 6], [-1, 2], [1], [1, 2, 3], [1.5, 2.0]):
        with pytest.raises((ValueError, TypeError), match="lengths"):
            layer(x, lengths=lengths)
        with pytest.raises((ValueError, TypeError), match="lengths"):
            layer.extend(x, state, lengths=lengths)
    for starts in ([0, 6], [0, 3, 2], [-1, 2], [[0, 2]], torch.ones(2, 4, dtype=torch.bool)):
        with pytest.raises((ValueError, TypeError), match="start"):
            layer(x, starts=starts)
    # Nothing was written.
    assert_close(layer.extend(x, state)[0], layer(x))


# In a model, and in a file.


@each
def test_a_saved_stream_of_ragged_rows_goes_on_bit_for_bit(variant: str, tmp_path: Path) -> None:
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    layers = (name, OPTIONS[name](**options))
    model = sc.LM(sc.LMConfig(40, layers, WIDTH, HEADS)).eval()
    tokens = torch.randint(0, 40, (3, 30))
    _, state = model.prefill(tokens[:, :20], model.initial_state(3), lengths=[20, 0, 7])
    sc.save_state(state, tmp_path / "stream")
    resumed = sc.load_state(tmp_path / "stream")
    assert type(resumed) is type(state) and resumed.positions == (20, 0, 7) and resumed.nbytes == state.nbytes
    for more in (tokens[:, 20:21], tokens[:, 21:]):
        found, resumed = model.prefill(more, resumed)
        expected, state = model.prefill(more, state)
        assert torch.equal(found, expected)
    assert_close(expected[2], model(torch.cat((tokens[2:, :7], tokens[2:, 20:]), 1))[0, 8:].detach())
