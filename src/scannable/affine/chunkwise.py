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

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from scannable.affine.actions import Action, Diagonal, DiagonalPlusRankOne, Identity, RankOne, Scalar
from scannable.affine.elementwise import LOG2_E, elementwise_states
from scannable.affine.monoid import Affine
from scannable.affine.recurrence import Recurrence

CHUNK = 64
LOWEST_LOG_DECAY = -1e4
"""Below this a decay is 0 in every dtype; sums of this many are still exact enough to be subtracted in float64."""


class _Memory(Recurrence):
    """What the two kinds of memory share."""

    query: Tensor

    def read(self, states: Tensor) -> Tensor:
        return (self.query[..., None, :] @ states)[..., 0, :]


@dataclass(frozen=True)
class OuterProduct(_Memory):
    """S_t = E_t S_(t-1) + k_t v_tᵀ, o_t = S_tᵀ q_t."""

    query: Float[Tensor, "b n g k"]
    """One for each head, or (with no gate or a scalar one) a single one for all."""
    key: Float[Tensor, "b n g k"]
    value: Float[Tensor, "b n h v"]
    action: Identity | Scalar | Diagonal | DiagonalPlusRankOne

    def updates(self) -> Affine:
        return Affine(self.action, self.key[..., None] * self.value[..., None, :])

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        action = self.action
        log_decay = None if isinstance(action, Identity) else action.log_decay
        probe, insert = (action.right, action.left) if isinstance(action, DiagonalPlusRankOne) else (None, None)
        return outer_product_chunks(self.query, self.key, self.value, log_decay, probe, insert, start)

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

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        probe = self.key if self.log_decay is None else self.log_decay.exp()[..., None] * self.key
        written = self.strength[..., None] * self.key
        return outer_product_chunks(self.query, written, self.value, self.log_decay, probe, None, start)

    def padded(self, keep: Bool[Tensor, "b n"]) -> "DeltaRule":
        log_decay = None if self.log_decay is None else self.log_decay.where(keep[..., None], 0)
        return type(self)(self.query, self.key, self.value, self.strength.where(keep[..., None], 0), log_decay)


def outer_product_chunks(
    query: Float[Tensor, "b n g k"],
    key: Float[Tensor, "b n g k"],
    value: Float[Tensor, "b n h v"],
    log_decay: Tensor | None,
    probe: Float[Tensor, "b n h k"] | None,
    insert: Float[Tensor, "b n h k"] | None,
    start: Float[Tensor, "b h k v"],
    *,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "b n h v"], Float[Tensor, "b h k v"]]:
    """Outputs and last memory of

        S_t = D_t S_(t-1) + b_t (a_tᵀ S_(t-1)) + k_t v_tᵀ        o_t = S_tᵀ q_t

    Args:
        log_decay: log D_t, (b, n, h) for one number a head, (b, n, h, k) for one a key coordinate, None for D = I.
        probe: a_t; None leaves the term with b and a out.
        insert: b_t; None stands for -k_t, as the delta rule has it.
        start: S before the first position.
        chunk: positions in a chunk, a power of two.
    """
    n = query.shape[1]
    c = min(chunk, 1 << (n - 1).bit_length())
    q, k, v = (chunked(x, c) for x in (query, key, value))
    a = None if probe is None else chunked(probe, c)
    b = None if insert is None else chunked(insert, c)
    decays = _decays(log_decay, c)

    # How chunk positions see each other: rows q_t (and a_t) over columns k_j (and b_j), decayed from j to t.
    rows = [q] if a is None else [q, a]
    columns = [k] if b is None else [k, b]
    seen = decays.pairs(rows, columns)
    reads = decays.from_start(q)  # what q_t finds of the memory before the chunk
    keeps = decays.to_end(k)  # what the end of the chunk keeps of k_j
    if a is None:
        offset = keeps.mT @ v
        before = decays.across_chunks(offset, start)
        outputs = _sum_of_products(seen[0][0], v, reads, before[:, :, :-1])
    else:
        # z_t = a_tᵀ S_(t-1) sees earlier z_j: a unit triangular system. Solved once for the part that the chunk's own
        # values make (own) and once for what multiplies the memory before the chunk (via).
        probes = decays.from_start_before(a)
        if b is None:
            solved = _solve(seen[1][0], torch.cat((v, probes), -1))
            own, via = solved.split((v.shape[-1], probes.shape[-1]), -1)
            offset, removal = keeps.mT @ own, keeps.mT @ via
            before = decays.across_chunks(offset, start, -removal)
            outputs = _sum_of_products(seen[0][0], own - via @ before[:, :, :-1], reads, before[:, :, :-1])
        else:
            inserts = decays.to_end(b)
            solved = _solve(-seen[1][1], torch.cat((seen[1][0] @ v, probes), -1))
            own, via = solved.split((v.shape[-1], probes.shape[-1]), -1)
            offset = keeps.mT @ v + inserts.mT @ own
            before = decays.across_chunks(offset, start, inserts.mT @ via)
            inserted = own + via @ before[:, :, :-1]
            outputs = _sum_of_products(seen[0][0], v, reads, before[:, :, :-1]) + seen[0][1] @ inserted
    return outputs.flatten(2, 3)[:, :, :n].transpose(1, 2), before[:, :, -1]


