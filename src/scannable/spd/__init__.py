"""Sequential-parallel duality, measured: what a model costs in parallel and step by step, and that both agree."""

from scannable.spd.associativity import associativity_defect
from scannable.spd.counters import CountedAgg
from scannable.spd.duality import verify_duality
from scannable.spd.report import DualityReport

__all__ = ["CountedAgg", "DualityReport", "associativity_defect", "verify_duality"]
