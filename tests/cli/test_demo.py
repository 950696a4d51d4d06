"""What the demo shows of a scan, read as a user reads it."""

import io
import re
from typing import Any

import torch
from rich.console import Console

from scannable.cli import demo
from scannable.experiments.scan_cost import COUNTER, REFOLDING, STATIC, ScanCost


def lines(shown: Any) -> list[str]:
    """As a terminal has them, with one space where there are more."""
    console = Console(file=io.StringIO(), record=True, width=200)
    console.print(shown)
    return [re.sub(r"[ │]+", " ", line).strip() for line in console.export_text().splitlines()]


def test_every_node_of_the_tree_has_its_own_elements() -> None:
    assert lines(demo.tree(2, 1)) == [
        "(2, 1) ((ef)(gh))",
        "├── (1, 2) (ef)",
        "├── (0, 4) e",
        "└── (0, 5) f",
        "└── (1, 3) (gh)",
        "├── (0, 6) g",
        "└── (0, 7) h",
    ]
    assert lines(demo.tree(0, 7)) == ["(0, 7) h"]


def test_every_push_shows_its_roots_its_prefix_and_its_price() -> None:
    head, *rows = lines(demo.counter_table())
    assert head == "push t binary roots held prefix Agg calls refolding"
    # A push merges as many roots as the number before it ends in ones, and folds once if any other root is left.
    assert rows == [
        "a 1 1 a a 0 0",
        "b 2 10 (ab) (ab) 1 1",
        "c 3 11 (ab) c ((ab)c) 1 1",
        "d 4 100 ((ab)(cd)) ((ab)(cd)) 2 2",
        "e 5 101 ((ab)(cd)) e (((ab)(cd))e) 1 1",
        "f 6 110 ((ab)(cd)) (ef) (((ab)(cd))(ef)) 2 2",
        "g 7 111 ((ab)(cd)) (ef) g ((((ab)(cd))(ef))g) 1 2",
        "h 8 1000 (((ab)(cd))((ef)(gh))) (((ab)(cd))((ef)(gh))) 3 3",
    ]


def test_both_scans_are_compared_prefix_by_prefix() -> None:
    first, second = demo.agreement(4).splitlines()
    a, b, c, _ = torch.randint(-1000, 1000, (4,), generator=torch.Generator().manual_seed(0)).tolist()
    # The loop begins with Agg(0, a), the tree with Agg(a, b); neither has read the last one.
    assert first.endswith(f"loop ends at {12 * a + 6 * b + 3 * c}, the tree at {4 * a + 6 * b + 3 * c}.")
    assert second == "Static scan and binary counter: 4 of 4 prefixes [bold green]identical[/]."


def test_the_price_is_shown_for_each_way_and_length() -> None:
    costs = [
        ScanCost(way, n, evaluations=n * (1 + i), calls=1, held=10 * n + i)
        for i, way in enumerate((STATIC, COUNTER, REFOLDING))
        for n in (8, 16, 256)
    ]
    assert lines(demo.cost_table(costs)) == [
        "n = 16 n = 256",
        "Agg evaluations per element",
        f"{STATIC} 1.00 1.00",
        f"{COUNTER} 2.00 2.00",
        f"{REFOLDING} 3.00 3.00",
        "values held",
        f"{STATIC} 160 2,560",
        f"{COUNTER} 161 2,561",
        f"{REFOLDING} 162 2,562",
    ]


def test_every_length_of_the_table_that_was_measured_is_shown() -> None:
    costs = [ScanCost(STATIC, 2**k, evaluations=2**k, calls=1, held=1) for k in range(17)]
    assert lines(demo.cost_table(costs))[0] == "n = 16 n = 256 n = 4,096 n = 65,536"
