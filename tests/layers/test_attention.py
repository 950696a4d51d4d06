"""Attention is one function: in parallel, in any ragged pieces, and written down plainly."""

from collections.abc import Iterator
from math import cos, sin
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import scannable as sc
from scannable.layers import attention as module
from scannable.layers.attention import Attention
from scannable.layers.attention_state import AttentionState

WIDTH = 8
WINDOWS = [1, 7, 63, 65, None]
OPTIONS: dict[str, dict[str, Any]] = {
    "rotary": {},
    "plain": {"positions": "none", "bias": False},
    "everything": {"qk_norm": True, "convolution": 3},
}
each_window = pytest.mark.parametrize("window", WINDOWS)
each_kind = pytest.mark.parametrize("kind", OPTIONS)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_of(window: int | None, kind: str = "rotary", **changes: Any) -> Attention:
    """A layer away from its start, where gains are 1 and biases 0."""
    torch.manual_seed(0)
    layer = Attention(WIDTH, 2, window=window, **(OPTIONS[kind] | changes))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def plain(layer: Attention, x: Tensor) -> Tensor:
    """One row (n, d), by loops over positions and heads."""
    part, n, size = layer.attention, len(x), layer.size

    def convolve(short: Any, rows: list[Tensor]) -> list[Tensor]:
        if short is None:
            return rows
        last, weight = short.length - 1, short.weight[:, 0]
        return [
            row + sum((weight[:, last - back] * rows[t - back] for back in range(min(last, t) + 1)), torch.zeros(()))
            for t, row in enumerate(rows)
        ]

    def turn(vector: Tensor, t: int) -> Tensor:
        if not layer.rotary:
            return vector
        turned = list(vector)
        for i in range(size // 2):
            angle = t * 10_000.0 ** (-2 * i / size)
            a, b = vector[i], vector[i + size // 2]
            turned[i], turned[i + size // 2] = a * cos(angle) - b * sin(angle), a * sin(angle) + b * cos(angle)
        return torch.stack(turned)

    def normed(vector: Tensor) -> Tensor:
        eps = torch.finfo(torch.float64).eps
        return vector if part.gain is None else vector / (vector.square().mean() + eps).sqrt()

    rows = convolve(layer.convolution, list(x))
    queries = convolve(part.query_convolution, [part.query(row) for row in rows])
    both = convolve(part.key_value_convolution, [part.key_value(row) for row in rows])
    outputs = []
    for t in range(n):
        first = 0 if layer.window is None else max(0, t - layer.window + 1)
        heads = []
        for h in range(layer.heads):
            channels = slice(h * size, (h + 1) * size)
            query = turn(normed(queries[t][channels]) * (1 if part.gain is None else part.gain[h]), t)
            keys = [turn(normed(both[s][:WIDTH][channels]), s) for s in range(first, t + 1)]
            weights = torch.stack([query @ key / size**0.5 for key in keys]).softmax(0)
            values = [both[s][WIDTH:][channels] for s in range(first, t + 1)]
            heads.append(sum((w * v for w, v in zip(weights, values, strict=True)), torch.zeros(())))
        outputs.append(part.out(torch.cat(heads)))
    return torch.stack(outputs)


def assert_close(found: Tensor, expected: Tensor, what: str = "") -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, msg=lambda text: f"{what}: {text}")


def gradients(y: Tensor, layer: Attention, *inputs: Tensor) -> list[Tensor]:
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad((y * weight).sum(), [*inputs, *layer.parameters()], materialize_grads=True))


def in_pieces(layer: Attention, x: Tensor, cuts: list[list[int]], *, noise: float = float("nan")) -> tuple[Tensor, Any]:
    """Every row in its own pieces: `cuts[j]` says how many positions each row gets in call j. Padding is noise."""
    b = len(x)
    state, done, found = layer.initial_state(b), [0] * b, [[] for _ in range(b)]
    for counts in cuts:
        longest = max(counts)
        piece = torch.stack(
            [F.pad(x[i, done[i] : done[i] + m], (0, 0, 0, longest - m), value=noise) for i, m in enumerate(counts)]
        )
        y, state = layer.extend(piece, state, lengths=counts)
        for i, m in enumerate(counts):
            found[i].append(y[i, :m])
            done[i] += m
        assert state.positions == tuple(done)
    return torch.stack([torch.cat(rows) for rows in found]), state


# One function.


@each_kind
@each_window
def test_in_parallel_it_is_the_plain_loop_with_all_gradients(window: int | None, kind: str) -> None:
    layer, x = layer_of(window, kind), torch.randn(1, 40 if window != 63 else 70, WIDTH, requires_grad=True)
    found, expected = layer(x), plain(layer, x[0])[None]
    assert_close(found, expected)
    for name, one, other in zip(
        ["x", *dict(layer.named_parameters())], gradients(found, layer, x), gradients(expected, layer, x), strict=True
    ):
        assert_close(one, other, name)


@pytest.mark.parametrize("n", [1, 7, 31, 32, 33, 63, 64, 65, 66, 200])
@each_window
def test_blocks_of_time_are_a_band(window: int | None, n: int) -> None:
    layer, x = layer_of(window), torch.randn(2, n, WIDTH)
    keys, values = layer.attention.keys_and_values(x, layer.rotation((0,), n))
    queries = layer.attention.queries(x, n, layer.rotation((0,), n), None, 0)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    far = (distance < 0) | (distance >= (window or n))
    scores = (queries @ keys.mT / layer.size**0.5).masked_fill(far, float("-inf"))
    expected = layer.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
    assert_close(layer(x), expected)


@st.composite
def ragged(draw: st.DrawFn) -> list[list[int]]:
    """How many positions each of three rows gets in each call; all get 70 in the end."""
    rows = []
    calls = draw(st.integers(1, 5))
    for _ in range(3):
        cuts = sorted(draw(st.lists(st.integers(0, 70), min_size=calls - 1, max_size=calls - 1)))
        rows.append([b - a for a, b in zip([0, *cuts], [*cuts, 70], strict=True)])
    return [list(counts) for counts in zip(*rows, strict=True)]


@each_kind
@each_window
@settings(max_examples=3, deadline=None)
@given(cuts=ragged())
@example(cuts=[[20, 3, 0], [0, 66, 1], [50, 1, 69]])
def test_any_ragged_pieces_are_the_whole_with_all_gradients(
    cuts: list[list[int]], kind: str, window: int | None
) -> None:
    torch.set_default_dtype(torch.float64)
    layer, x = layer_of(window, kind), torch.randn(3, 70, WIDTH, requires_grad=True)
    whole = layer(x)
    y, state = in_pieces(layer, x, cuts)
    assert_close(y, whole)
    for one, other in zip(gradients(y, layer, x), gradients(whole, layer, x), strict=True):
        assert_close(one, other)
    with torch.no_grad():
        streamed, after = in_pieces(layer, x, cuts)
    assert_close(streamed, whole)
    assert after.nbytes == state.nbytes == layer.state_nbytes(70, 3)


@each_kind
@each_window
def test_gradients_go_through_what_a_state_holds(window: int | None, kind: str) -> None:
    layer, x = layer_of(window, kind), torch.randn(2, 20, WIDTH)
    _, state = layer.extend(x[:, :9], layer.initial_state(2))
    held = [tensor.detach().clone().requires_grad_() for tensor in state.tensors()]
    given_ = iter(held)
    y, _ = layer.extend(x[:, 9:], state.map(lambda _: next(given_)))
    step = 1e-6
    found = gradients(y, layer, *held)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    for place, tensor in enumerate(held):
        if not tensor.numel():
            continue
        direction = torch.randn(tensor.shape)
        outputs = []
        for sign in (1, -1):
            moved = iter([t + sign * step * direction if i == place else t for i, t in enumerate(held)])
            with torch.no_grad():
                outputs.append(layer.extend(x[:, 9:], state.map(lambda _: next(moved)))[0])  # noqa: B023
        slope = ((outputs[0] - outputs[1]) * weight).sum() / (2 * step)
        torch.testing.assert_close((found[place] * direction).sum(), slope, rtol=1e-6, atol=1e-7)


# Rows of different lengths, documents in a row.


@each_kind
@each_window
def test_what_is_behind_the_length_of_a_row_never_matters(window: int | None, kind: str) -> None:
    layer, lengths = layer_of(window, kind), [80, 0, 65, 1]
    x = torch.randn(4, 90, WIDTH)
    x[torch.arange(90) >= torch.tensor(lengths)[:, None]] = float("nan")
    x.requires_grad_()
    y = layer(x, lengths=lengths)
    _, state = layer.extend(x, layer.initial_state(4), lengths=torch.tensor(lengths))
    assert state.positions == tuple(lengths)
    whole = []
    for i, n in enumerate(lengths):
        if n:
            whole.append(layer(x[i : i + 1, :n]))
            assert_close(y[i : i + 1, :n], whole[-1])
    counted = [y[i, :n] for i, n in enumerate(lengths) if n]
    found, expected = (gradients(torch.cat(rows), layer, x) for rows in (counted, [one[0] for one in whole]))
    assert all(bool(one.isfinite().all()) for one in found)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@each_window
def test_documents_in_a_row_are_as_if_alone(window: int | None) -> None:
    layer, x = layer_of(window, "everything"), torch.randn(2, 90, WIDTH)
    y = layer(x, starts=[[0, 5, 71], [33]])
    for row, begin, end in ((0, 0, 5), (0, 5, 71), (0, 71, 90), (1, 0, 33), (1, 33, 90)):
        assert_close(y[row, begin:end], layer(x[row : row + 1, begin:end])[0])


@each_window
def test_no_position_looks_ahead_nor_further_back_than_its_window(window: int | None) -> None:
    layer, x = layer_of(window), torch.randn(1, 80, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, 71].sum(), x)
    reached = (gradient[0].abs().amax(-1) > 0).nonzero().flatten().tolist()
    assert reached == list(range(0 if window is None else 72 - window, 72))


