"""What one element of a scan looks like, and the complaints when something else turns up."""

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scannable.scan.state import ScanState
from scannable.scan.tree import Structure, flatten

Leaves = list[Tensor]


@dataclass(frozen=True)
class ElementType:
    """Structure, shapes, dtypes and devices of one element: everything that Agg must preserve."""

    structure: Structure
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[torch.device, ...]

    @staticmethod
    def of(leaves: Leaves, structure: Structure) -> "ElementType":
        return ElementType(
            structure,
            tuple(leaf.shape for leaf in leaves),
            tuple(leaf.dtype for leaf in leaves),
            tuple(leaf.device for leaf in leaves),
        )

    def batch_of(self, count: int) -> "ElementType":
        """The type of `count` elements stacked in front."""
        return replace(self, shapes=tuple(torch.Size((count, *shape)) for shape in self.shapes))

    def difference(self, other: "ElementType", name: str, other_name: str) -> str | None:
        """The first way in which two element types disagree, as the middle of a sentence; None when they agree."""
        if self.structure != other.structure:
            return f"{name} has the structure {self.structure}, {other_name} has {other.structure}"
        for what, mine, theirs in (
            ("shape", self.shapes, other.shapes),
            ("dtype", self.dtypes, other.dtypes),
            ("device", self.devices, other.devices),
        ):
            for path, a, b in zip(self.structure.paths(), mine, theirs, strict=True):
                if a != b:
                    return f"{name}{path} has the {what} {_show(a)}, {other_name}{path} has {_show(b)}"
        return None


def sequence(xs: object, dim: int) -> tuple[Leaves, ElementType, int]:
    """The leaves of a sequence of elements with time on axis `dim`, the type of one element, and how many there are."""
    leaves, structure = flatten(xs)
    if not leaves:
        raise ValueError(f"the elements hold no tensor at all (structure {structure}); a scan needs at least one")
    dim = operator.index(dim)
    if dim < 0:
        raise ValueError(
            f"dim={dim!r} is not an axis counted from the front; leaves may differ in rank, so time is at the same "
            "non-negative place in each"
        )
    paths = structure.paths()
    for path, leaf in zip(paths, leaves, strict=True):
        if dim >= leaf.ndim:
            raise ValueError(
                f"dim={dim} is out of range: elements{path} has the shape {_show(leaf.shape)}, only {leaf.ndim} axes; "
                "pass the axis that time runs along"
            )
    lengths = [leaf.shape[dim] for leaf in leaves]
    for path, length in zip(paths, lengths, strict=True):
        if length != lengths[0]:
            raise ValueError(
                f"elements{paths[0]} has {lengths[0]} time steps on axis {dim}, but elements{path} has {length}; "
                "all leaves of a sequence must be equally long"
            )
    element = ElementType.of(leaves, structure)
    shapes = tuple(torch.Size(shape[:dim] + shape[dim + 1 :]) for shape in element.shapes)
    return leaves, replace(element, shapes=shapes), lengths[0]


def spread(identity: object, element: ElementType) -> Leaves:
    """The identity in the shape of one element; plain numbers will do where a leaf is the same everywhere."""
    leaves, structure = flatten(identity, "the identity", like=element.structure)
    if structure != element.structure:
        raise ValueError(
            f"the identity has the structure {structure}, the elements have {element.structure}; "
            "the identity must look like one element, with the time axis removed"
        )
    spread: Leaves = []
    for path, leaf, shape, dtype, device in zip(
        structure.paths(), leaves, element.shapes, element.dtypes, element.devices, strict=True
    ):
        if not isinstance(leaf, Tensor):
            leaf = _number(leaf, f"identity{path}", dtype, device)
        if leaf.device != device:
            raise ValueError(f"identity{path} is on {leaf.device}, the elements on {device}; move one of them")
        if leaf.dtype != dtype:
            if not _autocast_may_cast(leaf.dtype, dtype, device):
                raise ValueError(
                    f"identity{path} is {leaf.dtype}, the elements are {dtype}; use identity{path}.to({dtype})"
                )
            leaf = leaf.to(dtype)
        try:
            spread.append(leaf.expand(shape))
        except RuntimeError:
            raise ValueError(
                f"identity{path} has the shape {_show(leaf.shape)}, which does not broadcast to one element, "
                f"{_show(shape)}; the identity must look like one element, with the time axis removed"
            ) from None
    return spread


def _number(value: complex, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    if _is_value(value, dtype):
        return torch.full((), value, dtype=dtype, device=device)
    raise ValueError(f"{name} = {value} is no value of the elements' dtype {dtype}; choose another identity or dtype")


def _is_value(value: complex, dtype: torch.dtype) -> bool:
    """Whether a number stays what it is; floating-point numbers may round."""
    if dtype.is_complex or isinstance(value, complex):
        return dtype.is_complex
    if dtype.is_floating_point:
        return True
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return low <= value <= high and value == int(value)


def aggregate_leaves(result: object, expected: ElementType) -> Leaves:
    """The leaves of what Agg returned for a batch, if they are elements again."""
    leaves, structure = flatten(result, "agg's result")
    got = ElementType.of(leaves, structure)
    if got == expected:
        return leaves
    casts = zip(got.dtypes, expected.dtypes, expected.devices, strict=True) if structure == expected.structure else ()
    if replace(got, dtypes=expected.dtypes) == expected and all(_autocast_may_cast(*cast) for cast in casts):
        # Autocast lets matmuls return half precision; the state keeps the dtype that the elements came with.
        return [leaf.to(dtype) for leaf, dtype in zip(leaves, expected.dtypes, strict=True)]
    difference = got.difference(expected, "its result", "its input")
    raise ValueError(
        f"agg does not return an element: {difference}; agg(older, newer) must keep structure, shape and dtype, and "
        "treat every leading axis as batch"
    )


def check_state(state: ScanState[Any], element: ElementType) -> None:
    """Refuse what is no state, and a state whose identity or roots are elements of another kind."""
    if not isinstance(state, ScanState):
        raise TypeError(
            f"expected a state, got {type(state).__name__}; extend(agg, state, xs) starts from empty(identity)"
        )
    for level, root in state.roots.items():
        difference = ElementType.of(*flatten(root)).difference(element, "its root", "an element")
        if difference:
            raise ValueError(
                f"the state does not fit these elements: at level {level} {difference}; "
                "if it was made by another scan, start from empty(identity); if it lives elsewhere, state.to moves it"
            )
    spread(state.identity, element)


def _autocast_may_cast(source: torch.dtype, target: torch.dtype, device: torch.device) -> bool:
    """Autocast chooses among real floating-point types only; any other change of dtype is a mistake."""
    if source == target:
        return True
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return on and source.is_floating_point and target.is_floating_point


def _show(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
