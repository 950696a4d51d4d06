"""The committed pictures are what the library does now: draw them anew with `python docs/pictures/draw.py`."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
sys.path.insert(0, str(PICTURES))

import draw  # noqa: E402  # pyright: ignore[reportMissingImports]
import recorded  # noqa: E402  # pyright: ignore[reportMissingImports]


@pytest.mark.parametrize("name", list(draw.PICTURES))
def test_a_picture_is_drawn_from_what_the_scan_does(name: str) -> None:
    drawn = str(draw.PICTURES[name]())
    assert (PICTURES / f"{name}.svg").read_text() == drawn
    root = ElementTree.fromstring(drawn)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None


@pytest.mark.parametrize("n", [1, 2, 7, 8, 11, 16])
def test_the_recorded_calls_merge_neighbours_and_end_at_the_prefixes(n: int) -> None:
    made = {(i, i + 1) for i in range(n)}
    for call in recorded.calls_of_scan(n):
        for (a, b), (c, d) in call:
            assert b == c and {(a, b), (c, d)} <= made
        made |= {(older[0], newer[1]) for older, newer in call}
    assert recorded.prefixes_of_scan(n) == [(0, t) for t in range(n)]
    assert {(0, t) for t in range(1, n)} <= made


def test_the_blocks_of_a_push_are_the_bits_of_t() -> None:
    for push in recorded.pushes(recorded.LETTERS):
        blocks = sorted(recorded.span(value) for value in push.roots.values())
        assert [b - a for a, b in blocks] == [2**k for k in reversed(range(6)) if push.t >> k & 1]
        assert recorded.span(push.prefix) == (0, push.t)