@pytest.mark.parametrize("window", [7, None])
def test_rotary_positions_go_on_beyond_every_table(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(window), torch.randn(2, 30, WIDTH)
    whole = layer(x)
    monkeypatch.setattr(module, "LONGEST_TABLE", 8)
    module._rotation.cache_clear()
    y, _ = in_pieces(layer, x, [[3, 5], [20, 5], [7, 20]])
    module._rotation.cache_clear()
    assert_close(y, whole)


# States.


@each_kind
@each_window
def test_rows_are_joined_taken_out_and_forked_wherever_they_are(window: int | None, kind: str) -> None:
    layer, x, more = layer_of(window, kind), torch.randn(3, 70, WIDTH), torch.randn(3, 5, WIDTH)
    counts = [70, 0, 9]
    with torch.no_grad():
        alone = [layer.extend(x[i : i + 1, :n], layer.initial_state(1))[1] for i, n in enumerate(counts)]
        together = sc.join(alone)
        assert together.positions == (70, 0, 9) and together.nbytes == layer.state_nbytes(70, 3)
        picked = together.select([2, 0, 2])
        assert picked.positions == (9, 70, 9)
        expected = [layer.extend(more[i : i + 1], alone[i].fork())[0] for i in range(3)]
        fork = together.fork()
        y, _ = layer.extend(more, together)
        assert_close(y, torch.cat(expected))
        assert_close(layer.extend(more, fork)[0], y)
        y, _ = layer.extend(more[[2, 0, 1]], picked)
        assert_close(y[:2], torch.cat(expected)[[2, 0]])
        for i, one in enumerate(alone):
            # In memory of their own: who went on has changed nobody else.
            assert_close(layer.extend(more[i : i + 1], one)[0], expected[i])


def test_a_row_that_is_taken_out_holds_no_room_for_the_others() -> None:
    layer = layer_of(None)
    _, state = layer.extend(torch.randn(3, 90, WIDTH), layer.initial_state(3), lengths=[90, 5, 0])
    for row, n in enumerate([90, 5, 0]):
        assert state.row(row).nbytes == layer.state_nbytes(n)
    assert state.row(1).nbytes == 2 * 8 * WIDTH * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_window
def test_the_formula_counts_the_bytes_of_the_state(window: int | None, dtype: torch.dtype) -> None:
    layer = layer_of(window, "everything").to(dtype)
    for batch in (1, 3):
        state = layer.initial_state(batch)
        for m in (0, 1, 1, 3, 20, 1):
            with torch.no_grad():
                _, state = layer.extend(torch.randn(batch, m, WIDTH, dtype=dtype), state)
            assert state.nbytes == layer.state_nbytes(state.position, batch)
            places = (window - 1) if window else {0: 0, 1: 1, 2: 2, 5: 8, 25: 32, 26: 32}[state.position]
            carried = 2 * (WIDTH + WIDTH + 2 * WIDTH)
            assert state.nbytes == batch * (2 * places * WIDTH + carried) * dtype.itemsize


@pytest.mark.parametrize("window", [1, 7])
def test_a_window_keeps_nothing_else_alive(window: int) -> None:
    layer = layer_of(window, "everything")
    with torch.no_grad():
        _, state = layer.extend(torch.randn(2, 500, WIDTH), layer.initial_state(2))
    for tensor in state.tensors():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_no_mask_is_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, sizes, masks = layer_of(64), list[int](), list[int]()
    real = F.scaled_dot_product_attention

    def counted(queries: Tensor, keys: Tensor, *rest: Any, attn_mask: Tensor | None = None, **more: Any) -> Tensor:
        sizes.append(queries.shape[0] * queries.shape[1] * queries.shape[2] * keys.shape[2])
        masks.append(0 if attn_mask is None else attn_mask.numel())
        return real(queries, keys, *rest, attn_mask=attn_mask, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    layer(torch.randn(1, 4096, WIDTH))
    assert sizes == [2 * 64 * 64, 2 * (4096 - 64) * 127] and masks == [0, 64 * 127]


def test_full_attention_from_the_start_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen, real = layer_of(None), list[Any](), F.scaled_dot_product_attention

    def counted(*args: Any, **options: Any) -> Tensor:
        seen.append((options["attn_mask"], options["is_causal"]))
        return real(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    x = torch.randn(3, 50, WIDTH)
    layer(x)
    layer(x, lengths=[50, 3, 7])
    layer.extend(x, layer.initial_state(3), lengths=[50, 3, 7])
    assert seen == [(None, True)] * 3


@pytest.mark.parametrize("kind", ["rotary", "everything"])
def test_a_state_that_was_gone_on_from_is_refused(kind: str) -> None:
    layer, x = layer_of(None, kind), torch.randn(1, 3, WIDTH)
    with torch.no_grad():
        _, state = layer.extend(x, layer.initial_state(1))
        _, after = layer.extend(x, state)
    for use in (lambda: layer.extend(x, state), state.fork, lambda: state.select([0]), state.detach):
        with pytest.raises(
            ValueError, match=r"is at position 3, but its buffers have gone on to position 6; .* fork\(\) before"
        ):
            use()
    assert layer.extend(x, after)[1].positions == (9,)


@each_window
def test_with_gradients_nothing_is_written(window: int | None) -> None:
    layer, x = layer_of(window, "everything"), torch.randn(2, 9, WIDTH)
    _, state = layer.extend(x, layer.initial_state(2))
    held = [tensor.clone() for tensor in state.tensors()]
    first, _ = layer.extend(2 * x, state)
    second, _ = layer.extend(2 * x, state)
    assert torch.equal(first, second)
    assert all(torch.equal(*pair) for pair in zip(held, state.tensors(), strict=True))
    with torch.no_grad():
        third, _ = layer.extend(2 * x, state)
    assert_close(third, first)
    gradients(first, layer)


def test_a_step_writes_into_the_room_that_there_is() -> None:
    layer = layer_of(None)
    with torch.no_grad():
        _, state = layer.extend(torch.randn(1, 9, WIDTH), layer.initial_state(1))
        assert isinstance(state, AttentionState)
        keys = state.cache.keys[0]
        for position in range(10, 17):
            _, state = layer.step(torch.randn(1, WIDTH), state)
            assert isinstance(state, AttentionState)
            assert state.position == position and state.cache.keys[0] is keys
        _, state = layer.step(torch.randn(1, WIDTH), state)
    assert isinstance(state, AttentionState)
    assert state.cache.keys[0] is not keys and state.cache.capacity == 32


@pytest.mark.parametrize("other", ["fork", "detach"])
@each_window
def test_a_fork_or_detached_state_and_its_origin_go_their_own_ways(window: int | None, other: str) -> None:
    layer, x, y, z = layer_of(window, "everything"), *torch.randn(3, 1, 6, WIDTH).unbind()
    with torch.no_grad():
        _, mine = layer.extend(x, layer.initial_state(1))
        theirs = getattr(mine, other)()
        # Into the same places, if they share memory.
        _, mine = layer.extend(y[:, :1], mine)
        _, theirs = layer.extend(z[:, :1], theirs)
        assert_close(layer.extend(y[:, 1:], mine)[0], layer(torch.cat((x, y), 1))[:, 7:])
        assert_close(layer.extend(z[:, 1:], theirs)[0], layer(torch.cat((x, z), 1))[:, 7:])


@each_window
def test_an_interrupted_call_leaves_the_state_as_it_was(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(window, "everything"), torch.randn(1, 5, WIDTH)
    with torch.no_grad():
        _, state = layer.extend(x, layer.initial_state(1))
        expected, _ = layer.extend(x, state.fork())
        with monkeypatch.context() as patch:
            patch.setattr(F, "scaled_dot_product_attention", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                layer.extend(-x, state)
        assert_close(layer.extend(x, state)[0], expected)


@each_window
def test_a_state_of_inference_mode_goes_on_outside(window: int | None) -> None:
    layer, x = layer_of(window, "everything"), torch.randn(2, 9, WIDTH)
    expected = layer(x)
    for outside in (torch.no_grad, torch.enable_grad):
        with torch.inference_mode():
            _, state = layer.extend(x[:, :5], layer.initial_state(2))
        with outside():
            y, _ = layer.extend(x[:, 5:], state)
        assert_close(y.detach(), expected[:, 5:].detach())
    gradients(y, layer)


@each_window
def test_truncated_pieces_have_the_gradients_of_the_whole_where_nothing_is_cut(window: int | None) -> None:
    layer, x = layer_of(window), torch.randn(1, 20, WIDTH)
    _, state = layer.extend(x[:, :12], layer.initial_state(1))
    assert all(tensor.requires_grad for tensor in state.tensors() if tensor.numel())
    state = state.detach()
    assert not any(tensor.requires_grad for tensor in state.tensors())
    new = x[:, 12:].clone().requires_grad_()
    y, _ = layer.extend(new, state)
    whole = layer(torch.cat((x[:, :12], new), 1))[:, 12:]
    assert_close(gradients(y, layer, new)[0], gradients(whole, layer, new)[0])


def test_dropout_is_for_training_only() -> None:
    for window in (None, 5):
        layer, x = layer_of(window, dropout=0.5), torch.randn(2, 40, WIDTH)
        assert not torch.equal(layer.train()(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("window", [7, None])
def test_autocast_streams(window: int | None) -> None:
    layer, x = layer_of(window, "everything").float(), torch.randn(2, 30, WIDTH, dtype=torch.float32)
    expected = layer(x).detach()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, state = in_pieces(layer, x, [[20, 3], [10, 27]], noise=0.0)
    assert state.nbytes == layer.state_nbytes(30, 2)
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())


# What is refused.


@pytest.mark.usefixtures("shapes_unchecked")
@each_window
def test_a_state_of_another_layer_or_batch_is_refused(window: int | None) -> None:
    layer, x = layer_of(window), torch.randn(2, 1, WIDTH)
    _, two = layer.extend(torch.randn(2, 70, WIDTH), layer.initial_state(2))
    if window != 1:
        for rows in (1, 3):
            with pytest.raises(ValueError, match=rf"another model or batch made it: .* initial_state\({rows}\)"):
                layer.extend(torch.randn(rows, 1, WIDTH), two)
    with pytest.raises(ValueError, match=r"torch\.float32, expected .* torch\.float64; another model"):
        layer.extend(x, layer_of(window).float().initial_state(2))
    with pytest.raises(ValueError, match="another layer made it"):
        layer.extend(x, layer_of(window, "everything").initial_state(2))
    with pytest.raises(ValueError, match=r"another (layer|model or batch) made it"):
        layer.extend(x, layer_of(None if window else 5).initial_state(2))
    with pytest.raises(TypeError, match="Attention goes on from a state of its initial_state"):
        layer.extend(x, None)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window=0 must be a whole number of at least 1"),
        ({"positions": "learned"}, "positions='learned' is neither 'rotary' nor 'none'; a model adds learned ones"),
        ({"heads": 3}, "width=8 is not a multiple of heads=3"),
        ({"heads": 8}, "positions='rotary' rotates pairs of channels"),
        ({"convolution": 1}, "convolution=1 must be 0 for none"),
        ({"bias": 1}, "bias=1 must be True or False"),
        ({"dropout": 1.0}, r"dropout=1\.0 must lie in \[0, 1\)"),
    ],
)
def test_a_wrong_option_gets_an_answer(options: dict[str, Any], message: str) -> None:
    wrong: dict[str, Any] = {"width": WIDTH, "heads": 2} | options
    with pytest.raises(ValueError, match=message):
        Attention(**wrong)


@each_window
def test_nothing_is_a_piece_too(window: int | None) -> None:
    layer = layer_of(window)
    _, state = layer.extend(torch.randn(2, 5, WIDTH), layer.initial_state(2))
    y, after = layer.extend(torch.randn(2, 0, WIDTH), state)
    assert y.shape == (2, 0, WIDTH) and after.positions == (5, 5)
    y, after = layer.extend(torch.randn(2, 3, WIDTH), state, lengths=[0, 0])
    assert y.shape == (2, 3, WIDTH) and after.positions == (5, 5)
    assert layer(torch.randn(0, 5, WIDTH)).shape == (0, 5, WIDTH)


def test_normed_queries_and_keys_have_no_size_of_their_own() -> None:
    x = torch.randn(2, 9, WIDTH)
    for kind, same in (("everything", True), ("rotary", False)):
        layer = layer_of(None, kind)
        before = layer(x)
        with torch.no_grad():
            layer.attention.query.weight.mul_(5)
            layer.attention.query.bias.mul_(5)
        assert torch.allclose(layer(x), before) is same
