"""Sequential-parallel duality, measured: what a model costs in parallel and step by step."""

from scannable.spd.counters import CountedAgg

__all__ = ["CountedAgg"]
