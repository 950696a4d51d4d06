"""Trained models that come with the package, a folder each: weights, what they were trained by, and what was found."""

from scannable.weights.shipped_model import Shipped, ShippedModelError, load_shipped, shipped, shipped_models

__all__ = ["Shipped", "ShippedModelError", "load_shipped", "shipped", "shipped_models"]