def chunked(x: Tensor, c: int) -> Tensor:
    """(b, n, h, ...) as (b, h, r, c, ...), filled up with zeros: keys that write nothing, decays of 1."""
    missing = -x.shape[1] % c
    if missing:
        x = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, c)).movedim(3, 1).contiguous()


def _sum_of_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A B + C D, the sum inside the second product."""
    shape = (*a.shape[:-1], b.shape[-1])
    a, b, c, d = (x.flatten(0, -3) for x in (a, b, c, d))
    return torch.baddbmm(a @ b, c, d).reshape(shape)


def _solve(below: Tensor, right: Tensor) -> Tensor:
    """(I + below)⁻¹ right, for a strictly lower triangular `below`."""
    return torch.linalg.solve_triangular(below, right, upper=False, unitriangular=True)


def _decays(log_decay: Tensor | None, c: int) -> "_NoDecay":
    if log_decay is None:
        return _NoDecay()
    if log_decay.ndim == 3:
        return ScalarDecay(chunked(log_decay, c))
    return _DiagonalDecay(chunked(log_decay, c))


class _NoDecay:
    """Everything about decays inside and between chunks, for rows that forget nothing."""

    def pairs(self, rows: list[Tensor], columns: list[Tensor]) -> list[list[Tensor]]:
        """x_tᵀ D_(j+1..t) y_j for j <= t; from the second kind of row on, x_tᵀ D_(j+1..t-1) y_j for j < t."""
        products = torch.cat(rows, -2) @ torch.cat(columns, -2).mT
        c = rows[0].shape[-2]
        return [
            [part.tril(-1 if i else 0) for part in block.split(c, -1)] for i, block in enumerate(products.split(c, -2))
        ]

    def from_start(self, x: Tensor) -> Tensor:
        """D_(1..t) x_t."""
        return x

    def from_start_before(self, x: Tensor) -> Tensor:
        """D_(1..t-1) x_t."""
        return x

    def to_end(self, x: Tensor) -> Tensor:
        """D_(j+1..c) x_j."""
        return x

    def across_chunks(self, offset: Tensor, start: Tensor, change: Tensor | None = None) -> Tensor:
        """The memory before each of the r chunks and after the last: S' = (D_(1..c) + change) S + offset."""
        if change is not None:
            one = torch.eye(change.shape[-1], dtype=change.dtype, device=change.device)
            return _dense_states(change + one, offset, start)
        return torch.cat((start[:, :, None], offset), 2).cumsum(2)


