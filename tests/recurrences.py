"""Every recurrence with its inputs and the plain loop that it must equal.

Differences are measured in units of the root mean square of what they are compared with.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Diagonal, DiagonalPlusRankOne, Identity, Scalar
from scannable.layers.affine.chunkwise import DeltaRule, OuterProduct
from scannable.layers.affine.delta_product import DeltaProductRule
from scannable.layers.affine.elementwise import Elementwise
from scannable.layers.affine.invariant import DenseInvariant, DiagonalInvariant
from scannable.layers.affine.recurrence import Mode, Recurrence
from scannable.layers.affine.selective import Selective

DOUBLE, SINGLE = 1e-9, 1e-4
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Size:
    n: int
    b: int = 1
    h: int = 1
    k: int = 8
    v: int = 8
    start: bool = True


@dataclass(frozen=True)
class Kind:
    draw: Callable[["Draw", Size], Inputs]
    """All inputs and the start, by name."""
    build: Callable[..., Recurrence]
    loop: Callable[..., tuple[Tensor, Tensor]]
    """Outputs and the last state, one position after another."""
    shared: tuple[str, ...] = ()
    """Inputs without batch and time."""

    def recurrence(self, inputs: Inputs) -> Recurrence:
        return self.build(**{name: x for name, x in inputs.items() if name != "start"})


class Draw:
    """Random numbers in float64 that are exact in float32."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).double()

    def unit(self, *shape: int) -> Tensor:
        return functional.normalize(self.normal(*shape), dim=-1).float().double()

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        return (low + (high - low) * torch.rand(shape, generator=self.generator)).double()

    def log_decay(self, *shape: int) -> Tensor:
        return functional.logsigmoid(2 + self.normal(*shape)).float().double()

    def complex(self, *shape: int) -> Tensor:
        return torch.complex(self.normal(*shape), self.normal(*shape))

    def memory(self, size: Size) -> Inputs:
        b, n, h, k, v = size.b, size.n, size.h, size.k, size.v
        return {
            "query": self.unit(b, n, h, k),
            "key": self.unit(b, n, h, k),
            "value": self.normal(b, n, h, v),
            "start": self.normal(b, h, k, v) * size.start,
        }


# The loops: the formulas of the docstrings, without the library.


def over_time(*inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(x.unbind(1) for x in inputs), strict=True)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("...k,...v->...kv", a, b)


def read(query: Tensor, s: Tensor) -> Tensor:
    return torch.einsum("...k,...kv->...v", query, s)


