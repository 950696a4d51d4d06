"""A saved state is exactly what was saved, or refused."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import scannable as sc
from scannable.layers.psm_state import ChunkBuffers
from scannable.nn.cache import KVCache
from scannable.storage import tensor_file
from scannable.storage.registry import name_of
from scannable.storage.state_file import FORMAT
from scannable.tasks import GroupTask


def a_model() -> sc.TransformerPSM:
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=8, chunk_length=4, heads=2))


def saved(tmp_path: Path) -> Path:
    model = a_model()
    _, state = model.prefill(torch.randint(13, (1, 30)), model.initial_state(1))
    sc.save_state(state, tmp_path / "stream")
    return tmp_path / "stream"


def test_a_plain_scan_state_of_any_tree_survives(tmp_path: Path) -> None:
    def agg(older: dict[str, Tensor], newer: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: 2 * older[key] + newer[key] for key in older}

    xs = {"a": torch.randn(3, 9, 2), "b": torch.arange(27).view(3, 9)}
    _, state = sc.extend(agg, sc.empty({"a": torch.zeros(2), "b": torch.tensor(0)}), xs, dim=1)
    sc.save_state(state, tmp_path / "scan")
    loaded = sc.load_state(tmp_path / "scan")
    assert (loaded.position, loaded.nbytes) == (9, state.nbytes)
    again, _ = sc.extend(agg, loaded, xs, dim=1)
    truth, _ = sc.extend(agg, state, xs, dim=1)
    assert all(torch.equal(again[key], truth[key]) for key in truth)


@sc.storable
class Pair(NamedTuple):
    """The map x -> 2^rate gain x + bias, with constants of every type."""

    gain: Tensor
    bias: Tensor
    rate: int = 1
    name: str = "ä"
    strict: bool = True
    nothing: None = None
    sizes: tuple[int, ...] = (2, 3)
    weight: float = float("-inf")


@sc.storable
@dataclass(frozen=True)
class Box:
    gain: Tensor
    bias: Tensor
    rate: int = 1
    name: str = "ä"
    strict: bool = True
    nothing: None = None
    sizes: tuple[int, ...] = (2, 3)
    weight: float = float("-inf")
    derived: int = field(init=False, default=5)


@pytest.mark.parametrize("kind", [Pair, Box])
def test_elements_with_constants_are_scanned_saved_and_loaded(tmp_path: Path, kind: Callable[..., Any]) -> None:
    def agg(older: Any, newer: Any) -> Any:
        assert (older.rate, older.name, older.sizes) == (3, "ä", (2, 3))
        return kind(2 * older.gain + 3 * newer.gain, older.bias - newer.bias, rate=newer.rate)

    def plain(older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return 2 * older[0] + 3 * newer[0], older[1] - newer[1]

    gain, bias = torch.arange(11), torch.arange(22.0).view(11, 2)
    truth = sc.scan(plain, (gain, bias), identity=(torch.tensor(0), torch.zeros(2)))
    xs, identity = kind(gain, bias, rate=3), kind(0, torch.zeros(2), rate=3)
    prefixes = sc.scan(agg, xs, identity=identity)
    assert type(prefixes) is kind and torch.equal(prefixes.gain, truth[0]) and torch.equal(prefixes.bias, truth[1])

    cut = 6
    parts = [kind(gain[part], bias[part], rate=3) for part in (slice(0, cut), slice(cut, None))]
    _, state = sc.extend(agg, sc.empty(identity), parts[0])
    sc.save_state(state, tmp_path / "state")
    loaded = sc.load_state(tmp_path / "state")
    assert loaded.identity.weight == float("-inf") and loaded.identity.gain == 0 and loaded.identity.sizes == (2, 3)
    assert loaded.roots[1].rate == 3 and loaded.roots[1].nothing is None and type(loaded.roots[1]) is kind
    later, _ = sc.extend(agg, loaded, parts[1])
    assert torch.equal(later.gain, truth[0][cut:]) and torch.equal(later.bias, truth[1][cut:])


def test_numbers_that_json_has_not_survive(tmp_path: Path) -> None:
    for number in (float("inf"), float("-inf"), 1 - 2j, -0.0, 2**62, True):
        sc.save_state(sc.empty(number), tmp_path / "state")
        found = sc.load_state(tmp_path / "state").identity
        assert type(found) is type(number) and repr(found) == repr(number)
    sc.save_state(sc.empty(float("nan")), tmp_path / "state")
    assert sc.load_state(tmp_path / "state").identity != sc.load_state(tmp_path / "state").identity


def test_two_views_of_one_memory_are_saved_as_what_they_are(tmp_path: Path) -> None:
    """Offset, shape, stride, dtype and the conjugate flag all make another tensor; the same view is stored once."""
    x = torch.randn(6, 6)
    z = torch.complex(x, x + 1)
    views = (x, x.T, x[1:4], x[:3], x.view(36), x.view(torch.int32), z, z.conj(), x)
    sc.save_state(sc.empty(views), tmp_path / "views")
    found = sc.load_state(tmp_path / "views").identity
    for one, view in zip(found, views, strict=True):
        assert one.dtype == view.dtype and torch.equal(one, view.resolve_conj())
    assert found[0] is found[-1]
    assert len(load_file(tmp_path / "views")) == len(views) - 1


def test_every_bit_flip_is_detected(tmp_path: Path) -> None:
    path = saved(tmp_path)
    good = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(sc.StateFileError):
            sc.load_state(path)
    path.write_bytes(good)
    sc.load_state(path)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, 1000, -1, -8])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(
        sc.StateFileError, match=r"stream cannot be read as a saved state: .*truncated, damaged or something"
    ):
        sc.load_state(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(sc.StateFileError, match="a safetensors file of the format None, expected 'scannable-state-2'"):
        sc.load_state(path)
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(sc.StateFileError, match="cannot be read as a saved state"):
        sc.load_state(path)
    path.write_text("hello, I am a text file of some length")
    with pytest.raises(sc.StateFileError, match="cannot be read as a saved state"):
        sc.load_state(path)
    with pytest.raises(FileNotFoundError):
        sc.load_state(tmp_path / "missing")


SCAN = name_of(sc.ScanState)


@pytest.mark.parametrize(
    "structure",
    [
        "",
        "5",
        "NaN",
        "[]",
        '{"kind": "tensor", "items": "t0"}',
        '{"kind": "tensor", "items": ["t0"]}',
        '{"kind": "tensor", "items": "nonesuch"}',
        '{"kind": "dict", "items": [[1, 2, 3]]}',
        '{"kind": "dict", "items": [[[], 2]]}',
        '{"kind": "number", "items": 5}',
        '{"kind": "number", "items": "five"}',
        '{"kind": "subprocess:Popen"}',
        json.dumps({"kind": name_of(GroupTask)}),
        json.dumps({"kind": name_of(sc.PSMState), "positions": "x", "scans": None, "buffers": None}),
        json.dumps({"kind": SCAN, "identity": 0, "position": -5}),
        json.dumps({"kind": SCAN, "identity": 0, "nonsense": 0}),
        json.dumps({"kind": SCAN}),
        '{"kind": "' + SCAN + '", "identity": 0, "identity": 1}',
        '{"kind": "' + SCAN + '", "identity": ' + "[" * 500 + "]" * 500 + "}",
        "[" * 100_000,
        "9" * 5000,
        '{"what": 1}',
    ],
)  # fmt: skip
def test_nonsense_with_a_true_checksum_is_refused(tmp_path: Path, structure: str) -> None:
    path = tmp_path / "crafted"
    tensor_file.write_sealed(path, {"t0": torch.zeros(2)}, {"format": FORMAT, "structure": structure})
    with pytest.raises(sc.StateFileError):
        sc.load_state(path)


class Unknown(NamedTuple):
    x: Tensor


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (sc.empty({1, 2}), r"a ScanState cannot be saved: the state\.identity=\{1, 2\} is a set, which no file can keep"),
        (sc.empty(Unknown(torch.zeros(2))), r"the state\.identity is a Unknown, .*:Unknown is not registered \(@sc\.storable"),
        (sc.empty({Pair(torch.zeros(1), torch.zeros(1)): 1}), "a ScanState cannot be saved: "),
        (sc.empty(2**64), r"identity=18446744073709551616 is out of the range of 64 bits"),
        ({"a": torch.zeros(2)}, "a dict cannot be saved as a state: it has no position and nbytes; a state is what empty"),
        ([sc.empty(0)], "a list cannot be saved as a state"),
        (torch.zeros(3), "a Tensor cannot be saved as a state"),
        (None, "a NoneType cannot be saved as a state"),
        (GroupTask(), "a GroupTask cannot be saved as a state"),
        (KVCache([torch.zeros(1, 1, 1, 1)], [torch.zeros(1, 1, 1, 1)], (0,)), "a KVCache cannot be saved as a state"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_saved_is_named_and_leaves_no_file(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sc.save_state(state, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_state_that_no_step_would_take_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    state = model.initial_state(1)
    _, after = model.step(torch.tensor([1]), state)
    with pytest.raises(
        ValueError,
        match="at position 0, but its buffers have gone on to position 1; use the state that extend, prefill or step",
    ):
        sc.save_state(state, tmp_path / "x")
    batch = sc.join([after, model.initial_state(1)])
    model.step(torch.tensor([1, 2]), batch)
    with pytest.raises(ValueError, match=r"at positions \(1, 0\), but its buffers have gone on to positions \(2, 1\)"):
        sc.save_state(batch, tmp_path / "x")

    def fail(*_: object) -> None:
        raise RuntimeError("interrupted")

    monkeypatch.setattr(model.inf, "read", fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        model.step(torch.tensor([1]), after)
    with pytest.raises(ValueError, match="a step from this state was interrupted, and left it half written"):
        sc.save_state(after, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_saving_does_not_change_the_state(tmp_path: Path) -> None:
    model = a_model()
    _, state = model.prefill(torch.randint(13, (1, 6)), model.initial_state(1))
    assert isinstance(state.buffers, ChunkBuffers)
    sc.save_state(state, tmp_path / "x")
    loaded = sc.load_state(tmp_path / "x")
    for one in (state, loaded):
        assert one.position == 6
    first, _ = model.step(torch.tensor([3]), state)
    second, _ = model.step(torch.tensor([3]), loaded)
    assert torch.equal(first, second)
