"""S_train of Eq. C1, measured: the bytes that a Transformer-PSM keeps for backward, against n, c, L_agg and L_inf.

Counted, not estimated, by `SavedBytes`: every block of memory that autograd holds after the forward pass, once. The
embedding's output to the hidden vectors; the output layer, which every model has, is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Literal

import torch
from matplotlib.figure import Figure
from torch.nn.attention import SDPBackend, sdpa_kernel

from scannable.experiments.figure import save_figure, save_json, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.profile import Profile
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.spd.bounds import agg_evaluations
from scannable.spd.saved import SavedBytes

VOCABULARY = 64
NUMBER = 4
"""Bytes of a float32."""

Attention = Literal["fused", "plain"]
"""Attention as one call that keeps no scores, which is torch's default; or as products and a softmax, which keeps
them."""


@dataclass(frozen=True)
class Shape:
    """What C1 depends on."""

    n: int
    c: int
    agg_layers: int
    inf_layers: int


AXES = tuple(field.name for field in fields(Shape))
LETTERS = {"n": "tokens n", "c": "chunk length c", "agg_layers": "L_agg", "inf_layers": "L_inf"}


@dataclass(frozen=True)
class Sizes:
    """A middle shape, and how far each of its four numbers is varied while the others stay."""

    width: int
    heads: int
    middle: Shape
    n: tuple[int, ...]
    c: tuple[int, ...]
    layers: tuple[int, ...]

    def along(self, axis: str) -> list[Shape]:
        """The shapes of one panel."""
        values = {"n": self.n, "c": self.c}.get(axis, self.layers)
        return [replace(self.middle, **{axis: value}) for value in values]


SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(16, 2, Shape(64, 8, 1, 1), n=(16, 32, 64), c=(2, 4, 8), layers=(1, 2)),
    "laptop": Sizes(
        64,
        4,
        Shape(4096, 32, 1, 1),
        n=tuple(2**k for k in range(8, 15)),
        c=tuple(2**k for k in range(2, 9)),
        layers=(1, 2, 3, 4),
    ),
    "paper": Sizes(
        256,
        4,
        Shape(4096, 64, 2, 2),
        n=tuple(2**k for k in range(8, 15)),
        c=tuple(2**k for k in range(3, 9)),
        layers=(1, 2, 3, 4),
    ),
}


@dataclass(frozen=True)
class Space:
    """What one forward pass leaves for backward."""

    axis: str
    n: int
    c: int
    agg_layers: int
    inf_layers: int
    attention: str
    checkpoint: bool
    nbytes: int
    formula: int

    @property
    def shape(self) -> Shape:
        return Shape(self.n, self.c, self.agg_layers, self.inf_layers)

    @property
    def per_token(self) -> float:
        return self.nbytes / self.n


def build(shape: Shape, sizes: Sizes, *, checkpoint: bool) -> TransformerPSM:
    config = TransformerPSMConfig(
        VOCABULARY,
        sizes.width,
        sizes.heads,
        chunk_length=shape.c,
        agg_layers=shape.agg_layers,
        inf_layers=shape.inf_layers,
        checkpoint=checkpoint,
    )
    return TransformerPSM(config).train()


def backends(attention: Attention) -> list[SDPBackend]:
    return [SDPBackend.MATH] if attention == "plain" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


def kept_for_backward(shape: Shape, sizes: Sizes, attention: Attention, *, checkpoint: bool) -> int:
    """Bytes in the graph of one sequence, parameters apart."""
    model = build(shape, sizes, checkpoint=checkpoint)
    tokens = torch.randint(VOCABULARY, (1, shape.n))
    with sdpa_kernel(backends(attention)), SavedBytes(apart=model.parameters()) as saved:
        hidden = model.hidden(tokens)
        held = saved.nbytes
    del hidden
    return held


def largest_level(shape: Shape, sizes: Sizes, attention: Attention) -> int:
    """Bytes in the graph of the largest call of Agg alone, which checkpointing brings back while it is recomputed."""
    model = build(shape, sizes, checkpoint=False)
    pairs = max(1, shape.n // shape.c // 2)
    older, newer = (torch.randn(pairs, shape.c, sizes.width) for _ in range(2))
    with sdpa_kernel(backends(attention)), SavedBytes(apart=(*model.parameters(), older, newer)) as saved:
        result = model.agg(older, newer)
        held = saved.nbytes
    del result
    return held


@dataclass(frozen=True)
class Formula:
    """S_train with the factors that C1 leaves out: vectors of d numbers, and what is smaller than a vector.

    A layer over l positions, q of which ask, keeps its input, the normed input, keys and values (4 l), then queries,
    what they gathered, the sum, the normed sum, and the MLP's inner vectors before and after GELU (12 q); where only
    some ask, their normed inputs are copied (q more). Norms keep 2 numbers a position; attention keeps one number for
    each head and asking position if it is fused, and one for each score if it is plain.
    """

    shape: Shape
    width: int
    heads: int
    attention: Attention

    def nbytes(self, *, checkpoint: bool) -> int:
        """Of one sequence."""
        r, c = self.shape.n // self.shape.c, self.shape.c
        inside = agg_evaluations(r - 1)
        numbers = r * self._stack(self.shape.inf_layers)
        if checkpoint:
            # What the levels start from: the nodes of all levels, and the prefixes above the lowest one.
            numbers += 3 * r * c * self.width
        else:
            numbers += inside * self._stack(self.shape.agg_layers)
        return NUMBER * numbers

    def _stack(self, layers: int) -> int:
        c, d = self.shape.c, self.width
        # Of the last layer, and of the norm behind it, only the right half is wanted.
        return (layers - 1) * self._layer(2 * c, 2 * c) + self._layer(2 * c, c) + c * d + 2 * c

    def _layer(self, length: int, asking: int) -> int:
        vectors = 4 * length + 12 * asking + (asking if asking < length else 0)
        scores = self.heads * asking * (length if self.attention == "plain" else 1)
        return vectors * self.width + 2 * length + 2 * asking + scores


def measure(sizes: Sizes) -> Iterator[Space]:
    """Every shape of every panel, with both kinds of attention, with and without checkpointing."""
    attentions: tuple[Attention, ...] = ("fused", "plain")
    for axis, attention, checkpoint in product(AXES, attentions, (False, True)):
        for shape in sizes.along(axis):
            held = kept_for_backward(shape, sizes, attention, checkpoint=checkpoint)
            formula = Formula(shape, sizes.width, sizes.heads, attention).nbytes(checkpoint=checkpoint)
            yield Space(axis, **asdict(shape), attention=attention, checkpoint=checkpoint, nbytes=held, formula=formula)


LOOKS: dict[tuple[str, bool], tuple[str, str, str]] = {
    ("plain", False): ("C3", "s", "plain attention"),
    ("plain", True): ("C1", "D", "plain attention, Agg checkpointed"),
    ("fused", False): ("C0", "o", "fused attention"),
    ("fused", True): ("C2", "^", "fused attention, Agg checkpointed"),
}


def draw(rows: Sequence[Space], sizes: Sizes) -> Figure:
    """KiB a token against each of the four numbers; the formula as dots."""
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 4)
    for axes, axis in zip(panels, AXES, strict=True):
        for (attention, checkpoint), (color, marker, label) in LOOKS.items():
            mine = [row for row in rows if (row.axis, row.attention, row.checkpoint) == (axis, attention, checkpoint)]
            x = [getattr(row, axis) for row in mine]
            axes.plot(x, [row.per_token / 1024 for row in mine], marker + "-", color=color, label=label, linewidth=0.8)
            axes.plot(x, [row.formula / row.n / 1024 for row in mine], ":", color="black", linewidth=1.4, zorder=3)
        if axis in ("n", "c"):
            axes.set_xscale("log", base=2)
        else:
            axes.set_xticks(sizes.layers)
        others = [f"{name} = {getattr(sizes.middle, other):,}" for other, name in SHORT.items() if other != axis]
        axes.set(xlabel=LETTERS[axis], title=", ".join(others), ylim=(0, None))
        axes.title.set_fontsize(9)
        tidy(axes, legend="none")
    panels[0].set_ylabel("KiB kept for backward, per token")
    panels[0].plot([], [], ":", color="black", label="C1 with its factors")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


SHORT = {"n": "n", "c": "c", "agg_layers": "L_agg", "inf_layers": "L_inf"}


def run(lab: Laboratory) -> None:
    """Count, and leave CSV, figure and page."""
    torch.manual_seed(0)
    sizes = SIZES[lab.profile]
    rows: list[Space] = []
    for row in measure(sizes):
        if not rows or rows[-1].axis != row.axis:
            lab.console.print(f"{lab.name}: against {LETTERS[row.axis]}", highlight=False)
        rows.append(row)
    save_rows(rows, lab.results / "space.csv")
    save_json(asdict(sizes), lab.results / "sizes.json")
    save_figure(draw(rows, sizes), lab.results, "space")
    again = {attention: largest_level(sizes.middle, sizes, attention) for attention in ("fused", "plain")}
    save_page(lab.results, "Space of training", *_page(lab, sizes, rows, again))


def _page(lab: Laboratory, sizes: Sizes, rows: Sequence[Space], again: dict[str, int]) -> list[str]:
    middle, ratios = sizes.middle, [row.nbytes / row.formula for row in rows]
    at = {(row.axis, row.attention, row.checkpoint, getattr(row, row.axis)): row for row in rows}

    def line(axis: str, value: int) -> list[str]:
        four = [
            at[axis, attention, checkpoint, value] for attention in ("fused", "plain") for checkpoint in (False, True)
        ]
        return [SHORT[axis], f"{value:,}", *(f"{row.per_token / 1024:.1f}" for row in four)]

    ends = [line(axis, getattr(shape, axis)) for axis in AXES for shape in sizes.along(axis)]
    first, last = (at["c", "fused", False, c].per_token / 1024 for c in (sizes.c[0], sizes.c[-1]))
    plain_first, plain_last = (at["c", "plain", False, c].per_token / 1024 for c in (sizes.c[0], sizes.c[-1]))
    whole = {key: at["n", key, False, middle.n].nbytes for key in again}
    kept = {key: at["n", key, True, middle.n].nbytes for key in again}
    return [
        """S_train of Eq. C1 of *Sequential-Parallel Duality in Prefix-Scannable Models*: what a Transformer-PSM keeps
