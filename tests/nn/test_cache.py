"""A cache is a window read in pieces: any pieces, rows at any lengths, with all gradients."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from scannable.nn import Continuation, KVCache, Transformer
from windows import WIDTH, WINDOW, every_option, make, rows_of

Turns = list[list[int]]
"""How many positions each row reads, call by call."""


def turns_of(rows: int, window: int) -> st.SearchStrategy[Turns]:
    """Calls in which every row takes its own number of positions, none too many in all."""

    def within(turns: Turns) -> Turns:
        left, kept = [window] * rows, Turns()
        for turn in turns:
            kept.append([min(count, room) for count, room in zip(turn, left, strict=True)])
            left = [room - count for count, room in zip(kept[-1], left, strict=True)]
        return kept

    most = st.sampled_from([0, 1, 1, 2, 5, window])
    return st.lists(st.lists(most, min_size=rows, max_size=rows), min_size=1, max_size=6).map(within)


def read(
    model: Any, rows: Sequence[Tensor], turns: Turns, cache: KVCache, behind: float = float("nan")
) -> list[Tensor]:
    """Each row's outputs; what is behind the positions that count is `behind`."""
    at, outputs = [0] * len(rows), [list[Tensor]() for _ in rows]
    for counts in turns:
        m = max(counts)
        pieces = [row[start : start + count] for row, start, count in zip(rows, at, counts, strict=True)]
        padded = [torch.cat((piece, piece.new_full((m - len(piece), WIDTH), behind))) for piece in pieces]
        y = model(torch.stack(padded), cache=cache, counts=counts)
        for i, count in enumerate(counts):
            outputs[i].append(y[i, :count])
            at[i] += count
    assert cache.lengths == tuple(at)
    return [torch.cat(each) for each in outputs]


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    weighted = torch.stack([(y * torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum() for y in outputs])
    return list(torch.autograd.grad(weighted.sum(), inputs, materialize_grads=True))


@every_option
@settings(max_examples=25, deadline=None)
@given(turns=turns_of(3, WINDOW))
def test_any_pieces_of_any_rows_are_the_whole_windows_with_all_gradients(options: Any, turns: Turns) -> None:
    model = make(**options)
    lengths = [sum(each) for each in zip(*turns, strict=True)]
    rows = rows_of(*lengths)
    outputs = read(model, rows, turns, model.new_cache(3))
    truth = [model(row[None])[0] if len(row) else row for row in rows]
    inputs = [*rows, *model.parameters()]
    for mine, theirs in zip(outputs, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    if any(lengths):
        for mine, theirs in zip(gradients(outputs, inputs), gradients(truth, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        written = read(model, rows, turns, model.new_cache(3))
    for mine, theirs in zip(written, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@every_option
@pytest.mark.parametrize("window", [1, 7, 63, 65])
def test_windows_of_awkward_lengths(options: Any, window: int) -> None:
    model, rows = make(window, **options), rows_of(window, window // 2)
    turns = [[min(1, window // 2)] * 2, [window // 2, 0], [0, 0]]
    turns[2] = [window - sum(turn[0] for turn in turns), window // 2 - turns[0][1]]
    outputs = read(model, rows, turns, model.new_cache(2))
    for mine, row in zip(outputs, rows, strict=True):
        torch.testing.assert_close(mine, model(row[None])[0] if len(row) else row, rtol=1e-10, atol=1e-10)


@every_option
@pytest.mark.parametrize("kept", [0, 1, 3, 7])
@pytest.mark.parametrize("split", [(7,), (3, 4), (6, 1)])
def test_positions_that_are_not_kept_are_still_carried(options: Any, kept: int, split: tuple[int, ...]) -> None:
    model, (row,) = make(**options), rows_of(12)
    cache = model.new_cache(1)
    truth = model(row[None])
    last = row[None, :0]
    for piece in row[None, :7].split(split, 1):
        last = model(piece, cache=cache, kept=min(kept, piece.shape[1]))
    torch.testing.assert_close(last, truth[:, 7 - last.shape[1] : 7], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(row[None, 7:], cache=cache), truth[:, 7:], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(row[None], kept=kept), truth[:, 12 - kept :], rtol=1e-10, atol=1e-10)


@every_option
@settings(max_examples=15, deadline=None)
@given(turns=turns_of(2, WINDOW - 3))
def test_a_memory_in_a_cache_is_the_memory_of_a_window(options: Any, turns: Turns) -> None:
    model = make(**options)
    lengths = [sum(each) for each in zip(*turns, strict=True)]
    memory, rows = torch.stack(rows_of(3, 3)), rows_of(*lengths)
    cache = model.new_cache(2)
    model.remember(memory, cache)
    at = [0, 0]
    outputs = [list[Tensor]() for _ in rows]
    for counts in turns:
        padded = torch.full((2, max(counts), WIDTH), float("nan"), dtype=torch.float64)
        for i, count in enumerate(counts):
            padded[i, :count] = rows[i][at[i] : at[i] + count]
        y = model(padded, cache=cache, counts=counts)
        for i, count in enumerate(counts):
            outputs[i].append(y[i, :count])
            at[i] += count
    found = [torch.cat(each) for each in outputs]
    truth = [model(row[None], memory=memory[i : i + 1])[0] if len(row) else row for i, row in enumerate(rows)]
    for mine, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    if any(lengths):
        inputs = [memory, *rows, *model.parameters()]
        for mine, theirs in zip(gradients(found, inputs), gradients(truth, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_while_autograd_records_an_older_branch_keeps_its_values() -> None:
    model, (row,) = make(), rows_of(9)
    cache = model.new_cache(1)
    model(row[None, :4], cache=cache)
    held = [one.clone() for one in cache.keys]
    futures = []
    for more in (row[4:9], row[4:6]):
        branch = cache.branch()
        futures.append(model(more[None], cache=branch)[0, -1])
        assert branch.lengths == (4 + len(more),) and cache.lengths == (4,)
    assert all(torch.equal(a, b) for a, b in zip(cache.keys, held, strict=True))
    for y, end in zip(futures, (9, 6), strict=True):
        torch.testing.assert_close(y, model(row[None, :end])[0, -1], rtol=1e-10, atol=1e-10)


def test_decoding_goes_on_from_a_recorded_cache_and_leaves_its_graph_alone() -> None:
    model, (row,) = make(), rows_of(9)
    cache = model.new_cache(1)
    y = model(row[None, :4], cache=cache)
    for other in (cache.branch(), cache.detach()):
        with torch.no_grad():
            decoded = model(row[None, 4:], cache=other)
        torch.testing.assert_close(decoded, model(row[None])[:, 4:], rtol=1e-10, atol=1e-10)
        buffers = other.keys[0].data_ptr()
        with torch.no_grad():
            model(row[None, :1], cache=other)
        assert other.keys[0].data_ptr() == buffers and not other.keys[0].requires_grad
    y.sum().backward()
    assert row.grad is not None and bool(row.grad[:4].any())


def test_weights_alone_have_their_gradients_through_a_cache() -> None:
    model, (row,) = make(), rows_of(9)
    x, weights = row.detach()[None], list(model.parameters())
    cache = model.new_cache(1)
    pieces = torch.cat([model(part, cache=cache) for part in x.split((4, 1, 4), 1)], 1)
    for mine, theirs in zip(gradients([pieces], weights), gradients([model(x)], weights), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_stop_where_a_cache_is_detached() -> None:
    model, (row,) = make(), rows_of(6)
    cache = model.new_cache(1)
    model(row[None, :4], cache=cache)
    (gradient,) = torch.autograd.grad(model(row[None, 4:], cache=cache.detach()).sum(), row)
    assert not gradient[:4].any() and bool(gradient[4:].any())
    (gradient,) = torch.autograd.grad(model(row[None, 4:], cache=cache).sum(), row)
    assert bool(gradient[:4].any())


def test_decoding_writes_into_its_buffers() -> None:
    model, rows = make(), rows_of(9, 9)
    cache = model.new_cache(2)
    places = [one.data_ptr() for one in (*cache.keys, *cache.values)]
    with torch.no_grad():
        for counts in ([2, 3], [1, 1], [0, 4]):
            model(torch.stack(rows)[:, : max(counts)], cache=cache, counts=counts)
    assert places == [one.data_ptr() for one in (*cache.keys, *cache.values)]


def test_a_cache_of_inference_mode_goes_on_outside_it() -> None:
    model, (row,) = make(), rows_of(6)
    truth = model(row[None])
    for recording in (False, True):
        with torch.inference_mode():
            cache = model.new_cache(1)
            model(row[None, :3], cache=cache)
        with torch.set_grad_enabled(recording):
            for i in range(3, 6):
                y = model(row[None, i : i + 1], cache=cache)
                torch.testing.assert_close(y[:, 0], truth[:, i], rtol=1e-10, atol=1e-10)


def test_frozen_weights_decode_in_place_without_no_grad() -> None:
    model, (row,) = make().requires_grad_(False), rows_of(6)
    cache = model.new_cache(1)
    place = cache.keys[0].data_ptr()
    model(row.detach()[None], cache=cache)
    assert cache.keys[0].data_ptr() == place and not cache.recorded


@every_option
@pytest.mark.parametrize("recording", [False, True])
def test_rows_are_taken_put_and_joined(recording: bool, options: Any) -> None:
    model, rows = make(**options), rows_of(5, 3, 8)
    with torch.set_grad_enabled(recording):
        alone = [model.new_cache(1) for _ in rows]
        for row, cache in zip(rows, alone, strict=True):
            model(row[None, : len(row) - 2], cache=cache)
        joined = KVCache.cat(alone)
        assert joined.lengths == (3, 1, 6) and joined.batch_size == 3
        assert joined.nbytes == sum(one.nbytes for one in alone) == model.cache_nbytes(3)
        joined = joined.take([2, 0, 1, 0])
        joined.put([1, 3], KVCache.cat([alone[1], alone[2]]))
        assert joined.lengths == (6, 1, 1, 6)
        order = [2, 1, 1, 2]
        y = model(torch.stack([rows[i][-2:] for i in order]), cache=joined)
    inputs = [*rows, *model.parameters()]
    truth = [model(rows[i][None])[0, -2:] for i in order]
    for mine, theirs in zip(y, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    if recording:
        for mine, theirs in zip(gradients(list(y), inputs), gradients(truth, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    assert [one.lengths for one in alone] == [(3,), (1,), (6,)]


def test_copies_are_independent_and_keep_their_dtype() -> None:
    model, (row,) = make(), rows_of(6)
    with torch.no_grad():
        cache = model.new_cache(1)
        model(row[None, :3], cache=cache)
        copy, half = cache.clone(), cache.to(torch.float32)
        model(row[None, 3:], cache=copy)
        assert cache.lengths == (3,) and not cache.keys[0][:, :, 3:].any()
        assert half.keys[0].dtype == torch.float32 and half.nbytes * 2 == cache.nbytes
        assert cache.to(torch.float64).keys[0] is cache.keys[0]


@pytest.mark.parametrize("ragged", [False, True])
def test_autocast_stores_into_buffers_of_the_weights(ragged: bool) -> None:
    model, rows = make().float(), [row.detach().float() for row in rows_of(6, 6)]
    for recording in (False, True):
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(recording):
            cache = model.new_cache(2)
            model(torch.stack(rows), cache=cache, counts=[6, 5] if ragged else None)
            assert cache.keys[0].dtype == torch.float32 and cache.lengths == (6, 5 if ragged else 6)


def test_more_room_keeps_what_is_there() -> None:
    cache = KVCache.empty(1, 2, 1, 2, 3, torch.zeros(()))
    new = Continuation(cache, 2)
    keys, _ = new.store(0, torch.ones(2, 1, 2, 3), torch.ones(2, 1, 2, 3))
    new.finish()
    cache.make_room(5)
    assert cache.capacity == 5 and torch.equal(cache.keys[0][:, :, :2], keys) and not cache.keys[0][:, :, 2:].any()


@pytest.mark.usefixtures("shapes_unchecked")
def test_what_does_not_fit_is_refused() -> None:
    model = make()
    cache = model.new_cache(2)
    x = torch.zeros(2, 13, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match="13 positions do not fit a cache of 12"):
        model(x, cache=cache)
    with pytest.raises(ValueError, match=r"counts \(1, 3\) for 2 rows of 2 positions; each row has one, of 0 to 2"):
        model(x[:, :2], cache=cache, counts=[1, 3])
    with pytest.raises(ValueError, match=r"counts \(1,\) for 2 rows"):
        model(x[:, :2], cache=cache, counts=[1])
    with torch.no_grad():
        model(x[:, :8], cache=cache, counts=[8, 1])
    with pytest.raises(ValueError, match="13 positions do not fit a cache of 12"):
        model(x[:, :5], cache=cache)
    assert cache.lengths == (8, 1)
    with pytest.raises(ValueError, match="no cache: lengths"):
        KVCache(cache.keys, cache.values, (13, 0))
    with pytest.raises(ValueError, match="no cache: lengths"):
        KVCache(cache.keys, cache.values, (1,))
    with pytest.raises(ValueError, match="do not fit 1 rows"):
        cache.put([0], make(window=5).new_cache(1))
    with pytest.raises(ValueError, match="rows of different shapes"):
        KVCache.cat([cache, make(window=5).new_cache(1)])


def test_dropout_and_a_module_that_is_wrapped_still_work() -> None:
    torch.manual_seed(0)
    model = Transformer(width=8, layers=1, heads=2, window=6, causal=True, dropout=0.5)
    cache = model.new_cache(1)
    assert not torch.equal(model(torch.ones(1, 3, 8), cache=cache), model.eval()(torch.ones(1, 3, 8)))
    called: list[nn.Module] = []
    block: Any = model.blocks[0]
    block.attention.query.register_forward_hook(lambda module, *_: called.append(module))
    with torch.no_grad():
        model(torch.ones(1, 1, 8), cache=cache)
    assert called
