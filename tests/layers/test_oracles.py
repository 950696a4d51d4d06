"""The kernels equal code that others wrote: flash-linear-attention, transformers, mambapy and accelerated-scan.

Ours runs by chunks in float64. An oracle that stays in float64 has to agree to 1e-9 of the root mean square; most of
them compute in float32 whatever they are given, and have to agree to 1e-4 of it. An oracle that cannot be imported is
an error, not a test to skip.
"""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import accelerated_scan.ref as accelerated_scan
    from fla.ops.delta_rule import naive as delta_rule
    from fla.ops.gated_delta_product import naive as gated_delta_product
    from fla.ops.gated_delta_rule import naive as gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr import naive as dplr
    from fla.ops.generalized_delta_rule.iplr import naive as iplr
    from fla.ops.gla import naive as gla
    from fla.ops.hgrn import naive as hgrn
    from fla.ops.kda import naive as kda
    from fla.ops.linear_attn import naive as linear_attn
    from fla.ops.retention import naive as retention
    from fla.ops.simple_gla import naive as simple_gla
    from mambapy import pscan
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from scannable.layers.affine.actions import Diagonal, DiagonalPlusRankOne, Identity, Scalar
from scannable.layers.affine.chunkwise import DeltaRule, OuterProduct
from scannable.layers.affine.delta_product import DeltaProductRule
from scannable.layers.affine.elementwise import Elementwise, elementwise_states
from scannable.layers.affine.recurrence import Recurrence

DOUBLE, SINGLE = 1e-9, 1e-4
Inputs = dict[str, Tensor]
Results = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Size:
    n: int
    b: int = 1
    h: int = 2
    k: int = 8
    v: int = 8
    start: bool = True


SIZES = [
    Size(1, 3, 2, 8, 16),
    Size(1, 1, 3, 16, 8, start=False),
    Size(7, 3, 2, 16, 8, start=False),
    Size(63, 1, 3, 8, 32),
    Size(64, 3, 2, 16, 8, start=False),
    Size(65, 1, 1, 64, 32),
    Size(200, 1, 2, 32, 64, start=False),
    Size(200, 3, 1, 8, 16),
]
# For those that cut a sequence into chunks and want whole ones.
WHOLE = [
    Size(64, 3, 2, 8, 16),
    Size(64, 1, 3, 64, 32, start=False),
    Size(128, 1, 2, 16, 8),
    Size(192, 3, 1, 16, 64, start=False),
]


