"""Prefix-scannable sequence models: train in parallel, stream in O(log n) state, and both are the same function."""

from scannable.scan import BinaryCounter, ScanState, empty, extend, extend_many, scan

__version__ = "0.1.0"

__all__ = ["BinaryCounter", "ScanState", "empty", "extend", "extend_many", "scan"]
