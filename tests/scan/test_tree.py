"""Flattening keeps every tensor and puts it back where it was."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import scannable as sc
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


class Scaled(NamedTuple):
    """A NamedTuple with constants among its tensors."""

    name: str
    x: Tensor
    scale: float = 2.0
    sizes: tuple[int, ...] = (1, 2)
    nothing: Any = None
    parts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Setting:
    name: str
    x: Tensor
    scale: float = 2.0
    sizes: tuple[int, ...] = (1, 2)
    nothing: Any = None
    parts: tuple[Any, ...] = ()


@pytest.mark.parametrize("kind", [Scaled, Setting])
def test_fields_without_tensors_are_constants(kind: Any) -> None:
    x, y = torch.tensor(1.0), torch.tensor(2.0)
    tree = kind("a", x, parts=(y, None))
    leaves, structure = flatten(tree)
    assert [id(leaf) for leaf in leaves] == [id(x), id(y)]
    assert dict(structure.constants) == {"name": "a", "scale": 2.0, "sizes": (1, 2), "nothing": None}
    back = unflatten(structure, [y, x])
    assert type(back) is kind and back == kind("a", y, parts=(x, None))
    assert str(structure) == (
        f"{kind.__name__}(x: Tensor, parts: tuple(0: Tensor, 1: None), name='a', scale=2.0, sizes=(1, 2), nothing=None)"
    )
    assert flatten(kind("a", y, parts=(x, None)))[1] == structure
    for other in (kind("b", x, parts=(y, None)), kind("a", x, 3.0, parts=(y, None)), kind("a", x)):
        assert flatten(other)[1] != structure


@pytest.mark.parametrize("kind", [Scaled, Setting])
def test_numbers_stand_for_tensors_only_where_the_elements_have_tensors(kind: Any) -> None:
    structure = flatten(kind("a", torch.zeros(3)))[1]
    assert flatten(kind("a", 0.0), like=structure) == ([0.0], structure)
    leaves, other = flatten(kind("a", 0.0, 7.0), like=structure)
    assert leaves == [0.0] and other != structure


@pytest.mark.parametrize("kind", [Scaled, Setting])
def test_a_constant_that_differs_is_named(kind: Any) -> None:
    xs = kind("a", torch.arange(4.0))

    def agg(older: Any, newer: Any) -> Any:
        return kind("a", older.x + newer.x, older.scale + newer.scale)

    def right(older: Any, newer: Any) -> Any:
        return kind("a", older.x + newer.x, newer.scale)

    with pytest.raises(ValueError, match=r"its result has the structure .*scale=4\.0.*, its input has .*scale=2\.0"):
        sc.scan(agg, xs, identity=kind("a", 0.0))
    with pytest.raises(ValueError, match=r"the identity has the structure .*name='b'.*, the elements have .*name='a'"):
        sc.scan(right, xs, identity=kind("b", 0.0))
    assert torch.equal(sc.scan(right, xs, identity=kind("a", 0.0)).x, torch.tensor([0.0, 0.0, 1.0, 3.0]))
    prefixes, states = sc.extend_many(right, [sc.empty(kind("a", 0.0))] * 2, [kind("a", torch.ones(1) * 5)] * 2)
    assert prefixes[0].x == 0 and states[0].prefix().x == 5 and states[0].prefix().scale == 2.0