class ScalarDecay(_NoDecay):
    """One number for each head and position. With `rows`, only the last so many positions of a chunk ask."""

    def __init__(self, log_decay: Float[Tensor, "b h r c"], rows: int | None = None) -> None:
        c = log_decay.shape[-1]
        asking = slice(0 if rows is None else c - rows, None)
        # In float64, because a difference of two long sums is wanted to the last digit of the working precision.
        total = log_decay.clamp(min=LOWEST_LOG_DECAY).double().mul(LOG2_E).cumsum(-1)
        difference = total[..., asking, None] - total[..., None, :]
        later = torch.ones(c, c, dtype=torch.bool, device=log_decay.device).triu(1)[asking]
        self.between = difference.to(log_decay.dtype).masked_fill(later, -torch.inf).exp2()  # j to t
        self.since_start = total[..., asking].to(log_decay.dtype).exp2()

    def pairs(self, rows: list[Tensor], columns: list[Tensor]) -> list[list[Tensor]]:
        products = torch.cat(rows, -2) @ torch.cat(columns, -2).mT
        first, *others = products.split(rows[0].shape[-2], -2)
        c = columns[0].shape[-2]
        # D_(j+1..t-1) is what stands one row higher, and its diagonal falls away.
        shifted = functional.pad(self.between[..., :-1, :], (0, 0, 1, 0)) if others else self.between
        return [
            [part * self.between for part in first.split(c, -1)],
            *([part * shifted for part in block.split(c, -1)] for block in others),
        ]

    def from_start(self, x: Tensor) -> Tensor:
        return x * self.since_start[..., None]

    def from_start_before(self, x: Tensor) -> Tensor:
        return x * functional.pad(self.since_start[..., :-1], (1, 0), value=1.0)[..., None]

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.between[..., -1, :, None]

    def across_chunks(self, offset: Tensor, start: Tensor, change: Tensor | None = None) -> Tensor:
        through = self.since_start[..., -1]
        if change is not None:
            return _dense_states(_plus_diagonal(change, through[..., None]), offset, start)
        return _decayed_states(through, offset, start)


class _DiagonalDecay(_NoDecay):
    """One number for each head, position and key coordinate.

    The decay from j to t is different for each coordinate, so it cannot be taken out of the product of x_t and y_j. It
    is split at the middle of the smallest aligned block that holds both, D_(j+1..t) = D_(mid+1..t) D_(j+1..mid), and
    goes half into x_t and half into y_j: for each size of block one product of matrices, log2(c) in all.
    """

    def __init__(self, log_decay: Float[Tensor, "b h r c k"]) -> None:
        log_decay = log_decay * LOG2_E
        # For blocks of 1, 2, 4, ... positions: the sums from a block's start to t, and from behind j to its end.
        to_here, from_here = [log_decay[..., None, :]], [torch.zeros_like(log_decay)[..., None, :]]
        while to_here[-1].shape[-3] > 1:
            left, right = to_here[-1].unflatten(-3, (-1, 2)).unbind(-3)
            to_here.append(torch.cat((left, left[..., -1:, :] + right), -2))
            left_rest, right_rest = from_here[-1].unflatten(-3, (-1, 2)).unbind(-3)
            from_here.append(torch.cat((left_rest + right[..., -1:, :], right_rest), -2))
        self.to_here, self.from_here = to_here, from_here
        self.since_start = to_here[-1][..., 0, :, :].exp2()
        self.until_end = from_here[-1][..., 0, :, :].exp2()

    def pairs(self, rows: list[Tensor], columns: list[Tensor]) -> list[list[Tensor]]:
        # Blocks of one position: x_tᵀ y_t for the first kind of row, nothing for the others.
        blocks = [
            [((x * y).sum(-1) if i == 0 else torch.zeros_like(x[..., 0]))[..., None, None] for y in columns]
            for i, x in enumerate(rows)
        ]
        for size in (1 << level for level in range(len(self.to_here) - 1)):
            level = size.bit_length() - 1
            here = self.to_here[level].unflatten(-3, (-1, 2))[..., 1, :, :]
            older = self.from_here[level].unflatten(-3, (-1, 2))[..., 0, :, :].exp2()
            decay = here.exp2()
            decay_before = functional.pad(here[..., :-1, :], (0, 0, 1, 0)).exp2() if len(rows) > 1 else decay
            right = [self._half(x, size, 1) * (decay_before if i else decay) for i, x in enumerate(rows)]
            left = [self._half(y, size, 0) * older for y in columns]
            across = (torch.cat(right, -2) @ torch.cat(left, -2).mT).split(size, -2)
            blocks = [
                [_lower_block(*blocks[i][j].unflatten(-3, (-1, 2)).unbind(-3), part) for j, part in enumerate(parts)]
                for i, parts in enumerate(block.split(size, -1) for block in across)
            ]
        return [[block[..., 0, :, :] for block in row] for row in blocks]

    @staticmethod
    def _half(x: Tensor, size: int, which: int) -> Tensor:
        return x.unflatten(-2, (-1, 2, size))[..., which, :, :]

    def from_start(self, x: Tensor) -> Tensor:
        return x * self.since_start

    def from_start_before(self, x: Tensor) -> Tensor:
        return x * functional.pad(self.since_start[..., :-1, :], (0, 0, 1, 0), value=1.0)

    def to_end(self, x: Tensor) -> Tensor:
        return x * self.until_end

    def across_chunks(self, offset: Tensor, start: Tensor, change: Tensor | None = None) -> Tensor:
        through = self.since_start[..., -1, :]
        if change is not None:
            return _dense_states(_plus_diagonal(change, through), offset, start)
        return _decayed_states(through, offset, start)