class Draw:
    """Random numbers in float64 that are exact in float32."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).double()

    def unit(self, *shape: int) -> Tensor:
        return functional.normalize(self.normal(*shape), dim=-1).float().double()

    def strength(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator).double()

    def log_decay(self, *shape: int) -> Tensor:
        return functional.logsigmoid(2 + self.normal(*shape)).float().double()

    def memory(self, size: Size) -> Inputs:
        b, n, h, k, v = size.b, size.n, size.h, size.k, size.v
        start = {"start": self.normal(b, h, k, v)} if size.start else {}
        return {"q": self.unit(b, n, h, k), "k": self.unit(b, n, h, k), "v": self.normal(b, n, h, v), **start}


def plain(draw: Draw, size: Size) -> Inputs:
    return draw.memory(size)


def scalar_gates(draw: Draw, size: Size) -> Inputs:
    return {**draw.memory(size), "g": draw.log_decay(size.b, size.n, size.h)}


def diagonal_gates(draw: Draw, size: Size) -> Inputs:
    return {**draw.memory(size), "g": draw.log_decay(size.b, size.n, size.h, size.k)}


def strengths(draw: Draw, size: Size) -> Inputs:
    return {**draw.memory(size), "beta": draw.strength(size.b, size.n, size.h)}


def strengths_and_gates(draw: Draw, size: Size) -> Inputs:
    return {**strengths(draw, size), "g": draw.log_decay(size.b, size.n, size.h)}


def strengths_and_diagonal_gates(draw: Draw, size: Size) -> Inputs:
    return {**strengths(draw, size), "g": draw.log_decay(size.b, size.n, size.h, size.k)}


def products(steps: int, *, gated: bool) -> Callable[[Draw, Size], Inputs]:
    """Keys, values and strengths up to 2 of so many steps for each position."""

    def draw_products(draw: Draw, size: Size) -> Inputs:
        b, n, h = size.b, size.n, size.h
        of_steps = draw.memory(Size(n * steps, b, h, size.k, size.v, size.start))
        gates = {"g": draw.log_decay(b, n, h)} if gated else {}
        return {**of_steps, "q": draw.unit(b, n, h, size.k), "beta": 2 * draw.strength(b, n * steps, h), **gates}

    return draw_products


def low_rank(draw: Draw, size: Size) -> Inputs:
    # Near to the delta rule and yet two different vectors, so that no state grows and no two can be exchanged.
    a = draw.unit(size.b, size.n, size.h, size.k)
    away = draw.unit(size.b, size.n, size.h, size.k)
    return {**draw.memory(size), "a": a, "b": (-0.6 * a + 0.2 * away).float().double()}


def low_rank_and_diagonal_gates(draw: Draw, size: Size) -> Inputs:
    return {**low_rank(draw, size), "g": draw.log_decay(size.b, size.n, size.h, size.k)}


def elements(draw: Draw, size: Size) -> Inputs:
    b, n, d = size.b, size.n, size.h * size.k
    start = {"start": draw.normal(b, d)} if size.start else {}
    return {"g": draw.log_decay(b, n, d), "f": draw.normal(b, n, d), **start}


def elements_with_signs(draw: Draw, size: Size) -> Inputs:
    b, n, d = size.b, size.n, size.h * size.k
    start = {"start": draw.normal(b, d)} if size.start else {}
    return {"decay": 2 * draw.strength(b, n, d) - 1, "f": draw.normal(b, n, d), **start}


def complex_elements(draw: Draw, size: Size) -> Inputs:
    b, n, d = size.b, size.n, size.h * size.k
    start = {"start": torch.complex(draw.normal(b, d), draw.normal(b, d))} if size.start else {}
    decay = torch.polar(draw.strength(b, n, d), 3 * draw.normal(b, n, d))
    return {"decay": decay, "f": torch.complex(draw.normal(b, n, d), draw.normal(b, n, d)), **start}


# Ours.


def scaled(q: Tensor) -> Tensor:
    """The oracles multiply their queries by 1/sqrt(k)."""
    return q / math.sqrt(q.shape[-1])


def run(recurrence: Recurrence, start: Tensor | None, *shape: int) -> Results:
    return recurrence.run(torch.zeros(shape, dtype=torch.float64) if start is None else start)


def run_memory(recurrence: OuterProduct | DeltaRule, start: Tensor | None) -> Results:
    b, _, h, k = recurrence.query.shape
    return run(recurrence, start, b, h, k, recurrence.value.shape[-1])


def our_linear_attention(q: Tensor, k: Tensor, v: Tensor, start: Tensor | None = None) -> Results:
    return run_memory(OuterProduct(scaled(q), k, v, Identity()), start)


def our_retention(q: Tensor, k: Tensor, v: Tensor) -> Results:
    heads = torch.arange(q.shape[2], dtype=torch.float64)
    log_decay = (1 - 2 ** (-5 - heads)).log().expand(q.shape[:3])
    return run_memory(OuterProduct(scaled(q), k, v, Scalar(log_decay)), None)


def our_scalar(q: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor | None = None) -> Results:
    return run_memory(OuterProduct(scaled(q), k, v, Scalar(g)), start)


def our_diagonal(q: Tensor, k: Tensor, v: Tensor, g: Tensor, start: Tensor | None = None) -> Results:
    return run_memory(OuterProduct(scaled(q), k, v, Diagonal(g)), start)


def our_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, start: Tensor | None = None
) -> Results:
    return run_memory(DeltaRule(scaled(q), k, v, beta, g), start)


def our_delta_product(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, start: Tensor | None = None
) -> Results:
    k, v, beta = (x.unflatten(1, (q.shape[1], -1)) for x in (k, v, beta))
    recurrence = DeltaProductRule(scaled(q), k, v, beta, g)
    return run(recurrence, start, q.shape[0], *q.shape[2:], v.shape[-1])


def our_rank_one(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor | None = None, start: Tensor | None = None
) -> Results:
    log_decay = torch.zeros_like(a) if g is None else g
    return run_memory(OuterProduct(scaled(q), k, v, DiagonalPlusRankOne(log_decay, b, a)), start)


def our_diagonal_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, start: Tensor | None = None
) -> Results:
    """(I - β k kᵀ) diag(exp g) S + β k vᵀ: the decay comes first, so the probe is exp(g) k."""
    written = beta[..., None] * k
    return run_memory(OuterProduct(scaled(q), written, v, DiagonalPlusRankOne(g, -written, g.exp() * k)), start)


def our_elementwise(g: Tensor, f: Tensor, start: Tensor | None = None) -> Results:
    return run(Elementwise(g, f), start, f.shape[0], f.shape[2])


def our_states(decay: Tensor, f: Tensor, start: Tensor | None = None) -> Results:
    states = elementwise_states(decay, f, torch.zeros_like(f[:, 0]) if start is None else start)
    return states, states[:, -1]


# Theirs. Some want (b, h, n, ...), and run without a word on (b, n, h, ...).


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def with_state(function: Any) -> Callable[..., Results]:
    """For those that take (b, n, h, ...) by name, an initial state, and give the last one when asked."""

    def oracle(start: Tensor | None = None, **inputs: Tensor) -> Results:
        return function(**inputs, initial_state=start, output_final_state=True)

    return oracle


def heads_first_with_state(function: Any) -> Callable[..., Results]:
    def oracle(start: Tensor | None = None, **inputs: Tensor) -> Results:
        inputs = {name: heads_first(x) for name, x in inputs.items()}
        outputs, last = function(**inputs, initial_state=start, output_final_state=True)
        return heads_first(outputs), last

    return oracle


def renamed(oracle: Callable[..., Results], **names: str) -> Callable[..., Results]:
    """The oracle under our names of its arguments."""
    return lambda **inputs: oracle(**{names.get(name, name): x for name, x in inputs.items()})


def their_chunked_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Results:
    outputs: Any = linear_attn.naive_chunk_linear_attn(q, k, v)
    return outputs, None


def their_parallel_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Results:
    return simple_gla.naive_parallel_simple_gla(q, k, v, g)[0], None


def their_retention(q: Tensor, k: Tensor, v: Tensor) -> Results:
    return heads_first(retention.naive_retention(*[heads_first(x) for x in (q, k, v)])), None


def their_chunked_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Results:
    outputs, last = delta_rule.delta_rule_chunkwise(*[heads_first(x) for x in (q, k, v, beta)], chunk_size=32)
    return heads_first(outputs), last


def their_parallel_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Results:
    outputs, _ = delta_rule.delta_rule_parallel(*[heads_first(x) for x in (q, k, v, beta)], BM=128, BN=32)
    return heads_first(outputs), None


def their_delta_product(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, start: Tensor | None = None
) -> Results:
    return gated_delta_product.naive_recurrent_gated_delta_product(
        q, k, v, g, beta, q.shape[-1] ** -0.5, initial_state=start, num_householder=k.shape[1] // q.shape[1]
    )


def written_in_torch(function: Any) -> Any:
    """The function of transformers itself: under its name stands the Triton kernel of fla, as soon as fla is there."""
    function = inspect.unwrap(function)
    assert function.__code__.co_filename == qwen3_next.__file__
    return function


def from_start(decay: Tensor, f: Tensor, start: Tensor | None) -> Tensor:
    """Offsets that make a scan from 0 a scan from `start`."""
    return f if start is None else torch.cat((f[:, :1] + decay[:, :1] * start[:, None], f[:, 1:]), 1)


def mambapy_scan(decay: Tensor, f: Tensor, start: Tensor | None = None) -> Results:
    states: Any = pscan.pscan(decay[..., None], from_start(decay, f, start)[..., None])
    return states[..., 0], states[:, -1, :, 0]


def accelerated(decay: Tensor, f: Tensor, start: Tensor | None = None) -> Results:
    gates, tokens = (x.mT.contiguous() for x in (decay, from_start(decay, f, start)))
    states = accelerated_scan.scan(gates, tokens).mT
    return states, states[:, -1]


@dataclass(frozen=True)
class Oracle:
    draw: Callable[[Draw, Size], Inputs]
    ours: Callable[..., Results]
    theirs: Callable[..., Results]
    tolerance: float = SINGLE
    sizes: tuple[Size, ...] = tuple(SIZES)

    def run_theirs(self, **inputs: Tensor) -> Results:
        """Those that compute in float32 get float32, because some of them convert only a part of what they are given."""
        if self.tolerance == SINGLE:
            inputs = {name: x.float() for name, x in inputs.items()}
        return self.theirs(**inputs)


def without_start(sizes: list[Size]) -> tuple[Size, ...]:
    return tuple(Size(s.n, s.b, s.h, s.k, s.v, start=False) for s in sizes)


whole = tuple(WHOLE)
HF = {"q": "query", "k": "key", "v": "value"}

ORACLES = {
    "fla linear attention, recurrent": Oracle(
        plain, our_linear_attention, with_state(linear_attn.naive_recurrent_linear_attn)
    ),
    # Chunks of 64, no state in or out, in float64.
    "fla linear attention, chunks": Oracle(
        plain, our_linear_attention, their_chunked_linear_attention, DOUBLE, without_start(WHOLE)
    ),
    "fla gated linear attention": Oracle(
        diagonal_gates, our_diagonal, renamed(with_state(gla.naive_recurrent_gla), g="gk")
    ),
    "fla simple gated linear attention, recurrent": Oracle(
        scalar_gates, our_scalar, with_state(simple_gla.naive_recurrent_simple_gla)
    ),
    "fla simple gated linear attention, chunks": Oracle(
        scalar_gates, our_scalar, with_state(simple_gla.naive_chunk_simple_gla)
    ),
    "fla simple gated linear attention, parallel": Oracle(
        scalar_gates, our_scalar, their_parallel_gla, sizes=without_start(SIZES)
    ),
    "fla retention": Oracle(plain, our_retention, their_retention, sizes=without_start(SIZES)),
    "fla delta rule, recurrent": Oracle(strengths, our_delta, heads_first_with_state(delta_rule.delta_rule_recurrence)),
    # Chunks of 32, no state in, in float64.
    "fla delta rule, chunks": Oracle(strengths, our_delta, their_chunked_delta, DOUBLE, without_start(WHOLE)),
    # Blocks of 128, no state in or out, in float64.
    "fla delta rule, parallel": Oracle(
        strengths, our_delta, their_parallel_delta, DOUBLE, (Size(128, 3, start=False), Size(256, start=False))
    ),
    # By name, because the two take beta and g in opposite orders.
    "fla gated delta rule, recurrent": Oracle(
        strengths_and_gates, our_delta, with_state(gated_delta_rule.naive_recurrent_gated_delta_rule)
    ),
    "fla gated delta rule, chunks": Oracle(
        strengths_and_gates, our_delta, with_state(gated_delta_rule.naive_chunk_gated_delta_rule)
    ),
    "fla delta product of two": Oracle(products(2, gated=False), our_delta_product, their_delta_product),
    "fla gated delta product of three": Oracle(products(3, gated=True), our_delta_product, their_delta_product),
    "fla identity plus rank one, recurrent": Oracle(
        low_rank, our_rank_one, renamed(heads_first_with_state(iplr.iplr_recurrence), a="alpha", b="beta")
    ),
    # Chunks of 32, in float64.
    "fla identity plus rank one, chunks": Oracle(
        low_rank, our_rank_one, renamed(heads_first_with_state(iplr.iplr_chunkwise), a="alpha", b="beta"), DOUBLE, whole
    ),
    "fla diagonal plus rank one, recurrent": Oracle(
        low_rank_and_diagonal_gates,
        our_rank_one,
        renamed(heads_first_with_state(dplr.dplr_recurrence), a="alpha", b="beta", g="gk"),
    ),
    # Chunks of 32.
    "fla diagonal plus rank one, chunks": Oracle(
        low_rank_and_diagonal_gates,
        our_rank_one,
        renamed(heads_first_with_state(dplr.dplr_chunkwise), a="alpha", b="beta", g="gk"),
        sizes=whole,
    ),
    "fla diagonal delta rule, recurrent": Oracle(
        strengths_and_diagonal_gates, our_diagonal_delta, with_state(kda.naive_recurrent_kda)
    ),
    # Chunks of 64.
    "fla diagonal delta rule, chunks": Oracle(
        strengths_and_diagonal_gates, our_diagonal_delta, with_state(kda.naive_chunk_kda), sizes=whole
    ),
    "fla hierarchical gates, recurrent": Oracle(
        elements, our_elementwise, renamed(with_state(hgrn.naive_recurrent_hgrn), f="x")
    ),
    # Its chunks of 64 are right only where there is one.
    "fla hierarchical gates, chunks": Oracle(
        elements, our_elementwise, renamed(with_state(hgrn.naive_chunk_hgrn), f="x"), sizes=whole[:2]
    ),
    "transformers gated delta rule, recurrent": Oracle(
        strengths_and_gates,
        our_delta,
        renamed(with_state(written_in_torch(qwen3_next.torch_recurrent_gated_delta_rule)), **HF),
    ),
    "transformers gated delta rule, chunks": Oracle(
        strengths_and_gates,
        our_delta,
        renamed(with_state(written_in_torch(qwen3_next.torch_chunk_gated_delta_rule)), **HF),
    ),
    "mambapy scan": Oracle(elements_with_signs, our_states, mambapy_scan, DOUBLE),
    # From two positions on.
    "accelerated scan": Oracle(elements_with_signs, our_states, accelerated, DOUBLE, tuple(SIZES[2:])),
    "accelerated scan, complex": Oracle(complex_elements, our_states, accelerated, DOUBLE, tuple(SIZES[2:])),
}


def results(inputs: Inputs, function: Callable[..., Results], *, last: bool) -> Inputs:
    """Outputs, last state if there is one to compare, and the gradients of all inputs under random weights of both."""
    draw, inputs = Draw(1), {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    found = dict(zip(("outputs", "last"), function(**inputs), strict=True))
    values = {name: x for name, x in found.items() if x is not None and (last or name != "last")}
    weights = [draw.normal(*x.shape).to(x.dtype) for x in values.values()]
    gradients = torch.autograd.grad(list(values.values()), list(inputs.values()), weights)
    named = {f"gradient of {name}": g for name, g in zip(inputs, gradients, strict=True)}
    return {**{name: x.detach() for name, x in values.items()}, **named}


@pytest.mark.parametrize(
    ("name", "size"),
    [pytest.param(name, size, id=f"{name}-{size}") for name in ORACLES for size in ORACLES[name].sizes],
)
def test_values_last_states_and_all_gradients_equal_the_oracle(name: str, size: Size) -> None:
    oracle = ORACLES[name]
    inputs = oracle.draw(Draw(), size)
    with torch.no_grad():
        has_last = oracle.run_theirs(**inputs)[1] is not None
    theirs, ours = (results(inputs, function, last=has_last) for function in (oracle.run_theirs, oracle.ours))
    assert theirs.keys() == ours.keys()
    for what, truth in ours.items():
        found = theirs[what]
        assert found.shape == truth.shape, what
        scale = truth.abs().square().mean().sqrt()
        error = (found.to(truth.dtype) - truth).abs().max()
        assert error <= oracle.tolerance * scale, f"{what}: {error:.2e} apart, where {scale:.2e} is the usual size"
