"""Reading in pieces: the answers of one parallel pass, counted, and what is held on the way."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scannable.experiments.long_reading import keep_reading, kept_reading, read_in_pieces
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.tasks import GroupTask

S3 = list(permutations(range(3)))


class ByHand:
    """Multiplies permutations of three things by composing them, and errs where it is told to."""

    def __init__(self, wrong_at: frozenset[int] = frozenset()) -> None:
        self.wrong_at = wrong_at

    def parameters(self) -> Iterator[Tensor]:
        return iter([torch.zeros(())])

    def initial_state(self, rows: int) -> "Held":
        return Held([(0, 1, 2)] * rows, 0)

    def prefill(self, tokens: Tensor, state: "Held") -> tuple[Tensor, "Held"]:
        now, answers = list(state.products), torch.zeros(*tokens.shape, 6)
        for t in range(tokens.shape[1]):
            for row in range(len(now)):
                action = S3[int(tokens[row, t])]
                now[row] = tuple(now[row][j] for j in action)
                answer = S3.index(now[row])
                if row == 0 and state.position + t in self.wrong_at:
                    answer = (answer + 1) % 6
                answers[row, t, answer] = 1
        return answers, Held(now, state.position + tokens.shape[1])


class Held:
    def __init__(self, products: list[tuple[int, ...]], position: int) -> None:
        self.products, self.position = products, position

    @property
    def nbytes(self) -> int:
        """A binary counter's, one byte a root."""
        return self.position.bit_count() * len(self.products)


def test_products_composed_by_hand_are_the_targets() -> None:
    reading = read_in_pieces(ByHand(), GroupTask("S3", seed=3), 100, rows=2, piece=7)
    assert (reading.errors, reading.asked, reading.first_error) == (0, 200, None)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(5, 70),
    piece=st.integers(1, 80),
    wrong=st.frozensets(st.integers(0, 69), max_size=5),
    rows=st.integers(1, 3),
)
def test_every_error_is_counted_once_whatever_the_pieces(
    length: int, piece: int, wrong: frozenset[int], rows: int
) -> None:
    reading = read_in_pieces(ByHand(wrong), GroupTask("S3"), length, rows, piece)
    inside = sorted(position for position in wrong if position < length)
    assert reading.errors == len(inside)
    assert reading.first_error == (inside[0] if inside else None)
    for point in reading.points:
        assert point.errors == sum(position < point.n for position in inside)
        assert point.asked == rows * point.n


def test_what_is_held_is_seen_just_before_powers_of_two() -> None:
    reading = read_in_pieces(ByHand(), GroupTask("S3"), 64, rows=2, piece=16)
    assert [(point.n, point.nbytes) for point in reading.points] == [
        (1, 1), (3, 2), (7, 3), (15, 4), (31, 5), (63, 6), (64, 1),
    ]  # fmt: skip
    assert reading.nbytes == 6


def test_a_model_reads_in_pieces_what_it_reads_at_once() -> None:
    torch.manual_seed(0)
    task = GroupTask("S3", seed=2)
    model = TransformerPSM(TransformerPSMConfig(6, 8, chunk_length=2, agg_layers=1, inf_layers=1, heads=1)).double()
    reading = read_in_pieces(model, task, 45, rows=3, piece=8)
    batch = task.batch("test", range(3), 45)
    wrong = model.eval()(batch.tokens).argmax(-1) != batch.targets
    assert reading.errors == int(wrong.sum()) > 0
    assert reading.first_error == int(wrong.any(0).nonzero()[0])
    assert reading.points[-1].errors == reading.errors


@pytest.mark.parametrize(("name", "value"), [("rows", 0), ("piece", 0), ("length", -1)])
def test_a_wrong_number_is_named(name: str, value: int) -> None:
    numbers = {"length": 8, "rows": 1, "piece": 4} | {name: value}
    with pytest.raises(ValueError, match=f"{name}={value}"):
        read_in_pieces(ByHand(), GroupTask("S3"), numbers["length"], numbers["rows"], numbers["piece"])


def test_a_reading_is_kept_beside_its_run(tmp_path: Path) -> None:
    reading = read_in_pieces(ByHand(frozenset({9})), GroupTask("S3"), 20, rows=2, piece=8)
    assert kept_reading(tmp_path, 20, 2) is None
    keep_reading(tmp_path, reading)
    assert kept_reading(tmp_path, 20, 2) == reading
    assert kept_reading(tmp_path, 20, 1) is None
    (tmp_path / "reading-20x2.json").write_text("{}")
    with pytest.raises(ValueError, match=r"reading-20x2\.json cannot be read.*delete it"):
        kept_reading(tmp_path, 20, 2)
