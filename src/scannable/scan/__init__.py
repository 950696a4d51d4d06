"""One prefix scan for any aggregation, associative or not: in parallel, element by element, and anything between."""

from scannable.scan.counter import BinaryCounter
from scannable.scan.extend import extend, scan
from scannable.scan.many import extend_many
from scannable.scan.state import ScanState, empty

__all__ = ["BinaryCounter", "ScanState", "empty", "extend", "extend_many", "scan"]
