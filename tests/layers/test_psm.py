"""Definition "Prefix-Scannable Model" as a layer: parallel, ragged, packed and streamed are one function."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import scannable as sc
from scannable.layers.psm import PSMLayer
from scannable.layers.psm_choices import PSMChoices
from scannable.layers.transformer_psm import TransformerAgg, TransformerInf
from scannable.scan import reference

D = 4


class Mixed(nn.Module):
    """An Agg that tells every order and bracket apart."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * D, D)
        self.calls = 0

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.linear(torch.cat((older, newer), -1)))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return torch.tanh(older * newer * self.weight)


class Sums(nn.Module):
    """A causal Inf of sums; it reads the whole window each time."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * D, D)
        self.c = c

    def forward(self, prefix: Tensor, x: Tensor) -> Tensor:
        seen = x.cumsum(-2)[..., -self.c :, :]
        return torch.sin(self.linear(torch.cat((prefix.sum(-2, keepdim=True).expand_as(seen), seen), -1)))


class SteppedSums(Sums):
    """The same, piece by piece: its cache is a tree of its own, the sum of the prefix and of what was read."""

    def new_cache(self, batch: int) -> tuple[Tensor, Tensor]:
        zeros = self.linear.weight.new_zeros(batch, D)
        return zeros, zeros.clone()

    def begin(self, prefix: Tensor, recent: Tensor | None = None, reuse: Any = None) -> tuple[Tensor, Tensor]:
        total = prefix.sum(-2)
        return total, torch.zeros_like(total) if recent is None else recent.sum(-2)

    def read(self, x: Tensor, cache: Any, counts: Sequence[int] | None = None) -> tuple[Tensor, Any]:
        if counts is not None:
            keep = torch.arange(x.shape[1]) < torch.tensor(counts)[:, None]
            x = x.where(keep[..., None], 0)
        total, before = cache
        seen = before[:, None] + x.cumsum(1)
        y = torch.sin(self.linear(torch.cat((total[:, None].expand_as(seen), seen), -1)))
        return y, (total, seen[:, -1])

    def cache_nbytes(self, batch: int) -> int:
        return 2 * batch * D * self.linear.weight.element_size()


def layer_of(kind: str, c: int, recent: int = 0, **options: Any) -> PSMLayer:
    torch.manual_seed(c)
    identity = nn.Parameter(torch.randn(c, D))
    if kind != "transformer":
        inf = SteppedSums(c) if kind == "stepped" else Sums(c)
        return PSMLayer(Mixed(), inf, identity, c, recent=recent, **options).double()
    choices = PSMChoices(chunk_length=c, recent=recent, prefix="memory")
    return PSMLayer(
        TransformerAgg(D, 2, choices), TransformerInf(D, 2, choices), identity, c, recent=recent, **options
    ).double()


KINDS = ("whole", "stepped", "transformer")


def by_definition(layer: PSMLayer, x: Tensor) -> Tensor:
    """y_i = Inf(s_(i-k), [x_(i-k) | ... | x_i]), chunk by chunk, for one row."""
    c, k = layer.chunk_length, layer.recent
    n = len(x)
    padded = torch.cat((x, x.new_zeros(-n % c, D)))
    chunks = list(padded.split(c)) if n else []
    prefixes = reference.scan(layer.agg, chunks, layer.identity, literal=layer.literal_identity)
    outputs = []
    for i in range(len(chunks)):
        window = [layer.identity if j < 0 else chunks[j] for j in range(i - k, i + 1)]
        before = prefixes[max(0, i - k)]
        outputs.append(layer.inf(before[None], torch.cat(window)[None])[0])
    return torch.cat([x[:0], *outputs])[:n]


def close(found: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recent", [0, 1, 3])
@pytest.mark.parametrize(("n", "c"), [(1, 1), (7, 1), (63, 4), (65, 4), (7, 8)])
def test_forward_is_the_definition(kind: str, recent: int, n: int, c: int) -> None:
    for literal in (False, True):
        layer = layer_of(kind, c, recent, literal_identity=literal)
        x = torch.randn(2, n, D, dtype=torch.float64)
        found = layer(x)
        for row, y in zip(x, found, strict=True):
            close(y, by_definition(layer, row))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    c=st.integers(1, 5),
    recent=st.integers(0, 2),
    lengths=st.lists(st.integers(0, 23), min_size=1, max_size=4),
)
@example("transformer", 1, 2, [0])
def test_rows_of_different_lengths_are_as_if_alone(kind: str, c: int, recent: int, lengths: list[int]) -> None:
    layer = layer_of(kind, c, recent)
    x = torch.randn(len(lengths), 23, D, dtype=torch.float64)
    for row, m in zip(x, lengths, strict=True):
        row[m:] = torch.nan
    found = layer(x, lengths=lengths)
    for row, y, m in zip(x, found, lengths, strict=True):
        close(y[:m], layer(row[None, :m])[0])
        assert not y[m:].any()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), c=st.integers(1, 5), recent=st.integers(0, 2))
def test_packed_documents_are_as_if_alone(data: st.DataObject, kind: str, c: int, recent: int) -> None:
    layer = layer_of(kind, c, recent)
    x = torch.randn(2, 23, D, dtype=torch.float64)
    starts = [sorted({0, *data.draw(st.sets(st.integers(0, 22), max_size=4))}) for _ in x]
    found = layer(x, starts=starts)
    for row, y, cuts in zip(x, found, starts, strict=True):
        for first, last in zip(cuts, [*cuts[1:], 23], strict=True):
            close(y[first:last], layer(row[None, first:last])[0])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    c=st.integers(1, 5),
    recent=st.integers(0, 2),
    pieces=st.lists(st.lists(st.integers(0, 11), min_size=3, max_size=3), min_size=1, max_size=6),
    recording=st.booleans(),
)
def test_extend_in_any_ragged_pieces_is_forward(
    kind: str, c: int, recent: int, pieces: list[list[int]], recording: bool
) -> None:
    layer = layer_of(kind, c, recent)
    totals = [sum(counts) for counts in zip(*pieces, strict=True)]
    rows = [torch.randn(1, n, D, dtype=torch.float64) for n in totals]
    truths = [layer(row)[0] for row in rows]
    with torch.set_grad_enabled(recording):
        state = layer.initial_state(3)
        done = [0, 0, 0]
        for counts in pieces:
            x = torch.full((3, max(counts), D), torch.nan, dtype=torch.float64)
            for i, m in enumerate(counts):
                x[i, :m] = rows[i][0, done[i] : done[i] + m]
            y, state = layer.extend(x, state, lengths=counts)
            for i, m in enumerate(counts):
                close(y[i, :m], truths[i][done[i] : done[i] + m])
                done[i] += m
            assert state.positions == tuple(done)
    if not recording:
        assert state.nbytes == sum(layer.state_nbytes(n) for n in done)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recent", [0, 2])
def test_every_gradient_goes_through_the_state_and_detach_cuts_it(kind: str, recent: int) -> None:
    layer = layer_of(kind, 4, recent)
    x = torch.randn(2, 31, D, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    whole = torch.autograd.grad(layer(x).sin().sum(), inputs)
    state, outputs = layer.initial_state(2), []
    for piece in x.split((1, 9, 2, 19), 1):
        y, state = layer.extend(piece, state)
        outputs.append(y)
    pieces = torch.autograd.grad(torch.cat(outputs, 1).sin().sum(), inputs)
    for mine, truth in zip(pieces, whole, strict=True):
        close(mine, truth)
    # Rows of their own lengths.
    y, state = layer.extend(x[:, :9], layer.initial_state(2), lengths=[9, 5])
    z, _ = layer.extend(x[:, 9:], state, lengths=[22, 3])
    ragged = torch.autograd.grad(
        y[0].sin().sum() + y[1, :5].sin().sum() + z[0].sin().sum() + z[1, :3].sin().sum(), inputs
    )
    second = torch.cat((x[1, :5], x[1, 9:12]))[None]
    alone = torch.autograd.grad(layer(x[:1]).sin().sum() + layer(second).sin().sum(), inputs)
    for mine, truth in zip(ragged, alone, strict=True):
        close(mine, truth)
    _, cut = layer.extend(x[:, :9], layer.initial_state(2))
    y, _ = layer.extend(x[:, 9:], cut.detach())
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert not gradient[:, :9].any() and gradient[:, 9:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [12, 13])
def test_a_stream_that_goes_on_without_gradients_leaves_the_graph_behind_it_whole(kind: str, end: int) -> None:
    layer = layer_of(kind, 4)
    # A product holds on to what it multiplies.
    layer.agg = Product().double()
    x = torch.randn(2, 24, D, dtype=torch.float64, requires_grad=True)
    whole, after = layer.extend(x[:, :end], layer.initial_state(2))
    truth = torch.autograd.grad(whole.sin().sum() + after.scans[0].prefix().sum(), list(layer.parameters()))
    first, state = layer.extend(x[:, : end - 2], layer.initial_state(2))
    second, state = layer.extend(x[:, end - 2 : end], state)
    kept = state.scans[0].prefix()
    with torch.no_grad():
        for position in x[:, end:].split(1, 1):
            _, state = layer.extend(position, state)
    found = torch.autograd.grad(torch.cat((first, second), 1).sin().sum() + kept.sum(), list(layer.parameters()))
    for mine, theirs in zip(found, truth, strict=True):
        close(mine, theirs)


@torch.no_grad()
def test_a_state_that_was_detached_or_moved_has_buffers_of_its_own() -> None:
    layer = layer_of("transformer", 4)
    x = torch.randn(1, 16, D, dtype=torch.float64)
    _, state = layer.extend(x[:, :6], layer.initial_state(1))
    for other in (state.detach(), state.to(torch.float64), state.fork()):
        layer.extend(-x[:, 6:8], other)
    close(layer.extend(x[:, 6:], state)[0], layer(x)[:, 6:])


def test_with_gradients_nothing_is_written_and_a_state_can_be_used_twice() -> None:
    layer = layer_of("transformer", 4)
    x = torch.randn(1, 12, D, dtype=torch.float64)
    _, state = layer.extend(x[:, :6], layer.initial_state(1))
    first, _ = layer.extend(x[:, 6:], state)
    second, _ = layer.extend(x[:, 6:], state)
    assert torch.equal(first, second)
    with torch.no_grad():
        _, state = layer.extend(x[:, :6], layer.initial_state(1))
        layer.extend(x[:, 6:], state)
        with pytest.raises(
            ValueError, match="this state is at position 6, but its buffers have gone on to position 12"
        ):
            layer.extend(x[:, 6:], state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recent", [0, 1])
def test_a_state_of_inference_mode_goes_on_outside_it(kind: str, recent: int) -> None:
    layer = layer_of(kind, 4, recent)
    x = torch.randn(2, 23, D, dtype=torch.float64)
    truth = layer(x)
    for goes_on in (torch.no_grad, torch.enable_grad):
        with torch.inference_mode():
            _, state = layer.extend(x[:, :10], layer.initial_state(2))
        with goes_on():
            y, state = layer.extend(x[:, 10:15], state)
            z, _ = layer.extend(x[:, 15:], state)
        close(torch.cat((y, z), 1), truth[:, 10:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recent", [0, 1, 2])
def test_rows_are_joined_taken_out_moved_and_saved(kind: str, recent: int, tmp_path) -> None:
    layer = layer_of(kind, 3, recent)
    x = torch.randn(4, 40, D, dtype=torch.float64)
    truth = layer(x)
    with torch.no_grad():
        states = [layer.extend(x[i : i + 1, :m], layer.initial_state(1))[1] for i, m in enumerate((0, 5, 9, 26))]
        kept = [state.fork() for state in states]
        batch = sc.join([sc.join(states[:2]), *states[2:]])
        assert batch.positions == (0, 5, 9, 26) and batch.position == 26 and batch.batch_size == 4
        assert batch.nbytes == sum(state.nbytes for state in kept)
        batch = batch.select([3, 1, 1]).to(torch.float32).to(torch.float64)
        sc.save_state(batch, tmp_path / "state")
        batch = sc.load_state(tmp_path / "state")
        for step in range(14):
            places = [26 + step, 5 + step, 5 + step]
            y, batch = layer.step(x[[3, 1, 1], places], batch)
            torch.testing.assert_close(y, truth[[3, 1, 1], places], rtol=1e-5, atol=1e-5)
        assert batch.row(0).positions == (40,)
        y, _ = layer.extend(x[2:3, 9:], kept[2])
        close(y[0], truth[2, 9:])
    with pytest.raises(IndexError, match="row 4 of a batch of 3 streams"):
        batch.select([4])
    with pytest.raises(TypeError, match=r"states\[1\] is a TensorState, states\[0\] a PSMState"):
        sc.join([batch, sc.zoo.GLA(D, 2).initial_state(1)])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="join needs at least one state"):
        sc.join([])


@pytest.mark.parametrize("recent", [1, 2])
def test_with_recent_chunks_no_step_calls_agg_more_than_once(recent: int) -> None:
    """For c of at least log2 of the number of chunks, also in rows that fill their chunks at different times."""
    layer = layer_of("stepped", 8, recent)
    agg = layer.agg
    assert isinstance(agg, Mixed)
    x = torch.randn(3, 400, D, dtype=torch.float64)
    truth = layer(x)
    with torch.no_grad():
        states = [layer.extend(x[i : i + 1, :m], layer.initial_state(1))[1] for i, m in enumerate((0, 3, 60))]
        for batch, first in ((layer.initial_state(3), [0, 0, 0]), (sc.join(states), [0, 3, 60])):
            for step in range(330):
                before = agg.calls
                places = [start + step for start in first]
                y, batch = layer.step(x[[0, 1, 2], places], batch)
                assert agg.calls <= before + 1
                close(y, truth[[0, 1, 2], places])
                assert batch.nbytes == sum(layer.state_nbytes(p + 1) for p in places)


def test_without_recent_chunks_a_carry_is_paid_at_once() -> None:
    layer = layer_of("stepped", 2)
    agg = layer.agg
    assert isinstance(agg, Mixed)
    with torch.no_grad():
        state, calls = layer.initial_state(1), []
        for x in torch.randn(32, 1, D, dtype=torch.float64):
            before = agg.calls
            _, state = layer.step(x, state)
            calls.append(agg.calls - before)
    assert calls[15] == 3 and max(calls) == 4 and sum(calls) == 26


def test_streams_share_their_calls() -> None:
    layer = layer_of("stepped", 2)
    agg = layer.agg
    assert isinstance(agg, Mixed)
    with torch.no_grad():
        layer.extend(torch.randn(5, 64, D, dtype=torch.float64), layer.initial_state(5), lengths=[64, 63, 40, 7, 0])
    # 32 chunks are five levels up and, the top being known by law, four down.
    assert agg.calls == 9


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_hands_over_other_types_and_streams_keep_theirs(kind: str) -> None:
    layer = layer_of(kind, 4).float()
    x = torch.randn(2, 37, D)
    truth = layer(x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        state = layer.initial_state(2)
        for piece in x.split((3, 9, 1, 24), 1):
            _, state = layer.extend(piece.bfloat16(), state)
        assert {tensor.dtype for tensor in state.tensors()} == {torch.float32}
        y, _ = layer.extend(x[:, :1].bfloat16(), state)
    assert y.isfinite().all() and truth.isfinite().all()


@pytest.mark.usefixtures("shapes_unchecked")
def test_bad_calls_are_named() -> None:
    layer = layer_of("stepped", 4)
    state = layer.initial_state(2)
    x = torch.randn(2, 3, D, dtype=torch.float64)
    for wrong, message in (
        (x[..., :3], r"x has the shape \(2, 3, 3\); expected \(batch, length, 4\)"),
        (x[0], r"x has the shape \(3, 4\); expected \(batch, length, 4\)"),
        ((x, x), "x has the structure tuple"),
    ):
        for call in (layer, lambda x: layer.extend(x, state)):
            with pytest.raises(ValueError, match=message):
                call(wrong)
    with pytest.raises(ValueError, match="1 rows for a state of 2 streams"):
        layer.extend(x[:1], state)
    with pytest.raises(ValueError, match=r"lengths \[4, 1\] must lie between 0 and 3"):
        layer.extend(x, state, lengths=[4, 1])
    with pytest.raises(TypeError, match="PSMLayer goes on from a state of its initial_state"):
        layer.extend(x, None)
    with pytest.raises(ValueError, match="a TensorState is no state of PSMLayer"):
        layer.extend(x, sc.zoo.GLA(D, 2).initial_state(2))
    for other in (layer_of("stepped", 5), layer_of("stepped", 4, 1)):
        with pytest.raises(ValueError, match="another model or batch made it"):
            layer.extend(x, other.initial_state(2))
    with pytest.raises(ValueError, match="bytes of Inf's cache"):
        layer.extend(x, layer_of("whole", 4).initial_state(2))
    with pytest.raises(ValueError, match=r"torch.float32, expected torch.float64; another model"):
        layer.extend(x, layer_of("whole", 4).float().initial_state(2))
    with pytest.raises(ValueError, match=r"x has \[torch.float32\], this layer \[torch.float64\]"):
        layer.extend(x.float(), state)
    with pytest.raises(ValueError, match="recent=-1 must be a whole number"):
        layer_of("whole", 4, -1)
    with pytest.raises(ValueError, match="does not show the shape of an element; give like="):
        PSMLayer(Mixed(), Sums(4), 0.0, 4)
    with pytest.raises(ValueError, match=r"identity has the shape \(3, 4\), which does not broadcast"):
        PSMLayer(Mixed(), Sums(4), torch.zeros(3, D), 4)
    layer.extend(x, state)


def test_a_layer_stacks_in_ones_own_network() -> None:
    """An identity of one row, numbers with an example, and a module that is trained around the layer."""
    one = PSMLayer(Mixed(), Sums(4), torch.zeros(D), 4)
    two = PSMLayer(Mixed(), SteppedSums(4), 0.0, 4, like=torch.zeros(4, D))
    assert one.identity.shape == two.identity.shape == (4, D)
    network = nn.Sequential(nn.Linear(3, D), one, two, nn.Linear(D, 2))
    network(torch.randn(2, 13, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
