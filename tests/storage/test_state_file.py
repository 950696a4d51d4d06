"""A saved state is exactly what was saved, or refused."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

import scannable as sc
from scannable.storage import state_file


def saved(tmp_path: Path) -> Path:
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=8, chunk_length=4, heads=2))
    _, state = model.prefill(torch.randint(13, (1, 30)), model.initial_state(1))
    sc.save_state(state, tmp_path / "stream")
    return tmp_path / "stream"


def test_a_plain_scan_state_of_any_tree_survives(tmp_path: Path) -> None:
    def agg(older: dict[str, torch.Tensor], newer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {key: 2 * older[key] + newer[key] for key in older}

    xs = {"a": torch.randn(3, 9, 2), "b": torch.arange(27).view(3, 9)}
    _, state = sc.extend(agg, sc.empty({"a": torch.zeros(2), "b": torch.tensor(0)}), xs, dim=1)
    sc.save_state(state, tmp_path / "scan")
    loaded = sc.load_state(tmp_path / "scan")
    assert (loaded.position, loaded.nbytes) == (9, state.nbytes)
    again, _ = sc.extend(agg, loaded, xs, dim=1)
    truth, _ = sc.extend(agg, state, xs, dim=1)
    assert all(torch.equal(again[key], truth[key]) for key in truth)


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
    with pytest.raises(sc.StateFileError, match=r"truncated, damaged or something else|checksum"):
        sc.load_state(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(sc.StateFileError, match="is a safetensors file but not a saved state"):
        sc.load_state(path)
    torch.save({"x": torch.zeros(3)}, path)
    with pytest.raises(sc.StateFileError, match="cannot be read as a saved state"):
        sc.load_state(path)
    path.write_text("hello, I am a text file of some length")
    with pytest.raises(sc.StateFileError, match="cannot be read as a saved state"):
        sc.load_state(path)
    with pytest.raises(FileNotFoundError):
        sc.load_state(tmp_path / "missing")


@pytest.mark.parametrize(
    "structure",
    [
        "5",
        '{"list": []}',
        '{"dict": [[1, 2, 3]]}',
        '{"tensor": "nonesuch"}',
        '{"class": "Popen", "fields": {}}',
        '{"class": "PSMState", "fields": {"position": "x", "scan": null, "buffers": null}}',
        '{"class": "ScanState", "fields": {"identity": 0, "position": -5}}',
        '{"class": "ScanState", "fields": {"nonsense": 0}}',
        "[" * 100_000,
        "9" * 5000,
        '{"what": 1}',
    ],
)
def test_nonsense_with_a_true_checksum_is_refused(tmp_path: Path, structure: str) -> None:
    plain = save({"t0": torch.zeros(2)})
    metadata = {"format": state_file.FORMAT, "structure": structure, "sha256": state_file._digest(plain, structure)}
    (tmp_path / "crafted").write_bytes(save({"t0": torch.zeros(2)}, metadata))
    with pytest.raises(sc.StateFileError):
        sc.load_state(tmp_path / "crafted")


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a state that holds a set cannot be saved"):
        sc.save_state(sc.empty({1, 2}), tmp_path / "x")
    assert not list(tmp_path.iterdir())
