"""Inf reads a chunk behind its prefix in any pieces, many rows beside each other, with all gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.layers.transformer_psm import TransformerInf
from scannable.nn import KVCache

C, D = 4, 8


def inf_of(**changes: Any) -> TransformerInf:
    torch.manual_seed(0)
    return TransformerInf(sc.TransformerPSMConfig(5, width=D, chunk_length=C, heads=2, **changes)).double()


def chunks_of(rows: int, *chunks: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(rows, each * C, D, dtype=torch.float64, requires_grad=True) for each in chunks]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, C), min_size=2, max_size=2), min_size=1, max_size=5))
def test_a_chunk_read_in_any_pieces_is_the_chunk(turns: list[list[int]]) -> None:
    inf = inf_of()
    prefix, x = chunks_of(2, 1, 1)
    truth = inf(prefix, x)
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            cache, at = inf.begin(prefix), [0, 0]
            outputs: list[Tensor] = []
            expected: list[Tensor] = []
            for turn in turns:
                counts = [min(count, C - start) for count, start in zip(turn, at, strict=True)]
                m = max(counts)
                piece = torch.full((2, m, D), float("nan"), dtype=torch.float64)
                for i, (count, start) in enumerate(zip(counts, at, strict=True)):
                    piece = piece.clone()
                    piece[i, :count] = x[i, start : start + count]
                y, cache = inf.read(piece, cache, counts)
                for i, (count, start) in enumerate(zip(counts, at, strict=True)):
                    outputs.append(y[i, :count])
                    expected.append(truth[i, start : start + count])
                    at[i] += count
            torch.testing.assert_close(torch.cat(outputs), torch.cat(expected), rtol=1e-10, atol=1e-10)
            assert cache.lengths == (C + at[0], C + at[1])
        if recording and any(at):
            inputs = [prefix, x, *inf.parameters()]
            found = torch.autograd.grad(torch.cat(outputs).sin().sum(), inputs, materialize_grads=True)
            wanted = torch.autograd.grad(
                torch.cat(expected).sin().sum(), inputs, materialize_grads=True, retain_graph=True
            )
            for mine, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_reading_returns_a_new_cache_while_autograd_records_and_the_same_one_otherwise() -> None:
    inf = inf_of()
    prefix, x = chunks_of(2, 1, 1)
    cache = inf.begin(prefix)
    _, behind = inf.read(x[:, :2], cache)
    assert behind is not cache and (cache.lengths, behind.lengths) == ((C, C), (C + 2, C + 2))
    with torch.no_grad():
        cache = inf.begin(prefix)
        _, behind = inf.read(x[:, :2], cache)
    assert behind is cache and cache.nbytes == inf.cache_nbytes(2)


def test_a_used_cache_begins_anew_in_its_own_buffers() -> None:
    inf = inf_of()
    prefix, x, other = chunks_of(2, 1, 1, 1)
    with torch.no_grad():
        used = inf.begin(prefix)
        inf.read(x, used)
        buffers = used.keys[0].data_ptr()
        cache = inf.begin(other, reuse=used)
        y, _ = inf.read(x, cache)
        assert cache.keys[0].data_ptr() == buffers
        torch.testing.assert_close(y, inf(other, x), rtol=1e-10, atol=1e-10)
    assert inf.begin(prefix, reuse=cache) is not cache


def test_a_cache_is_stored_with_the_state_that_holds_it(tmp_path: Path) -> None:
    from scannable.models.psm_state import ChunkBuffers, PSMState

    inf = inf_of()
    prefix, x = chunks_of(2, 1, 1)
    with torch.no_grad():
        cache = inf.begin(prefix)
        inf.read(x[:, :3], cache, [3, 1])
    state = PSMState(0, sc.empty(torch.zeros(1)), ChunkBuffers(torch.zeros(2, C, dtype=torch.int64), cache))
    sc.save_state(state, tmp_path / "state")
    loaded = sc.load_state(tmp_path / "state").buffers.cache
    assert isinstance(loaded, KVCache) and loaded.lengths == (C + 3, C + 1)
    with torch.no_grad():
        found, _ = inf.read(x[:, 3:], loaded, [1, 1])
        torch.testing.assert_close(found[:1], inf(prefix, x)[:1, 3:], rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_chunk_has_no_more_positions_than_its_length() -> None:
    inf = inf_of()
    prefix, x = chunks_of(1, 1, 2)
    with pytest.raises(ValueError, match="12 positions do not fit a cache of 8"):
        inf.read(x, inf.begin(prefix))