def _lower_block(first: Tensor, second: Tensor, below: Tensor) -> Tensor:
    """[[first, 0], [below, second]]."""
    upper = functional.pad(first, (0, first.shape[-1]))
    return torch.cat((upper, torch.cat((below, second), -1)), -2)


def _plus_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    return matrix + torch.diag_embed(diagonal.expand(matrix.shape[:-1]))


def _decayed_states(through: Tensor, offset: Tensor, start: Tensor) -> Tensor:
    b, h = offset.shape[:2]
    states = elementwise_states(through.flatten(0, 1), offset.flatten(0, 1), start.flatten(0, 1))
    return torch.cat((start[:, :, None], states.unflatten(0, (b, h))), 2)


def _dense_states(matrix: Tensor, offset: Tensor, start: Tensor) -> Tensor:
    states: Any = _DenseStates.apply(matrix, offset, start)
    return states


class _DenseStates(torch.autograd.Function):
    """S_(i+1) = E_i S_i + f_i over the chunks, one after another, and S_0 in front.

    A tree would be log r deep but needs products of the E_i with each other, four times the work; a chain of r products
    for n/64 chunks is little beside what happens inside them. The gradients of all E_i are one product at the end.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, offset: Tensor, start: Tensor) -> Tensor:
        r = offset.shape[2]
        states = torch.empty((r + 1, *start.flatten(0, 1).shape), dtype=offset.dtype, device=offset.device)
        states[0] = start.flatten(0, 1)
        e, f = matrix.flatten(0, 1), offset.flatten(0, 1)
        for i in range(r):
            torch.baddbmm(f[:, i], e[:, i], states[i], out=states[i + 1])
        ctx.save_for_backward(matrix, states)
        return states.movedim(0, 1).unflatten(0, start.shape[:2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        matrix, states = ctx.saved_tensors
        batch = matrix.shape[:2]
        e, g = matrix.flatten(0, 1), grads[0].flatten(0, 1)
        r = e.shape[1]
        adjoint = torch.empty_like(states)
        adjoint[r] = g[:, r]
        for i in range(r - 1, -1, -1):
            torch.baddbmm(g[:, i], e[:, i].mT, adjoint[i + 1], out=adjoint[i])
        later = adjoint[1:].movedim(0, 1)
        grad_matrix = later @ states[:-1].movedim(0, 1).mT
        return grad_matrix.unflatten(0, batch), later.unflatten(0, batch), adjoint[0].unflatten(0, batch)
