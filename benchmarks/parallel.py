"""What a scan over several processes costs, and what that means for many GPUs: python benchmarks/parallel.py

Counted, by rank: evaluations and calls of Agg, messages, bytes. Timed: one process against two, in turn. From the
counts, with bandwidths and rates that are stated, a million tokens on 8, 64 and 512 GPUs, beside ring attention and
LASP-2.
"""

import argparse
import multiprocessing
import tempfile
import time
from dataclasses import asdict, dataclass
from math import log2
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch import distributed as c10d

import scannable as sc
from scannable import distributed
from scannable.distributed import even_bounds
from scannable.distributed.split import blocks
from scannable.experiments.figure import powers, save_figure, save_page, save_rows, table, tidy

WIDTH = 8
"""Of the elements that are counted: a float64 vector for each of two rows."""
SIZES = ((4096, "even"), (4000, "even"), (4000, "rounded"), (500, "even"), (500, "rounded"))


# Counted.


@dataclass(frozen=True)
class Count:
    """One rank of one scan, forward and backward."""

    r: int
    p: int
    bounds: str
    rank: int
    elements: int
    blocks: int
    """Sent."""
    evaluations: int
    border: int
    """Of these, merges of nodes that begin before the part."""
    calls: int
    forward_messages: int
    backward_messages: int
    forward_bytes: int
    backward_bytes: int


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, WIDTH, dtype=torch.float64)
        self.calls = self.evaluations = 0

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        self.calls += 1
        self.evaluations += len(older)
        return torch.tanh(self.linear(torch.cat((older, newer), -1)))