for backward after the forward pass over one sequence, counted with torch's saved-tensor hooks, every block of memory
once, parameters and the output layer apart.""",
        f"    scannable reproduce space --profile {lab.profile}",
        "![bytes kept for backward](space.png)",
        f"Width {sizes.width}, {sizes.heads} heads, float32. One of n, c, L_agg, L_inf is varied at a time; the others "
        f"are n = {middle.n:,}, c = {middle.c}, L_agg = {middle.agg_layers}, L_inf = {middle.inf_layers}. All numbers "
        "are in `space.csv`, the sizes in `sizes.json`. They are counts: they do not depend on the machine's speed or "
        "load.",
        "KiB kept for backward, per token:",
        table(["varied", "value", "fused", "fused, checkpointed", "plain", "plain, checkpointed"], ends),
        "## Beside the formula",
        "C1 says S_train = O(c n L_inf + c n L_agg). With the factors written down (`experiments/training_space.py`: "
        "`Formula`), counted over predicted lies between "
        f"{min(ratios):.3f} and {max(ratios):.3f} over all {len(rows)} counts. What was found:",
        f"""- **Linear in n**, as C1 says, and in the number of layers: each layer of Agg costs about twice as much as
  one of Inf, since a chunk takes part in almost two evaluations of Agg and in one of Inf.
