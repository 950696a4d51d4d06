"""One prefix scan for any aggregation, associative or not: in parallel, element by element, and anything between."""

from scannable.scan.counter import BinaryCounter
from scannable.scan.extend import LevelRoots, extend, extend_many, extend_roots, scan
from scannable.scan.state import ScanState, empty

__all__ = ["BinaryCounter", "LevelRoots", "ScanState", "empty", "extend", "extend_many", "extend_roots", "scan"]
