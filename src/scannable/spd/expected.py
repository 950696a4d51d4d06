"""What the outputs of a model should be, and how far from it they may be."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from scannable.spd.report import Difference

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
"""Largest difference allowed, relative to the outputs' root mean square. float64 leaves only true mistakes; float32
rounds differently in batches of different shapes. Those of half precision are for models that are no `nn.Module`; of
others it is measured how far rounding moves each output."""

ROUNDINGS, DRAWS, SLACK = 8, 8, 2
"""In half precision an output may be off by SLACK times the most that it moves in DRAWS draws when every weight is off
by up to ROUNDINGS roundings. The rounding of a correct model stays below a fifth of that almost everywhere; but where a
sum nearly cancels and is normalised afterwards, one rounding turns an output around. Many roundings and several draws
find those places."""

MEAN_FACTOR, MEAN_SPREAD = 1.25, 2.0
"""On the mean over m places, which the few such ones hardly change, any way of running the model may use MEAN_FACTOR +
MEAN_SPREAD / sqrt(m) times the share of the allowed difference that the parallel form uses there. Correct ones use
between 0.9 and 1.1 times of it over 140 places, and up to 2.5 times at a single one."""


@dataclass(frozen=True)
class Expected:
    """What every way of running a model is compared with."""

    outputs: Tensor
    """(b, n, out): those of the model in parallel, or in half precision those of the same weights in float32."""
    allowed: Float[Tensor, "b n"]
    """How far the outputs of each position may be from them."""
    scale: float
    tolerance: float | None
    used: Float[Tensor, "b n"] | None
    """The share of the allowed difference that the parallel form uses, in half precision."""

    @staticmethod
    def of(model: Any, tokens: Int[Tensor, "b n"], outputs: Tensor, tolerance: float | None) -> "Expected":
        """`outputs` are those of the model in parallel; `tolerance` takes the place of what is usually allowed."""
        dtype = coarsest(model, outputs)
        half = dtype in (torch.float16, torch.bfloat16) and isinstance(model, nn.Module)
        if not half and tolerance is None:
            # What is no floating-point number is not rounded.
            tolerance = TOLERANCE.get(dtype, 0.0)
        used = None
        with torch.autocast(tokens.device.type, enabled=False):
            exact = copy.deepcopy(model).float() if half else None
            precise = outputs if exact is None else exact(tokens)
            scale = scale_of(precise)
            if exact is not None and tolerance is None:
                eps = torch.finfo(dtype).eps
                moved = rounding(exact, tokens, precise, eps)
                allowed = SLACK * moved.clamp(min=max(float(moved.median()), eps * scale))
                # By the rounding of the outputs alone, at least: of a few numbers all may happen to be exact.
                used = apart(outputs, precise.to(outputs.dtype)).amax(-1).clamp(min=eps * scale) / allowed
            else:
                limit = (tolerance or 0.0) * scale
                allowed = torch.full(tokens.shape, limit, dtype=torch.float64, device=outputs.device)
        return Expected(precise.to(outputs.dtype), allowed, scale, tolerance, used)

    def difference(self, way: str, outputs: Tensor, *, start: int = 0, first_row: int = 0) -> Difference:
        """The worst place of the outputs that begin at a position and a row, beside what is allowed there."""
        here = (slice(first_row, first_row + outputs.shape[0]), slice(start, start + outputs.shape[1]))
        expected, allowed = self.outputs[here], self.allowed[here]
        if outputs.shape != expected.shape:
            raise AssertionError(
                f"{way} gives outputs of shape {tuple(outputs.shape)}, in parallel {tuple(expected.shape)}"
            )
        if not expected.numel():
            return Difference(way, 0.0, first_row, start, 0.0)
        value = apart(outputs, expected).amax(-1)
        share = (value / allowed).nan_to_num(nan=0.0, posinf=float("inf"))
        place = int(share.argmax())
        row, position = divmod(place, expected.shape[1])
        worst, limit = float(value.flatten()[place]), float(allowed.flatten()[place])
        factor = MEAN_FACTOR + MEAN_SPREAD / share.numel() ** 0.5
        most = float("inf") if self.used is None else factor * float(self.used[here].mean())
        return Difference(way, worst, first_row + row, start + position, limit, float(share.mean()), most)


def coarsest(model: Any, outputs: Tensor) -> torch.dtype:
    """The dtype among weights and outputs that rounds most; that of the outputs if they are no such numbers."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    dtypes = [part.dtype for part in (*weights, outputs) if part.is_floating_point()]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=outputs.dtype)


def rounding(exact: nn.Module, tokens: Int[Tensor, "b n"], outputs: Tensor, eps: float) -> Float[Tensor, "b n"]:
    """How far the outputs of each position move when the weights are off by up to ROUNDINGS times eps / 2."""
    generator = torch.Generator().manual_seed(0)
    weights = [part for part in (*exact.parameters(), *exact.buffers()) if part.is_floating_point()]
    kept = [weight.clone() for weight in weights]
    ordinary = ~never(outputs)
    moved = torch.zeros(tokens.shape, dtype=torch.float64, device=outputs.device)
    for _ in range(DRAWS):
        for weight, was in zip(weights, kept, strict=True):
            off = torch.rand(was.shape, generator=generator).to(was.device) - 0.5
            weight.copy_(was * (1 + ROUNDINGS * eps * off))
        # What is infinitely far off, in float32, is no effect of rounding.
        far = apart(exact(tokens), outputs).nan_to_num(posinf=0.0) * ordinary
        moved = torch.maximum(moved, far.amax(-1))
    for weight, was in zip(weights, kept, strict=True):
        weight.copy_(was)
    return moved


def apart(outputs: Tensor, expected: Tensor) -> Float[Tensor, "b n out"]:
    """Differences. Equal infinities are none, and what is not a number is as far off as can be."""
    difference = (outputs.double() - expected.double()).abs()
    return difference.masked_fill(outputs == expected, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))


def never(outputs: Tensor) -> Tensor:
    """Which outputs stand for "never": infinite, or huge beside the rest."""
    sizes = outputs.double().abs()
    usual = sizes[sizes.isfinite() & (sizes > 0)]
    return ~sizes.isfinite() | (sizes > 1000 * usual.median()) if usual.numel() else ~sizes.isfinite()


def scale_of(outputs: Tensor) -> float:
    """The root mean square of the outputs that are not 0 and do not stand for "never"."""
    usual = outputs.double()[~never(outputs) & (outputs != 0)]
    return float(usual.square().mean().sqrt()) if usual.numel() else 0.0
