"""One prefix scan for any aggregation, associative or not: in parallel, element by element, and anything between."""

from scannable.scan.counter import BinaryCounter
from scannable.scan.extend import extend, extend_many, scan
from scannable.scan.roots import LevelRoots, Roots, extend_roots
from scannable.scan.state import ScanState, empty

__all__ = [
    "BinaryCounter",
    "LevelRoots",
    "Roots",
    "ScanState",
    "empty",
    "extend",
    "extend_many",
    "extend_roots",
    "scan",
]
