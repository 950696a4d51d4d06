"""Flattening keeps every tensor and puts it back where it was."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from scannable.scan.tree import flatten, unflatten


class Point(NamedTuple):
    x: Tensor
    y: tuple[Tensor, ...]


@dataclass
class Box:
    point: Point
    extra: dict[str, Tensor]
    derived: int = field(init=False, default=3)


def box() -> Box:
    a, b, c, d = (torch.tensor(i) for i in range(4))
    return Box(Point(a, (b,)), {"z": c, "a": d})


def test_round_trip_keeps_kinds_and_tensors() -> None:
    tree = {"box": box(), "list": [torch.tensor(9), None, ()]}
    leaves, structure = flatten(tree)
    back = unflatten(structure, leaves)
    assert flatten(back)[1] == structure
    assert all(x is y for x, y in zip(flatten(back)[0], leaves, strict=True))
    assert type(back["box"]) is Box and type(back["box"].point) is Point and back["list"][1:] == [None, ()]


def test_paths_read_like_python() -> None:
    assert flatten({"box": box(), "list": [torch.tensor(9)]})[1].paths() == [
        "['box'].point.x",
        "['box'].point.y[0]",
        "['box'].extra['a']",
        "['box'].extra['z']",
        "['list'][0]",
    ]


def test_the_order_of_keys_does_not_matter() -> None:
    a, b = torch.tensor(1), torch.tensor(2)
    leaves, structure = flatten({"a": a, "b": b})
    other, same = flatten({"b": b, "a": a})
    assert structure == same and all(x is y for x, y in zip(leaves, other, strict=True))


@pytest.mark.parametrize("tree", [[torch.tensor(0), 3], OrderedDict(a=torch.tensor(0)), {torch.tensor(0)}])
def test_other_things_are_refused(tree: object) -> None:
    with pytest.raises(TypeError, match="elements are tensors, or tuples"):
        flatten(tree)