def bounds_of(r: int, p: int, kind: str) -> tuple[int, ...]:
    return tuple(r * q // p for q in range(p + 1)) if kind == "even" else even_bounds(r, p)


def count(r: int, p: int, kind: str, rank: int) -> Count:
    """On one rank."""
    torch.manual_seed(0)
    agg, bounds = Counted(), bounds_of(r, p, kind)
    xs = torch.randn(2, r, WIDTH, dtype=torch.float64)
    split = distributed.Split(bounds, rank)
    shard = xs[:, split.first : split.stop].clone().requires_grad_()
    e = torch.zeros(WIDTH, dtype=torch.float64)
    with distributed.traffic() as sent:
        prefixes = distributed.scan(agg, shard, identity=e, dim=1, split=split)
        forward, evaluations, calls = len(sent), agg.evaluations, agg.calls
        prefixes.sum().backward()
    alone = {"first": split.first, "stop": split.stop - (0 if split.later(rank) else 1)}
    inside = _inside(**alone)
    return Count(
        r,
        p,
        kind,
        rank,
        split.length,
        len(blocks(split.first, split.stop)) if split.later(rank) else 0,
        evaluations,
        evaluations - inside - _down(split.first, split.stop - 1),
        calls,
        forward,
        len(sent) - forward,
        sum(message.nbytes for message in sent[:forward]),
        sum(message.nbytes for message in sent[forward:]),
    )


def _inside(first: int, stop: int) -> int:
    """Merges of nodes inside a part: it has one block for each that is not merged."""
    return max(0, stop - first) - len(blocks(first, stop))


def _down(first: int, last: int) -> int:
    """Calls of the downsweep for the prefixes at these places: odd numbers at every level, but the first by law."""
    total = 0
    for k in range(last.bit_length()):
        odd = [j for j in ((first >> k) | 1,) if j <= last >> k]
        total += (((last >> k) - odd[0]) // 2 + 1 - int(odd[0] == 1)) if odd else 0
    return total


# Timed.

TIMED = sc.TransformerPSMConfig(vocab_size=256, width=128, heads=4, chunk_length=32, agg_layers=1, inf_layers=1)
TOKENS = 4096


def step_seconds(model: Any, tokens: Tensor, p: int, rank: int, rounds: int) -> float:
    """The best of several steps, forward and backward, of this rank's part."""
    split = distributed.Split(distributed.bounds_for(model, TOKENS, p), rank)
    mine = tokens[:, split.first : split.stop]
    best = float("inf")
    for _ in range(rounds):
        if p > 1:
            c10d.barrier()
        began = time.perf_counter()
        loss = distributed.loss(model, mine, mine, split=split) if p > 1 else model.loss(tokens, tokens)
        loss.backward()
        if p > 1:
            c10d.barrier()
        best = min(best, time.perf_counter() - began)
    return best


def work(rank: int, p: int, store: str, job: str, rounds: int, answers: Any) -> None:
    torch.set_num_threads(1)
    if p > 1:
        c10d.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=p)
    if job == "counts":
        answers.put((rank, [count(r, p, kind, rank) for r, kind in SIZES]))
    else:
        torch.manual_seed(0)
        model = sc.TransformerPSM(TIMED)
        answers.put((rank, step_seconds(model, torch.randint(256, (1, TOKENS)), p, rank, rounds)))
    if p > 1:
        c10d.destroy_process_group()


def over(p: int, job: str, rounds: int = 1) -> list[Any]:
    """What each of p processes found."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        arguments = [(rank, p, f"{folder}/store", job, rounds, answers) for rank in range(p)]
        processes = [context.Process(target=work, args=each) for each in arguments]
        for process in processes:
            process.start()
        found = dict(answers.get(timeout=600) for _ in processes)
        for process in processes:
            process.join()
    return [found[rank] for rank in range(p)]


# Extrapolated.

N, D, C, HEADS, BYTES = 2**20, 2048, 64, 16, 2
FLOPS = 400e12
"""A second, that a GPU reaches in bfloat16."""
BANDWIDTH = {8: 450e9, 64: 50e9, 512: 50e9}
"""Bytes a second into each GPU: within a node, and between nodes."""


@dataclass(frozen=True)
class Estimate:
    """One layer, forward and backward, a million tokens, on one of `gpus`: the last, which has the most to do."""

    method: str
    gpus: int
    gflop: float
    received_mib: float
    compute_ms: float
    communication_ms: float


def transformer_layer(tokens: int) -> float:
    """FLOPs of a Transformer layer over a window: 24 d^2 a token, and 4 d for each pair of tokens."""
    return 24 * D**2 * tokens + 4 * D * tokens**2


def estimates() -> list[Estimate]:
    rows: list[Estimate] = []
    for p, bandwidth in BANDWIDTH.items():
        r = N // C
        m = r // p
        # Parts of equal powers of two: one block a rank; the last rank merges those of all before it.
        border = (p - 1) - (p - 1).bit_count()
        agg = 2 * m + border
        psm = 3 * (m + agg) * transformer_layer(2 * C)
        attention = 3 * (24 * D**2 * N / p + 4 * D * N * N / p / 2)
        linear = 3 * (24 * D**2 * N / p + 4 * D * D / HEADS * N / p)
        for method, flop, received in (
            ("Transformer-PSM", psm, 2 * (p - 1) * C * D * BYTES),
            ("ring attention", attention, 3 * (p - 1) / p * N * 2 * D * BYTES),
            ("LASP-2", linear, 2 * (p - 1) * D * D / HEADS * BYTES),
        ):
            rows.append(
                Estimate(method, p, flop / 1e9, received / 2**20, 1e3 * flop / FLOPS, 1e3 * received / bandwidth)
            )
    return rows


def draw(rows: list[Estimate], folder: Path) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        gpus = [row.gpus for row in mine]
        left.plot(gpus, [row.received_mib for row in mine], marker="o", label=method)
        right.plot(gpus, [row.compute_ms for row in mine], marker="o", label=f"{method}: computing")
        right.plot(
            gpus, [row.communication_ms for row in mine], marker="x", linestyle=":", color=right.lines[-1].get_color()
        )
    for axes, name in ((left, "MiB received by a GPU"), (right, "ms a layer (dotted: communication)")):
        powers(axes, list(BANDWIDTH))
        axes.set_yscale("log")
        axes.set_xlabel("GPUs")
        axes.set_ylabel(name)
        tidy(axes)
    save_figure(figure, folder, "parallel")


def page(folder: Path, counts: list[Count], seconds: dict[int, float], rows: list[Estimate]) -> None:
    """What the numbers mean, beside them."""
    shown = [count for count in counts if count.p > 1]
    by_scan: dict[tuple[int, int, str], list[Count]] = {}
    for one in shown:
        by_scan.setdefault((one.r, one.p, one.bounds), []).append(one)

    def joined(values: Any) -> str:
        return " / ".join(str(value) for value in values)

    measured = table(
        ("r", "ranks", "bounds", "blocks sent", "evaluations (border)", "calls", "bytes sent forward"),
        [
            (
                f"{r:,}",
                p,
                kind,
                joined(c.blocks for c in group),
                joined(f"{c.evaluations:,} ({c.border})" for c in group),
                joined(c.calls for c in group),
                joined(f"{c.forward_bytes:,}" for c in group),
            )
            for (r, p, kind), group in by_scan.items()
        ],
    )
    alone = table(
        ("r", "evaluations", "calls"),
        [(f"{c.r:,}", f"{c.evaluations:,}", c.calls) for c in counts if c.p == 1 and c.bounds == "even"],
    )
    extrapolated = table(
        ("method", "GPUs", "TFLOP a GPU", "MiB received", "ms computing", "ms communicating"),
        [
            (
                row.method,
                row.gpus,
                f"{row.gflop / 1e3:,.1f}",
                f"{row.received_mib:,.1f}",
                f"{row.compute_ms:,.1f}",
                f"{row.communication_ms:,.2f}",
            )
            for row in rows
        ],
    )
    ratio = seconds[1] / seconds[2]
    save_page(
        folder,
        "One sequence over many processes",
        "`scannable.distributed.scan` computes the tree of one process, whoever has which elements. Made by `python "
        "benchmarks/parallel.py --out results/parallel`; every number is in a CSV file beside this page.",
        "## Counted",
        "One scan of r elements, forward and backward, with gloo on one machine. An element is two rows of a float64 "
        "vector "
        f"of {WIDTH}, {2 * WIDTH * 8} bytes. Each scan is one all-gather forward and one reduce-scatter backward on "
        "every "
        "rank, none with one rank. *Even* bounds are r q / p; *rounded* ones begin at multiples of a power of two, "
        "which "
        "costs no part more than an eighth. Numbers are for ranks 0, 1, ... in order; the border is what a rank "
        "computes "
        "although others compute it too.",
        measured,
        "One process:",
        alone,
        "## Timed",
        f"A Transformer-PSM of width {TIMED.width} with chunks of {TIMED.chunk_length}, one layer each of Agg and "
        "Inf, one "
        f"sequence of {TOKENS:,} tokens, forward and backward, one thread a process, best of several steps, on two "
        "cores that "
        f"other work shared: {seconds[1]:.2f} s in one process, {seconds[2]:.2f} s in two, {ratio:.2f} times as "
        "fast. Linear "
        "would be 2.",
        "## Extrapolated",
        f"Nothing here was run on a GPU. One layer, one sequence of {N:,} tokens, width d = {D:,}, {HEADS} heads, "
        "bfloat16, "
        "forward and backward; the GPU that has the most to do. Assumed: "
        f"{FLOPS / 1e12:.0f} TFLOP/s reached; {BANDWIDTH[8] / 1e9:.0f} GB/s into each GPU within a node of 8, "
        f"{BANDWIDTH[64] / 1e9:.0f} GB/s between nodes; no latency, and no overlap of the two. Backward counts as two "
        "forwards of work.",
        "| method | work, forward | received, forward and backward |\n| --- | --- | --- |\n"
        f"| Transformer-PSM, c = {C}, r = n / c, m = r / p | (m Inf + (2 m + border) Agg) x (24 d² 2c + 4 d (2c)²); "
        "border up "
        "to p - 1 | 2 (p - 1) c d numbers: one block a rank |\n"
        "| ring attention, causal | 24 d² n / p + 2 d n² / p | 3 (p - 1)/p 2 n d: keys and values, again in "
        "backward, and "
        "their gradients |\n"
        "| LASP-2, linear attention | 24 d² n / p + 4 d² n / (h p) | 2 (p - 1) d² / h: one state a rank |",
        extrapolated,
        "![MiB received and milliseconds against the number of GPUs, for the three methods.](parallel.png)",
        "Ring attention receives keys and values of the whole sequence, whatever p is. The other two receive one "
        "state from "
        f"every GPU: c d = {C * D:,} numbers here against d² / h = {D * D // HEADS:,} of LASP-2.",
        "## Limits",
        "- Every rank merges the blocks of the ranks before it by itself: up to p - 1 evaluations in log2(p) calls. "
        "That is "
        f"little while a rank has many more chunks than there are ranks. At 512 GPUs a rank has {N // C // 512} "
        "chunks and up "
        "to 502 evaluations of border: most of its work is what others do too. Exchanging in two stages would leave "
        "about "
        "2 sqrt(p); it is not built.\n"
        "- With p ranks at arbitrary bounds a rank sends up to 2 log2(m) blocks, and its border grows by as much for "
        "every "
        "bound before it. `even_bounds` and `bounds_for` round parts for this reason.\n"
        "- Affine rows send one map a rank but run their recurrence twice; attention receives all keys and values.\n"
        "- Sharded weights are gathered once a step, for the whole model: memory for one copy of the weights is "
        "needed.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    counts = [one for p in (1, 2, 4) for rank in over(p, "counts") for one in rank]
    for one in counts:
        limit = 2 * one.elements + 4 * log2(one.r)
        assert one.evaluations <= limit, one
        print(*asdict(one).values(), sep="\t")
    seconds = {1: float("inf"), 2: float("inf")}
    for _ in range(3):
        # In turn: what else the machine does then hits both.
        for p in seconds:
            seconds[p] = min(seconds[p], max(over(p, "time", arguments.rounds)))
    print(f"one process {seconds[1]:.3f} s, two {seconds[2]:.3f} s: {seconds[1] / seconds[2]:.2f} times as fast")
    rows = estimates()
    for row in rows:
        print(*asdict(row).values(), sep="\t")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        save_rows(counts, arguments.out / "counts.csv")
        save_rows(rows, arguments.out / "extrapolated.csv")
        save_rows([Timed(p, seconds[p]) for p in seconds], arguments.out / "timed.csv")
        draw(rows, arguments.out)
        page(arguments.out, counts, seconds, rows)


@dataclass(frozen=True)
class Timed:
    """A step."""

    processes: int
    seconds: float


if __name__ == "__main__":
    main()
