"""Log-linear attention (Guo et al. 2025, "Log-linear attention"): a row whose state is the binary counter."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.chunkwise import CHUNK, ScalarDecay, chunked
from scannable.layers.affine.monoid import Affine, compose
from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import SequenceLayer, check_sizes, head_size, not_a_state
from scannable.layers.log_linear_state import LogLinearState, RowsAtOnePosition, regrouped
from scannable.layers.recurrent import owned
from scannable.layers.state import State
from scannable.nn.decay import undecayed
from scannable.nn.device import without_autocast
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection, step_size_bias
from scannable.scan import LevelRoots, Roots, extend_roots

Counter = Roots[Affine]


class LogLinearAttention(SequenceLayer):
    """Linear attention with a memory for each root of the counter, and a weight for each level.

        y_t = Σ_l λ_(t,l) S_(t,l)ᵀ q_t     S_(t,0) = k_t v_tᵀ     S_(t,l) = the memory of root l - 1, faded to t

    The roots are those of Alg. 2 over the (E, f) pairs of a scalar gate: aligned blocks of 2^(l-1) positions, the
    nearer the smaller. With all λ equal it is the row with that gate alone. Held are O(log n) memories and the keys and
    values of one chunk; a chunk is an implementation's choice and changes no number. Levels beyond the last share its
    weight. The gate is that of Mamba-2, as in the paper's first variant. Rows of a batch may be at different positions.

    >>> layer = sc.zoo.LogLinearAttention(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Log-linear attention"
    action = "scalar gate, in a counter"
    spd_class = "(n log n, log n)"

    def __init__(self, width: int, heads: int = 4, *, levels: int = 20, chunk: int = CHUNK) -> None:
        super().__init__(width, heads)
        check_sizes(levels=levels, chunk=chunk)
        if chunk & (chunk - 1):
            raise ValueError(f"chunk={chunk} must be a power of two: chunks are nodes of the scan's tree")
        self.head_size: int = head_size(width, heads)
        self.levels: int = levels
        self.chunk: int = chunk
        self.query_key_value = projection(width, 3 * width)
        self.step_size = projection(width, heads)
        self.step_size_bias = step_size_bias(heads)
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        undecayed(self, "log_rate")
        self.level_weight = projection(width, heads * levels, bias=True)
        self.norm = HeadNorm(heads, self.head_size)
        self.out = projection(width, width)

    def initial_state(self, batch_size: int) -> LogLinearState:
        check_sizes(batch_size=batch_size)
        buffers = (
            self.zeros(batch_size, 0, self.heads, *size, dtype=self.memory_dtype)
            for size in ((self.head_size,), (self.head_size,), ())
        )
        group = RowsAtOnePosition(tuple(range(batch_size)), Roots(), *buffers)
        return LogLinearState(self.chunk, (group,))

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """A root for each set bit of the number of whole chunks, and the keys, values and decays of the positions that
        fill none.
        """
        roots = (position // self.chunk).bit_count() * (self.head_size**2 + 1)
        buffered = position % self.chunk * (2 * self.head_size + 1)
        return batch_size * self.heads * (roots + buffered) * self.memory_dtype.itemsize

    def check_state(self, state: object, rows: int) -> None:
        if torch.compiler.is_compiling():
            return
        if not isinstance(state, LogLinearState):
            raise not_a_state(self, state, rows)
        if state.chunk != self.chunk:
            raise ValueError(
                f"the state counts chunks of {state.chunk} positions; a layer with another chunk than {self.chunk} "
                "made it"
            )
        held = sorted(row for group in state.groups for row in group.rows)
        if held != list(range(rows)):
            raise ValueError(
                f"the state holds {len(held)} rows, expected {rows}; another model or batch made it: start from this "
                f"layer's initial_state({rows})"
            )
        for group in state.groups:
            self._check_group(group, rows)

    def _check_group(self, group: RowsAtOnePosition, rows: int) -> None:
        heads, size, kind = self.heads, self.head_size, self.memory_dtype
        count, filled = len(group.rows), min(group.key.shape[1], self.chunk - 1)
        parts = [
            ("key", group.key, (count, filled, heads, size)),
            ("value", group.value, (count, filled, heads, size)),
            ("log_decay", group.log_decay, (count, filled, heads)),
            *(("root", root.offset, (count, heads, size, size)) for root in group.counter.roots.values()),
        ]
        for name, part, shape in parts:
            if part.shape != shape or part.dtype != kind:
                raise ValueError(
                    f"the state's {name!r} has the shape {tuple(part.shape)} and dtype {part.dtype}, expected {shape} "
                    f"and {kind}; another model or batch made it: start from this layer's initial_state({rows})"
                )

    def extend(
        self,
        x: Float[Tensor, "b n d"],
        state: State,
        *,
        lengths: Any = None,
        mode: Mode = "chunkwise",
    ) -> tuple[Float[Tensor, "b n d"], State]:
        """As for every layer. Rows that stand at one position and have one length are computed together, each such
        group by itself; so `lengths` are looked at, and on a GPU that waits for the work in progress.
        """
        self.check(x, lengths, mode)
        self.check_state(state, x.shape[0])
        if x.numel() == 0:
            return x, state
        memory = cast(LogLinearState, state.usable())
        n = x.shape[1]
        counts = [n] * x.shape[0] if lengths is None else _looked_at(lengths, n)
        if len(memory.groups) == 1 and min(counts) == n:
            y, group = self._go_on(x, memory.groups[0], mode)
            return y, LogLinearState(self.chunk, (group,))
        outputs, after = torch.zeros_like(x), list[RowsAtOnePosition]()
        for group, count in _of_one_length(memory.groups, counts):
            if count:
                rows = torch.tensor(group.rows, dtype=torch.int64, device=x.device)
                y, group = self._go_on(x.index_select(0, rows)[:, :count], group, mode)
                outputs = outputs.to(y.dtype).index_copy(0, rows, functional.pad(y, (0, 0, 0, n - count)))
            after.append(group)
        return outputs, regrouped(self.chunk, after)

    def _go_on(
        self, x: Float[Tensor, "b n d"], group: RowsAtOnePosition, mode: Mode
    ) -> tuple[Float[Tensor, "b n d"], RowsAtOnePosition]:
        """Rows at one position, n positions further."""
        if mode == "step" and x.shape[1] > 1:
            outputs = list[Tensor]()
            for position in x.split(1, 1):
                y, group = self._go_on(position, group, mode)
                outputs.append(y)
            return torch.cat(outputs, 1), group
        kind = self.memory_dtype
        q, k, v = (part.unflatten(-1, (self.heads, -1)).to(kind) for part in self.query_key_value(x).chunk(3, -1))
        q = q * self.head_size**-0.5
        log_decay = -self.log_rate.exp() * functional.softplus(self.step_size(x) + self.step_size_bias)
        weights = functional.softplus(self.level_weight(x).unflatten(-1, (self.heads, -1))).to(kind)
        with without_autocast(x.device):
            k, v, g = (
                torch.cat((old, new), 1)
                for old, new in ((group.key, k), (group.value, v), (group.log_decay, log_decay.to(kind)))
            )
            run = self._by_positions if mode == "scan" else log_linear_chunks
            outputs, counter = run(q, k, v, g, weights, group.counter, self.chunk)
        whole = k.shape[1] // self.chunk * self.chunk
        buffers = owned({"key": k[:, whole:], "value": v[:, whole:], "log_decay": g[:, whole:]})
        return self.out(self.norm(outputs)), RowsAtOnePosition(group.rows, counter, **buffers)

    @staticmethod
    def _by_positions(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, weights: Tensor, counter: Counter, chunk: int
    ) -> tuple[Tensor, Counter]:
        """The definition: a counter over single positions."""
        new = slice(k.shape[1] - q.shape[1], None)
        old = slice(0, k.shape[1] - q.shape[1])
        counter = _of_positions(counter, chunk)
        # The positions in the buffer first; nobody reads there.
        _, counter = log_linear_chunks(q[:, :0], k[:, old], v[:, old], g[:, old], weights[:, :0], counter, 1)
        outputs, counter = log_linear_chunks(q, k[:, new], v[:, new], g[:, new], weights, counter, 1)
        return outputs, _of_chunks(counter, chunk)


def log_linear_chunks(
    query: Float[Tensor, "b n h k"],
    key: Float[Tensor, "b m h k"],
    value: Float[Tensor, "b m h v"],
    log_decay: Float[Tensor, "b m h"],
    weights: Float[Tensor, "b n h l"],
    counter: Counter,
    chunk: int,
) -> tuple[Float[Tensor, "b n h v"], Counter]:
    """Outputs of the last n of m positions that begin where `counter`, a counter of whole chunks, stands; and the
    counter after those of the m positions that fill chunks.
    """
    n, m = query.shape[1], key.shape[1]
    whole = m // chunk
    edge, after, outputs = whole * chunk, counter, list[Tensor]()
    asked = min(n, m - edge)
    if whole:
        unasked = (0, 0, 0, 0, edge - (n - asked), 0)
        q, w = (chunked(functional.pad(x[:, : n - asked], unasked), chunk) for x in (query, weights))
        k, v, g = (chunked(x[:, :edge], chunk) for x in (key, value, log_decay))
        decays = ScalarDecay(g)
        maps = Affine(Scalar(g.sum(-1)), decays.to_end(k).mT @ v)
        levels, after = extend_roots(compose, counter, maps, dim=2)
        places = range(counter.position, after.position)
        within = _within(q, k, v, w, decays) + _read(levels, places, decays.from_start(q), w, chunk, v.shape[-1])
        outputs.append(within.flatten(2, 3)[:, :, unasked[4] :].transpose(1, 2))
    if asked:
        # The chunk in progress, as one shorter chunk in which only the new positions ask.
        q, w = (chunked(x[:, n - asked :], asked) for x in (query, weights))
        k, v, g = (chunked(x[:, edge:], m - edge) for x in (key, value, log_decay))
        decays = ScalarDecay(g, asked)
        place = range(after.position, after.position + 1)
        within = _within(q, k, v, w, decays)
        within = within + _read(_standing(after), place, decays.from_start(q), w, chunk, v.shape[-1])
        outputs.append(within[:, :, 0].transpose(1, 2))
    return torch.cat((value[:, :0], *outputs), 1), after


def _within(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, decays: ScalarDecay) -> Tensor:
    """What positions of a chunk read of their own chunk: the last of `k` are where `q` asks."""
    place = torch.arange(k.shape[-2], device=q.device)
    # Two positions of a chunk meet in the block that their highest different bit says; a position meets itself in 0.
    level = torch.frexp((place[-q.shape[-2] :, None] ^ place).float()).exponent.to(torch.int64)
    return decays.pairs(q, k) * _weight(weights, level.expand(*weights.shape[:3], -1, -1)) @ v


def _standing(counter: Counter) -> list[LevelRoots[Affine]]:
    """The roots of a counter as they stand now."""
    return [
        LevelRoots(
            k,
            (counter.position >> k) - 1,
            Affine(Scalar(root.action.log_decay[:, :, None]), root.offset[:, :, None]),
        )
        for k, root in sorted(counter.roots.items())
    ]


def _read(levels: list[LevelRoots[Affine]], places: range, q: Tensor, weights: Tensor, chunk: int, size: int) -> Tensor:
    """Σ over the roots before each of the chunks at `places`: weight · (root faded to the chunk's start)ᵀ q."""
    faded, total = q.new_zeros(q.shape[:3]), q.new_zeros((*q.shape[:-1], size))
    for roots in levels:
        here, index = roots.before(places, q.device)
        if len(here) == 0:
            continue
        log_decay = roots.nodes.action.log_decay.index_select(2, index)
        memory = roots.nodes.offset.index_select(2, index)
        of_level = torch.full((1,), roots.level + chunk.bit_length(), device=q.device)
        weight = _weight(weights.index_select(2, here), of_level.expand(*q.shape[:2], len(here), q.shape[3], 1))
        scale = weight * faded.index_select(2, here).exp()[..., None, None]
        total = total.index_add(2, here, scale * (q.index_select(2, here) @ memory))
        faded = faded.index_add(2, here, log_decay)
    return total


def _weight(weights: Tensor, level: Tensor) -> Tensor:
    """λ at the given levels; those beyond the last share its weight."""
    return weights.gather(-1, level.clamp(max=weights.shape[-1] - 1))


def _of_positions(counter: Counter, chunk: int) -> Counter:
    """A counter of chunks as one of positions: the same roots, some levels higher."""
    up = chunk.bit_length() - 1
    return Roots(counter.position << up, {k + up: root for k, root in counter.roots.items()})


def _of_chunks(counter: Counter, chunk: int) -> Counter:
    """The inverse, without the positions that fill no chunk."""
    up = chunk.bit_length() - 1
    return Roots(counter.position >> up, {k - up: root for k, root in counter.roots.items() if k >= up})


def _looked_at(lengths: Any, n: int) -> list[int]:
    """Lengths as numbers."""
    if isinstance(lengths, Tensor) and (lengths.is_meta or torch.compiler.is_compiling()):
        raise ValueError(
            f"lengths on {lengths.device} cannot be looked at: log-linear attention groups rows by their lengths; pass "
            "them as a list, or a tensor on the CPU, or leave them out where all rows are of one length"
        )
    counts: list[int] = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if not 0 <= min(counts) <= max(counts) <= n:
        raise ValueError(f"lengths {counts} must lie between 0 and {n}, the length of x")
    return counts


def _of_one_length(groups: Iterable[RowsAtOnePosition], counts: list[int]) -> Iterator[tuple[RowsAtOnePosition, int]]:
    """Each group cut into those of its rows that go on for as many positions."""
    for group in groups:
        for count in sorted({counts[row] for row in group.rows}):
            places = [place for place, row in enumerate(group.rows) if counts[row] == count]
            rows = [group.rows[place] for place in places]
            yield (group if len(rows) == len(group.rows) else group.select(places, rows)), count
