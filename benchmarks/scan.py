"""How near the static scan is to its limit, and to other scans: python benchmarks/scan.py

A block-sized Agg (width 256, 64 + 64 tokens a pair): against the same number of evaluations in one batched call.
A cheap Agg (elementwise affine): against torch's generic associative scan and a Python loop over time.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from interleaved import best_of
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan

import scannable as sc
from scannable.spd import CountedAgg
from scannable.storage.files import write_csv

CHUNK, WIDTH = 64, 256
HEADER = ["agg", "n", "pass", "scannable_ms", "peer", "peer_ms", "peer_over_scannable"]


class BlockAgg(nn.Module):
    """A bidirectional pre-norm Transformer block over [older | newer], right half kept."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        pair = torch.cat((older, newer), -2)
        return self.block(pair.flatten(0, -3))[:, CHUNK:].view(newer.shape)


def affine(older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return older[0] * newer[0], torch.addcmul(newer[1], newer[0], older[1])


def forward_only(run: Callable[[], Tensor]) -> Callable[[], object]:
    def timed() -> object:
        with torch.no_grad():
            return run()

    return timed


def with_backward(run: Callable[[], Tensor]) -> Callable[[], object]:
    return lambda: run().sum().backward()


def block_rows(rounds: int) -> list[list[object]]:
    agg = BlockAgg()
    identity = torch.zeros(CHUNK, WIDTH)
    rows: list[list[object]] = []
    for r in (8, 64, 512):
        xs = torch.randn(1, r, CHUNK, WIDTH)
        counted = CountedAgg(agg, (CHUNK, WIDTH))
        with torch.no_grad():
            sc.scan(counted, xs, identity=identity, dim=1)
        older, newer = torch.randn(2, counted.evaluations, CHUNK, WIDTH)

        def scanned(xs: Tensor = xs) -> Tensor:
            return sc.scan(agg, xs, identity=identity, dim=1)

        def limit(older: Tensor = older, newer: Tensor = newer) -> Tensor:
            return agg(older, newer)

        for name, mode in (("forward", forward_only), ("forward+backward", with_backward)):
            best = best_of(rounds if r < 512 else 2, {"scan": mode(scanned), "limit": mode(limit)})
            rows.append(row("block", r, name, best["scan"], "one batched call", best["limit"]))
    return rows


def affine_rows(rounds: int) -> list[list[object]]:
    rows: list[list[object]] = []
    identity = (torch.tensor(1.0), torch.tensor(0.0))
    for n, width in ((65_536, 8), (65_536, 64)):
        gate, value = torch.rand(n, width).requires_grad_(), torch.randn(n, width).requires_grad_()

        def ours(gate: Tensor = gate, value: Tensor = value) -> Tensor:
            return sc.scan(affine, (gate, value), identity=identity, inclusive=True)[1]

        def torchs(gate: Tensor = gate, value: Tensor = value) -> Tensor:
            return associative_scan(affine, (gate, value), 0, combine_mode="generic")[1]

        def loop(gate: Tensor = gate, value: Tensor = value) -> Tensor:
            states = [value[0]]
            for g, v in zip(gate.unbind()[1:], value.unbind()[1:], strict=True):
                states.append(torch.addcmul(v, g, states[-1]))
            return torch.stack(states)

        torch.testing.assert_close(ours(), torchs())
        torch.testing.assert_close(ours(), loop())
        for name, mode in (("forward", forward_only), ("forward+backward", with_backward)):
            best = best_of(rounds, {"ours": mode(ours), "torch": mode(torchs)})
            rows.append(row(f"affine, width {width}", n, name, best["ours"], "torch associative_scan", best["torch"]))
            best |= best_of(1, {"loop": mode(loop)})
            rows.append(row(f"affine, width {width}", n, name, best["ours"], "Python loop", best["loop"]))
    return rows


def row(agg: str, n: int, passes: str, ours: float, peer: str, theirs: float) -> list[object]:
    print(
        f"{agg:>16}  n={n:<6} {passes:<17} {1e3 * ours:9.1f} ms   {peer}: {1e3 * theirs:9.1f} ms   x{theirs / ours:.2f}"
    )
    return [agg, n, passes, round(1e3 * ours, 2), peer, round(1e3 * theirs, 2), round(theirs / ours, 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds; the best counts (default 7)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/scan.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [*block_rows(arguments.rounds), *affine_rows(arguments.rounds)]
    write_csv(arguments.out, HEADER, rows)


if __name__ == "__main__":
    main()