- **The factor c is the scores of attention, and only of plain attention.** With fused attention, which keeps no
  scores, S_train is O(n L_inf + n L_agg), without c: from c = {sizes.c[0]} to {sizes.c[-1]} it goes from
  {first:.1f} to {last:.1f} KiB a token. (It falls where few chunks are left, because the tree over r chunks needs
  2 r - O(log r) evaluations.) Plain attention goes from {plain_first:.1f} to {plain_last:.1f} KiB a token, with the
  c of C1 in it.
- **Checkpointing takes L_agg out of S_train.** `checkpoint=True` keeps the nodes of the tree and its prefixes, three
  vectors a token, whatever L_agg is: S_train becomes O(n L_inf + n), for one more evaluation of Agg in backward.""",
        "## What checkpointing brings back",
        "In backward one level of the tree at a time is computed again. The largest has half as many pairs as there "
        "are chunks, about a quarter of all evaluations, and its activations are there while it is differentiated; "
        "those of Inf are gone by then. MiB, at the middle shape, the last column counted for that call alone:",
        table(
            ["attention", "kept without", "kept with checkpointing", "largest level, again in backward"],
            [[key, *(f"{part[key] / 2**20:.1f}" for part in (whole, kept, again))] for key in again],
        ),
        "Inf is not checkpointed by this switch, and gradients, optimizer states and what backward itself needs for a "
        "moment are not in these numbers.",
    ]
