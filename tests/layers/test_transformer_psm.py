"""Inf reads a chunk behind its prefix in any pieces, many rows beside each other, with all gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.layers.psm_choices import PSMChoices
from scannable.layers.transformer_psm import TransformerInf
from scannable.nn import KVCache

C, D = 4, 8


def inf_of(**changes: Any) -> TransformerInf:
    torch.manual_seed(0)
    return TransformerInf(D, 2, PSMChoices(chunk_length=C, **changes)).double()


def chunks_of(rows: int, *chunks: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(rows, each * C, D, dtype=torch.float64, requires_grad=True) for each in chunks]


ALL = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "convolution": 3}
FORMS: dict[str, dict[str, Any]] = {
    "paper": {},
    "memory": {"prefix": "memory"},
    "recent": {"recent": 1},
    "modern": ALL,
    "memory and recent": {"prefix": "memory", "recent": 2},
    "all": {**ALL, "prefix": "memory", "recent": 1},
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@every_form
@settings(max_examples=12, deadline=None)
@given(turns=st.lists(st.lists(st.integers(0, C), min_size=2, max_size=2), min_size=1, max_size=5))
def test_a_chunk_read_in_any_pieces_is_the_chunk(form: Any, turns: list[list[int]]) -> None:
    inf, k = inf_of(**form), form.get("recent", 0)
    prefix, whole = chunks_of(2, 1, 1 + k)
    recent, x = whole[:, : k * C], whole[:, k * C :]
    truth = inf(prefix, whole)
    assert truth.shape == (2, C, D)
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            cache, at = inf.begin(prefix, recent if k else None), [0, 0]
            outputs: list[Tensor] = []
            expected: list[Tensor] = []
            for turn in turns:
                counts = [min(count, C - start) for count, start in zip(turn, at, strict=True)]
                piece = torch.full((2, max(counts), D), float("nan"), dtype=torch.float64)
                for i, (count, start) in enumerate(zip(counts, at, strict=True)):
                    piece[i, :count] = x[i, start : start + count]
                y, cache = inf.read(piece, cache, counts)
                for i, (count, start) in enumerate(zip(counts, at, strict=True)):
                    outputs.append(y[i, :count])
                    expected.append(truth[i, start : start + count])
                    at[i] += count
            torch.testing.assert_close(torch.cat(outputs), torch.cat(expected), rtol=1e-10, atol=1e-10)
            assert cache.lengths == ((1 + k) * C + at[0], (1 + k) * C + at[1])
            assert cache.nbytes == inf.cache_nbytes(2)
        if recording and any(at):
            inputs = [prefix, whole, *inf.parameters()]
            found = torch.autograd.grad(torch.cat(outputs).sin().sum(), inputs, materialize_grads=True)
            wanted = torch.autograd.grad(
                torch.cat(expected).sin().sum(), inputs, materialize_grads=True, retain_graph=True
            )
            for mine, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@every_form
def test_outputs_see_prefix_recent_chunks_and_what_is_before_them(form: Any) -> None:
    inf, k = inf_of(**form), form.get("recent", 0)
    prefix, whole = chunks_of(1, 1, 1 + k)
    for j in range(C):
        seen, looked = torch.autograd.grad(inf(prefix, whole)[:, j].sin().sum(), (prefix, whole))
        assert bool(seen.any(-1).all())
        assert bool(looked[:, : k * C + j + 1].any(-1).all()) and not looked[:, k * C + j + 1 :].any()


def test_a_memory_is_half_of_the_work() -> None:
    from scannable.spd.counters import CountedWork

    work = {}
    for prefix in ("carried", "memory"):
        inf = inf_of(prefix=prefix, inf_layers=8)
        with CountedWork() as counted, torch.no_grad():
            inf(*chunks_of(4, 1, 1))
        work[prefix] = counted.operations
    assert work["memory"] < 0.62 * work["carried"]


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


@pytest.mark.parametrize("form", [{}, FORMS["modern"], FORMS["all"]], ids=["paper", "modern", "all"])
def test_a_used_cache_begins_anew_in_its_own_buffers(form: Any) -> None:
    inf = inf_of(**{**form, "recent": 0})
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
    from scannable.layers.psm_state import ChunkBuffers, PSMState

    inf = inf_of()
    prefix, x = chunks_of(2, 1, 1)
    with torch.no_grad():
        cache = inf.begin(prefix)
        inf.read(x[:, :3], cache, [3, 1])
    state = PSMState((3, 1), (sc.empty(torch.zeros(1)),), ChunkBuffers(torch.zeros(2, C), None, cache, (3, 1)))
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix": "none"}, "prefix='none' is neither 'carried' nor 'memory'"),
        ({"recent": -1}, "recent=-1 must be a whole number of chunks, 0 or above"),
        ({"recent": True}, "recent=True must be a whole number of chunks"),
        ({"positions": "rotary", "width": 6, "heads": 2}, "positions='rotary' rotates pairs of channels"),
        ({"positions": "rotary", "width": 12, "heads": 2, "agg_heads": 4}, "width=12 and agg_heads=4 make heads of 3"),
        ({"positions": "rotary", "sinusoids": True}, "sinusoids=True needs learned positions"),
        ({"norm": "none"}, "norm='none' is none of 'layer', 'rms'"),
        ({"convolution": 1}, "convolution=1 must be 0 for none"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sc.TransformerPSMConfig(5, **changes)
