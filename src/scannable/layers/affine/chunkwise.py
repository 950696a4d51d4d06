"""A memory of outer products, S_t = E_t S_(t-1) + k_t v_tᵀ with o_t = S_tᵀ q_t, by matrix products over chunks.

Three steps, each for all chunks at once, the same as in a prefix-scannable model:

    Enc   each chunk becomes one affine map (E, f) of the memory before it,
    scan  the chunks' maps give the memory before each chunk,
    Inf   each chunk reads that memory, and its own keys under a causal mask of decays.

All decays are products over a stretch of time between two positions, formed as exp of a sum of logarithms that are not
positive. No decay is ever divided by another, so nothing overflows, and gates of exactly 0 are harmless.

Inside a chunk the letters are: t and j positions, c the chunk's length, `k` and `v` the sizes of keys and values; the
axes of all tensors are (b, h, r, c, ...).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Action, Diagonal, DiagonalPlusRankOne, Identity, RankOne, Scalar
from scannable.layers.affine.blocks import slice_for
from scannable.layers.affine.elementwise import LOG2_E, elementwise_states
from scannable.layers.affine.monoid import Affine, on_tensors
from scannable.layers.affine.recurrence import Recurrence

CHUNK = 64
FEW_CHUNKS = 32
"""So many chunks are as cheap to add up in one product as one after another."""


class _Memory(Recurrence):
    """What the two kinds of memory share."""

    query: Tensor

    def read(self, states: Tensor) -> Tensor:
        return (self.query[..., None, :] @ states)[..., 0, :]

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        n = self.query.shape[1]
        together = slice_for(start.device, n)
        if together == n:
            return self.by_chunks(start)
        # What all chunks at once would need between the steps no longer fits a CPU's cache.
        cut: list[tuple[Tensor, ...]] = []
        on_tensors(lambda x: cut.append(x.split(together, 1)) or x, self)
        outputs: list[Tensor] = []
        for piece in zip(*cut, strict=True):
            parts = iter(piece)
            y, start = on_tensors(lambda _, parts=parts: next(parts), self).by_chunks(start)
            outputs.append(y)
        return torch.cat(outputs, 1), start

    @abstractmethod
    def by_chunks(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """All chunks at once."""


@dataclass(frozen=True)
class OuterProduct(_Memory):
    """S_t = E_t S_(t-1) + k_t v_tᵀ, o_t = S_tᵀ q_t."""

    query: Float[Tensor, "b n g k"]
    """One for each head, or, with a scalar gate, a single one for all."""
    key: Float[Tensor, "b n g k"]
    value: Float[Tensor, "b n h v"]
    action: Identity | Scalar | Diagonal | DiagonalPlusRankOne

    def updates(self) -> Affine:
        return Affine(self.action, self.key[..., None] * self.value[..., None, :])

    def by_chunks(self, start: Tensor) -> tuple[Tensor, Tensor]:
        action = self.action
        log_decay = None if isinstance(action, Identity) else action.log_decay
        n = self.query.shape[1]
        # A decay for each coordinate is taken by halves of halves.
        c = _even_length(n) if log_decay is None or log_decay.ndim == 3 else min(CHUNK, 1 << (n - 1).bit_length())
        decays = _decays(log_decay, c)
        q, k, v = (chunked(x, c) for x in (self.query, self.key, self.value))
        if isinstance(action, DiagonalPlusRankOne):
            outputs, end = _reinserted(q, k, v, chunked(action.right, c), chunked(action.left, c), decays, start)
        else:
            outputs, end = _added(q, k, v, decays, start)
        return _unchunked(outputs, n), end

    def padded(self, keep: Bool[Tensor, "b n"]) -> "OuterProduct":
        kept = keep[..., None, None]
        action: Any = self.action
        if isinstance(action, DiagonalPlusRankOne):
            action = DiagonalPlusRankOne(action.log_decay.where(kept, 0), action.left.where(kept, 0), action.right)
        elif isinstance(action, Diagonal):
            action = type(action)(action.log_decay.where(kept[(...,) + (0,) * (4 - action.log_decay.ndim)], 0))
        return type(self)(self.query, self.key.where(kept, 0), self.value, action)


@dataclass(frozen=True)
class DeltaRule(_Memory):
    """S_t = α_t (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ, o_t = S_tᵀ q_t: v_t replaces what k_t recalls."""

    query: Float[Tensor, "b n h k"]
    key: Float[Tensor, "b n h k"]
    value: Float[Tensor, "b n h v"]
    strength: Float[Tensor, "b n h"]
    log_decay: Float[Tensor, "b n h"] | None = None

    def updates(self) -> Affine:
        written = self.strength[..., None] * self.key
        action: Action = RankOne(self.key, self.strength, self.log_decay)
        return Affine(action, written[..., None] * self.value[..., None, :])

    def by_chunks(self, start: Tensor) -> tuple[Tensor, Tensor]:
        n = self.query.shape[1]
        c = _even_length(n)
        q, k, v = (chunked(x, c) for x in (self.query, self.key, self.value))
        written = chunked(self.strength, c)[..., None] * k
        outputs, end = _replaced(q, k, written, v, _decays(self.log_decay, c), start)
        return _unchunked(outputs, n), end

    def padded(self, keep: Bool[Tensor, "b n"]) -> "DeltaRule":
        log_decay = None if self.log_decay is None else self.log_decay.where(keep[..., None], 0)
        return type(self)(self.query, self.key, self.value, self.strength.where(keep[..., None], 0), log_decay)


def _added(q: Tensor, k: Tensor, v: Tensor, decays: "_NoDecay", start: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and last memory of S_t = D_t S_(t-1) + k_t v_tᵀ."""
    before, end = decays.across_chunks(decays.to_end(k).mT @ v, start)
    return _sum_of_products(decays.pairs(q, k), v, decays.from_start(q), before), end


def _replaced(
    q: Tensor, k: Tensor, written: Tensor, v: Tensor, decays: "_NoDecay", start: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and last memory of the delta rule, S_t = D_t S_(t-1) + w_t (v_t - k_tᵀ D_t S_(t-1))ᵀ, for written keys w.

    What is written in a chunk, Y, sees what was written before it: Y = V - tril(K D Wᵀ, -1) Y - K D S. That is a unit
    triangular system (the UT transform), solved once for all chunks, and linear in the memory S before the chunk.
    """
    asked = torch.cat((q, k), -2)
    seen, recalled = decays.pairs(asked, written, rows=q.shape[-2])
    own, via = _solve(recalled, torch.cat((v, -decays.from_start(k)), -1)).split((v.shape[-1], k.shape[-1]), -1)
    before, values, end = _chain(own, via, decays.to_end(written), decays.through(), None, start)
    return _sum_of_products(seen, values, decays.from_start(q), before), end


def _reinserted(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, decays: "_NoDecay", start: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and last memory of S_t = D_t S_(t-1) + b_t (a_tᵀ S_(t-1))ᵀ + k_t v_tᵀ.

    What a_t finds, z_t = S_(t-1)ᵀ a_t, sees earlier z_j through b_j: again a unit triangular system.
    """
    c = q.shape[-2]
    seen, found = decays.pairs(torch.cat((q, a), -2), torch.cat((k, b), -2), rows=c, before=True)
    of_k, of_b = found.split(c, -1)
    right = torch.cat((of_k @ v, decays.from_start_before(a)), -1)
    own, via = _solve(-of_b, right).split((v.shape[-1], k.shape[-1]), -1)
    offset = decays.to_end(k).mT @ v
    before, inserted, end = _chain(own, via, decays.to_end(b), decays.through(), offset, start)
    return _sum_of_products(seen, torch.cat((v, inserted), -2), decays.from_start(q), before), end


def _even_length(n: int) -> int:
    """Of chunks that share n positions evenly, as few as can be: 72 are 2 x 36, and nothing is filled up."""
    return max(1, -(-n // max(1, -(-n // CHUNK))))


def chunked(x: Tensor, c: int) -> Tensor:
    """(b, n, h, ...) as (b, h, r, c, ...), filled up with zeros: keys that write nothing, decays of 1."""
    missing = -x.shape[1] % c
    if missing:
        x = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, c)).movedim(3, 1).contiguous()


def _unchunked(x: Tensor, n: int) -> Tensor:
    """(b, h, r, c, ...) as (b, n, h, ...)."""
    return x.flatten(2, 3)[:, :, :n].transpose(1, 2)


def _sum_of_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A B + C D, the sum inside the second product."""
    shape = (*a.shape[:-1], b.shape[-1])
    a, b, c, d = (x.flatten(0, -3) for x in (a, b, c, d))
    return torch.baddbmm(a @ b, c, d).reshape(shape)


def _solve(below: Tensor, right: Tensor) -> Tensor:
    """(I + below)⁻¹ right, for a strictly lower triangular `below`."""
    # From the right and transposed, so that neither `right` nor the result change their layout.
    return torch.linalg.solve_triangular(below.mT, right.mT, upper=True, left=False, unitriangular=True).mT


def _decays(log_decay: Tensor | None, c: int) -> "_NoDecay":
    if log_decay is None:
        return _NoDecay()
    if log_decay.ndim == 3:
        return ScalarDecay(chunked(log_decay, c))
    return _DiagonalDecay(chunked(log_decay, c))


class _NoDecay:
    """Everything about decays inside and between chunks, for rows that forget nothing."""

    def pairs(self, x: Tensor, y: Tensor, rows: int | None = None, before: bool = False) -> Any:
        """x_tᵀ D_(j+1..t) y_j for j <= t.

        With `rows`, x has a second kind of row behind so many of the first, and two results are returned: of the second
        kind only j < t is wanted, and with `before`, decayed to t - 1.
        """
        if rows is None:
            return (x @ y.mT).tril_()
        first, second = (x @ y.mT).split(rows, -2)
        # Columns may be two kinds as well, with one mask for both.
        kinds = y.shape[-2] // rows
        return first * _until(rows, x).repeat(1, kinds), second * _until(rows, x, before=True).repeat(1, kinds)

    def from_start(self, x: Tensor) -> Tensor:
        """D_(1..t) x_t."""
        return x

    def from_start_before(self, x: Tensor) -> Tensor:
        """D_(1..t-1) x_t."""
        return x

    def to_end(self, x: Tensor) -> Tensor:
        """D_(j+1..c) x_j."""
        return x

    def through(self) -> Tensor | None:
        """D_(1..c), as (b, h, r, k or 1, 1)."""
        return None

    def across_chunks(self, offset: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """S' = D_(1..c) S + offset: the memory before each chunk, and behind the last."""
        b, h, r = offset.shape[:3]
        through = self.through()
        if r == 1:
            first = start if through is None else through[:, :, 0] * start
            return start[:, :, None], first + offset[:, :, 0]
        kept = self.kept_of_chunks(offset) if r <= FEW_CHUNKS else None
        if kept is not None:
            # Row t of `kept` says what is left of the start and of each chunk's offset before chunk t; the last row,
            # behind all chunks.
            everything = torch.cat((start[:, :, None], offset), 2).flatten(3)
            before, end = (kept[..., :-1, :] @ everything, kept[..., -1:, :] @ everything)
            return before.unflatten(-1, offset.shape[3:]), end.unflatten(-1, offset.shape[3:])[:, :, 0]
        decay = offset.new_ones((b, h, r)) if through is None else through[..., 0]
        states = elementwise_states(decay.flatten(0, 1), offset.flatten(0, 1), start.flatten(0, 1))
        states = states.unflatten(0, (b, h))
        return torch.cat((start[:, :, None], states[:, :, :-1]), 2), states[:, :, -1]

    def kept_of_chunks(self, offset: Tensor) -> Tensor | None:
        """D from behind j to before t, for the start and the r chunks: (r + 1, r + 1). None if that is no number."""
        return _until(offset.shape[2] + 1, offset)


class ScalarDecay(_NoDecay):
    """One number for each head and position. With `rows`, only the last so many positions of a chunk ask."""

    def __init__(self, log_decay: Float[Tensor, "b h r c"], rows: int | None = None) -> None:
        products: Any = _Products.apply(log_decay, log_decay.shape[-1] if rows is None else rows)
        self.between, self.since_start = products
        self.log_through = log_decay.sum(-1)

    def pairs(self, x: Tensor, y: Tensor, rows: int | None = None, before: bool = False) -> Any:
        products = x @ y.mT
        between = self.between
        if rows is None:
            return products * between
        first, second = products.split(rows, -2)
        # D_(j+1..t-1) is what stands one row higher, and there too the diagonal falls away.
        other = functional.pad(between[..., :-1, :], (0, 0, 1, 0)) if before else between.tril(-1)
        kinds = y.shape[-2] // between.shape[-1]
        if kinds > 1:
            between, other = torch.cat([between] * kinds, -1), torch.cat([other] * kinds, -1)
        return first * between, second * other

    def from_start(self, x: Tensor) -> Tensor:
        return x * self.since_start

    def from_start_before(self, x: Tensor) -> Tensor:
        return x * functional.pad(self.since_start[..., :-1, :], (0, 0, 1, 0), value=1.0)

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.between[..., -1, :, None]

    def through(self) -> Tensor:
        return self.since_start[..., -1:, :]

    def kept_of_chunks(self, offset: Tensor) -> Tensor | None:
        # One more step in front, which the start passes unchanged.
        return ScalarDecay(functional.pad(self.log_through, (1, 0))[:, :, None]).between[:, :, 0]


class _Products(torch.autograd.Function):
    """D_(j+1..t) for the last `rows` positions t and all j <= t, and D_(1..t) for those t; 0 where j > t.

    As exp of a difference of two running sums, which are wanted to the last digit of that difference. A float32 holds a
    sum to the last digit of the sum only, so each logarithm is cut in two: what is left of it when it is rounded to the
    last digit of a number four times the sum of all, and the rest. Running sums of the first part are exact, and those
    of the rest are so small that their rounding does not matter.

    Backward needs no difference at all. The gradient of log_decay_i is the sum of W_(t,j) = grad_(t,j) D_(j+1..t) over
    all j < i <= t, the pairs that i lies between; those of D_(1..t) count as a j before the first.
    """

    @staticmethod
    def forward(ctx: Any, log_decay: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        # Twice the logarithm of the smallest normal number: a decay below it is 0, and so is each product with it.
        lowest = 2 * math.log(torch.finfo(log_decay.dtype).tiny)
        logs = log_decay.clamp(min=lowest).mul_(LOG2_E)
        large = 4 * logs.abs().sum(-1, keepdim=True)
        rounded = (logs + large).sub_(large)
        first, rest = rounded.cumsum(-1), (logs - rounded).cumsum(-1)
        asked = log_decay.shape[-1] - rows
        between = first[..., asked:, None] - first[..., None, :]
        between = between.add_(rest[..., asked:, None]).sub_(rest[..., None, :]).exp2_().tril_(asked)
        since_start = (first + rest)[..., asked:].exp2_()[..., None]
        ctx.save_for_backward(between, since_start)
        return between, since_start

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        between, since_start = ctx.saved_tensors
        rows, c = between.shape[-2:]
        before = grads[1] * since_start
        # At (t, j): everything from j and from before it to t, which is wanted where j < t.
        until = (grads[0] * between).cumsum(-1) + before
        wanted = until * _until(c, until, before=True)[c - rows :]
        return torch.cat((before.sum(-2), wanted.sum(-2)[..., :-1]), -1), None


class _DiagonalDecay(_NoDecay):
    """One number for each head, position and key coordinate.

    The decay from j to t is different for each coordinate, so it cannot be taken out of the product of x_t and y_j. It
    is split at the middle of the smallest aligned block that holds both, D_(j+1..t) = D_(mid+1..t) D_(j+1..mid), and
    goes half into x_t and half into y_j: for each size of block one product of matrices, log2(c) in all.
    """

    def __init__(self, log_decay: Float[Tensor, "b h r c k"]) -> None:
        # Of blocks of 1, 2, 4, ... positions: the sums from a block's start to t, from behind j to its end, and of all.
        to_here = total = (log_decay * LOG2_E)[..., None, :]
        from_here = torch.zeros_like(to_here)
        self.halves: list[tuple[Tensor, Tensor]] = []  # D_(j+1..mid) and log2 D_(mid+1..t), for each size
        while total.shape[-3] > 1:
            (left, right), (left_rest, right_rest), (left_total, right_total) = (
                x.unflatten(-3, (-1, 2)).unbind(-3) for x in (to_here, from_here, total)
            )
            self.halves.append((left_rest.exp2(), right))
            to_here = torch.cat((left, left_total + right), -2)
            from_here = torch.cat((left_rest + right_total, right_rest), -2)
            total = left_total + right_total
        self.since_start = to_here[..., 0, :, :].exp2()
        self.until_end = from_here[..., 0, :, :].exp2()

    def pairs(self, x: Tensor, y: Tensor, rows: int | None = None, before: bool = False) -> Any:
        c = self.since_start.shape[-2]
        xs, ys = x.split(c, -2), y.split(c, -2)
        # Blocks of one position: x_tᵀ y_t for the first kind of row, nothing for the second.
        blocks = [
            [((x * y).sum(-1) if i == 0 else torch.zeros_like(x[..., 0]))[..., None, None] for y in ys]
            for i, x in enumerate(xs)
        ]
        for level, (older, newer) in enumerate(self.halves):
            size = 1 << level
            decay = newer.exp2()
            other = functional.pad(newer[..., :-1, :], (0, 0, 1, 0)).exp2() if before else decay
            right = [_halves(x, size)[1] * (other if i else decay) for i, x in enumerate(xs)]
            left = [_halves(y, size)[0] * older for y in ys]
            across = (torch.cat(right, -2) @ torch.cat(left, -2).mT).split(size, -2)
            blocks = [
                [_lower_block(*blocks[i][j].unflatten(-3, (-1, 2)).unbind(-3), part) for j, part in enumerate(parts)]
                for i, parts in enumerate(block.split(size, -1) for block in across)
            ]
        kinds = [torch.cat([block[..., 0, :, :] for block in row], -1) for row in blocks]
        return kinds[0] if rows is None else kinds

    def from_start(self, x: Tensor) -> Tensor:
        return x * self.since_start

    def from_start_before(self, x: Tensor) -> Tensor:
        return x * functional.pad(self.since_start[..., :-1, :], (0, 0, 1, 0), value=1.0)

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.until_end

    def through(self) -> Tensor:
        return self.since_start[..., -1, :, None]

    def kept_of_chunks(self, offset: Tensor) -> Tensor | None:
        return None


def _until(c: int, like: Tensor, before: bool = False) -> Tensor:
    """1 where j <= t, or j < t."""
    return like.new_ones((c, c)).tril(-1 if before else 0)


def _halves(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """The left and the right halves of all blocks of 2 · size positions."""
    return x.unflatten(-2, (-1, 2, size)).unbind(-3)


def _lower_block(first: Tensor, second: Tensor, below: Tensor) -> Tensor:
    """[[first, 0], [below, second]]."""
    upper = functional.pad(first, (0, first.shape[-1]))
    return torch.cat((upper, torch.cat((below, second), -1)), -2)


def _chain(
    own: Tensor, via: Tensor, write: Tensor, through: Tensor | None, offset: Tensor | None, start: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Chunk after chunk: Y = own + via S,  S' = through S + writeᵀ Y + offset; all S before chunks, all Y, the last S.

    A tree would be log r deep, but would have to multiply the chunks' matrices with each other, several times the work;
    a chain of n/64 links is little beside what happens inside the chunks. Launches: 5 to 8 a chunk in forward and
    backward, on every device; everything else takes as many for all chunks as for one.
    """
    results: Any = _Chain.apply(own, via, write, through, offset, start)
    return results


class _Chain(torch.autograd.Function):
    """Gradients of what multiplies a state are one product for all chunks at the end."""

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, via: Tensor, write: Tensor, through: Tensor | None, offset: Tensor | None, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch = own.shape[:2]
        o, a, w, f = (None if x is None else x.flatten(0, 1) for x in (own, via, write, offset))
        assert o is not None and a is not None and w is not None
        t = None if through is None else through.flatten(0, 1)
        r = o.shape[1]
        states = start.new_empty((r + 1, *start.flatten(0, 1).shape))
        values = start.new_empty((r, *o[:, 0].shape))
        states[0] = start.flatten(0, 1)
        for i in range(r):
            torch.baddbmm(o[:, i], a[:, i], states[i], out=values[i])
            kept = states[i] if t is None else torch.mul(states[i], t[:, i], out=states[i + 1])
            kept = kept if f is None else torch.add(kept, f[:, i], out=states[i + 1])
            torch.baddbmm(kept, w[:, i].mT, values[i], out=states[i + 1])
        ctx.save_for_backward(via, write, through, states, values)
        before, after = (x.movedim(0, 1).unflatten(0, batch) for x in (states[:-1], values))
        return before, after, states[-1].unflatten(0, batch).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        via, write, through, states, values = ctx.saved_tensors
        batch = via.shape[:2]
        of_before, of_values, of_end = (x.flatten(0, 1) for x in grads)
        a, w = via.flatten(0, 1), write.flatten(0, 1)
        t = None if through is None else through.flatten(0, 1)
        r = a.shape[1]
        to_states, to_values = torch.empty_like(states), torch.empty_like(values)
        to_states[r] = of_end
        for i in reversed(range(r)):
            torch.baddbmm(of_values[:, i], w[:, i], to_states[i + 1], out=to_values[i])
            kept = to_states[i + 1] if t is None else torch.mul(to_states[i + 1], t[:, i], out=to_states[i])
            torch.add(kept, of_before[:, i], out=to_states[i])
            torch.baddbmm(to_states[i], a[:, i].mT, to_values[i], out=to_states[i])
        later, before, y, to_y = (x.movedim(0, 1) for x in (to_states[1:], states[:-1], values, to_values))
        to_through = None
        if t is not None:
            to_through = (later * before).sum(-1, keepdim=True)
            to_through = to_through if t.shape[-2] > 1 else to_through.sum(-2, keepdim=True)
            to_through = to_through.unflatten(0, batch)
        return (
            to_y.unflatten(0, batch),
            (to_y @ before.mT).unflatten(0, batch),
            (y @ later.mT).unflatten(0, batch),
            to_through,
            later.unflatten(0, batch) if ctx.needs_input_grad[4] else None,
            to_states[0].unflatten(0, batch),
        )