def identity_loop(query: Tensor, key: Tensor, value: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for q, k, v in over_time(query, key, value):
        s = s + outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def scalar_loop(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for q, k, v, g in over_time(query, key, value, log_decay):
        s = g.exp()[..., None, None] * s + outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def diagonal_loop(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for q, k, v, g in over_time(query, key, value, log_decay):
        s = g.exp()[..., None] * s + outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def rank_one_loop(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, left: Tensor, right: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for q, k, v, g, insert, probe in over_time(query, key, value, log_decay, left, right):
        s = (torch.diag_embed(g.exp()) + outer(insert, probe)) @ s + outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def delta_loop(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, start: Tensor, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    one, s, outputs = torch.eye(key.shape[-1], dtype=key.dtype), start, []
    alphas = torch.ones_like(strength) if log_decay is None else log_decay.exp()
    for q, k, v, beta, alpha in over_time(query, key, value, strength[..., None, None], alphas[..., None, None]):
        s = alpha * (one - beta * outer(k, k)) @ s + beta * outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def delta_product_loop(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, start: Tensor, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    one, s, outputs = torch.eye(key.shape[-1], dtype=key.dtype), start, []
    alphas = torch.ones_like(strength[:, :, 0]) if log_decay is None else log_decay.exp()
    for q, keys, values, betas, alpha in over_time(query, key, value, strength, alphas):
        s = alpha[..., None, None] * s
        for k, v, beta in over_time(keys, values, betas[..., None, None]):
            s = (one - beta * outer(k, k)) @ s + beta * outer(k, v)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def elementwise_loop(log_decay: Tensor, offset: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for g, f in over_time(log_decay, offset):
        s = g.exp() * s + f
        outputs.append(s)
    return torch.stack(outputs, 1), s


def selective_loop(
    x: Tensor, step_size: Tensor, rate: Tensor, key: Tensor, query: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for u, delta, k, q in over_time(x, step_size, key, query):
        s = (delta[:, None] * rate).exp() * s + outer(k, delta * u)
        outputs.append(read(q, s))
    return torch.stack(outputs, 1), s


def diagonal_invariant_loop(
    x: Tensor, log_decay: Tensor, gain: Tensor, weight: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for (u,) in over_time(x):
        s = log_decay.exp() * s + gain * u[:, None]
        outputs.append(2 * torch.einsum("Nd,bNd->bd", weight, s).real)
    return torch.stack(outputs, 1), s


def dense_invariant_loop(matrix: Tensor, offset: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    s, outputs = start, []
    for (f,) in over_time(offset):
        outputs.append(s[..., 0])
        s = matrix @ s + f[..., None]
    return torch.stack(outputs, 1), s


def draw_decayed(draw: Draw, size: Size, *last: int) -> Inputs:
    return {**draw.memory(size), "log_decay": draw.log_decay(size.b, size.n, size.h, *last)}


def draw_rank_one(draw: Draw, size: Size) -> Inputs:
    shape = (size.b, size.n, size.h, size.k)
    return {
        **draw_decayed(draw, size, size.k),
        "left": draw.unit(*shape) * 0.5,
        "right": draw.unit(*shape),
    }


def draw_delta(draw: Draw, size: Size) -> Inputs:
    return {**draw.memory(size), "strength": draw.between(0.05, 1, size.b, size.n, size.h)}


def draw_delta_product(draw: Draw, size: Size, steps: int, *, gated: bool) -> Inputs:
    b, n, h = size.b, size.n, size.h
    inputs = {
        **draw.memory(size),
        "key": draw.unit(b, n, steps, h, size.k),
        "value": draw.normal(b, n, steps, h, size.v),
        "strength": draw.between(0.05, 2, b, n, steps, h),
    }
    return {**inputs, "log_decay": draw.log_decay(b, n, h)} if gated else inputs


def draw_elementwise(draw: Draw, size: Size) -> Inputs:
    b, n, d = size.b, size.n, size.h * size.k
    return {
        "log_decay": draw.log_decay(b, n, d),
        "offset": draw.normal(b, n, d),
        "start": draw.normal(b, d) * size.start,
    }


def draw_selective(draw: Draw, size: Size) -> Inputs:
    b, n, d = size.b, size.n, size.h * size.v
    return {
        "x": draw.normal(b, n, d),
        "step_size": draw.between(0, 0.5, b, n, d),
        "rate": draw.between(-2, -0.1, size.k, d),
        "key": draw.normal(b, n, size.k),
        "query": draw.normal(b, n, size.k),
        "start": draw.normal(b, size.k, d) * size.start,
    }


def draw_diagonal_invariant(draw: Draw, size: Size) -> Inputs:
    d = size.h * size.v
    return {
        "x": draw.normal(size.b, size.n, d),
        "log_decay": torch.complex(draw.between(-0.5, -0.01, size.k, d), draw.between(0, 3, size.k, d)),
        "gain": draw.complex(size.k, d),
        "weight": draw.complex(size.k, d),
        "start": draw.complex(size.b, size.k, d) * size.start,
    }


def draw_dense_invariant(draw: Draw, size: Size) -> Inputs:
    d = size.k
    return {
        "matrix": (torch.linalg.qr(draw.normal(d, d))[0] * 0.95).float().double(),
        "offset": draw.normal(size.b, size.n, d),
        "start": draw.normal(size.b, d, 1) * size.start,
    }


KINDS = {
    "identity": Kind(Draw.memory, lambda **x: OuterProduct(**x, action=Identity()), identity_loop),
    "scalar": Kind(draw_decayed, lambda log_decay, **x: OuterProduct(**x, action=Scalar(log_decay)), scalar_loop),
    "diagonal": Kind(
        lambda draw, size: draw_decayed(draw, size, size.k),
        lambda log_decay, **x: OuterProduct(**x, action=Diagonal(log_decay)),
        diagonal_loop,
    ),
    "diagonal_plus_rank_one": Kind(
        draw_rank_one,
        lambda log_decay, left, right, **x: OuterProduct(**x, action=DiagonalPlusRankOne(log_decay, left, right)),
        rank_one_loop,
    ),
    "delta": Kind(draw_delta, DeltaRule, delta_loop),
    "gated_delta": Kind(
        lambda draw, size: {**draw_delta(draw, size), "log_decay": draw.log_decay(size.b, size.n, size.h)},
        DeltaRule,
        delta_loop,
    ),
    "negative_delta": Kind(
        lambda draw, size: {**draw_delta(draw, size), "strength": draw.between(0.05, 2, size.b, size.n, size.h)},
        DeltaRule,
        delta_loop,
    ),
    "delta_product": Kind(
        lambda draw, size: draw_delta_product(draw, size, 2, gated=False), DeltaProductRule, delta_product_loop
    ),
    "gated_delta_product": Kind(
        lambda draw, size: draw_delta_product(draw, size, 3, gated=True), DeltaProductRule, delta_product_loop
    ),
    "elementwise": Kind(draw_elementwise, Elementwise, elementwise_loop),
    "selective": Kind(draw_selective, Selective, selective_loop, ("rate",)),
    "diagonal_invariant": Kind(
        draw_diagonal_invariant, DiagonalInvariant, diagonal_invariant_loop, ("log_decay", "gain", "weight")
    ),
    "dense_invariant": Kind(draw_dense_invariant, DenseInvariant, dense_invariant_loop, ("matrix",)),
}


# What is compared with what.


def leaves(inputs: Inputs) -> Inputs:
    return {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}


def results(inputs: Inputs, run: Callable[[Inputs], tuple[Tensor, Tensor]], draw: Draw | None = None) -> Inputs:
    """Outputs, last state, and the gradient of every input under random weights of both."""
    inputs, draw = leaves(inputs), draw or Draw(1)
    outputs, last = run(inputs)
    weights = [
        (draw.complex(*x.shape) if x.is_complex() else draw.normal(*x.shape)).to(x.dtype) for x in (outputs, last)
    ]
    gradients = torch.autograd.grad([outputs, last], list(inputs.values()), weights)
    return {
        "outputs": outputs.detach(),
        "last": last.detach(),
        **{f"gradient of {name}": g for name, g in zip(inputs, gradients, strict=True)},
    }


def run_mode(kind: Kind, mode: Mode) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    return lambda inputs: kind.recurrence(inputs).run(inputs["start"], mode)


def assert_near(found: Tensor, truth: Tensor, tolerance: float, what: str, floor: float = 0.0) -> None:
    """Within `tolerance` root mean squares of the truth, and `floor` beside that."""
    assert found.shape == truth.shape, f"{what}: shape {tuple(found.shape)} for {tuple(truth.shape)}"
    assert bool(found.isfinite().all()), f"{what}: not finite"
    scale = truth.abs().square().mean().sqrt()
    error = (found.to(truth.dtype) - truth).abs().max()
    assert error <= tolerance * scale + floor, f"{what}: off by {error:.2e} where the root mean square is {scale:.2e}"


def assert_all_near(found: Inputs, truth: Inputs, tolerance: float) -> None:
    assert found.keys() == truth.keys()
    for what in truth:
        assert_near(found[what], truth[what], tolerance, what)


def to_single(inputs: Inputs) -> Inputs:
    return {name: x.to(torch.complex64 if x.is_complex() else torch.float32) for name, x in inputs.items()}
