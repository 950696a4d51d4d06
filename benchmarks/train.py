"""Training throughput against length: python benchmarks/train.py

Forward and backward of Transformer-PSM (256 wide, 4 heads, 2 Agg + 2 Inf layers, c = 64, vocabulary 1,000), batch 1,
against its limit (the same evaluations of Agg and Inf in one batched call each, without the scan), the same with the
prefix as a memory of Inf, and `transformers`' GPT-2 of the same size (4 layers).
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from interleaved import best_of
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import scannable as sc
from scannable.spd import bounds
from scannable.storage.files import write_csv

VOCABULARY, WIDTH, HEADS, CHUNK = 1000, 256, 4, 64


def limit(model: sc.TransformerPSM, tokens: Tensor) -> Callable[[], object]:
    """As many pairs for Agg and chunks for Inf as a forward pass has, with nothing that depends on order."""
    chunks = tokens.shape[1] // CHUNK
    pairs = bounds.agg_evaluations(chunks - 1)

    def run() -> None:
        x = model.enc(tokens).unflatten(1, (chunks, CHUNK))[0]
        twice = torch.cat((x, x, x))
        aggregates = model.agg(twice[:pairs], twice[1 : pairs + 1])
        hidden = model.inf(x.roll(1, 0), x).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(model.head(hidden), tokens[0])
        (loss + 0 * aggregates.sum()).backward()

    return run


def keep_memory() -> None:
    """Start over with an allocator that does not give memory back: else every pass faults in its pages anew."""
    settings = {"MALLOC_TRIM_THRESHOLD_": str(2**35), "MALLOC_MMAP_THRESHOLD_": str(2**32)}
    if not settings.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 4096, 32_768])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; the best counts (default 5)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/train.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    keep_memory()
    torch.manual_seed(0)
    config = sc.TransformerPSMConfig(VOCABULARY, WIDTH, HEADS, chunk_length=CHUNK, agg_layers=2, inf_layers=2)
    model, memory = sc.TransformerPSM(config), sc.TransformerPSM(replace(config, prefix="memory"))
    rows: list[list[object]] = []
    for n in arguments.lengths:
        tokens = torch.randint(VOCABULARY, (1, n))
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=n,
            n_embd=WIDTH,
            n_layer=4,
            n_head=HEADS,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
        gpt2 = GPT2LMHeadModel(config)

        def ours(tokens: Tensor = tokens, model: sc.TransformerPSM = model) -> None:
            logits = model(tokens)
            torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()

        def theirs(tokens: Tensor = tokens, gpt2: GPT2LMHeadModel = gpt2) -> None:
            logits = gpt2(tokens, use_cache=False).logits
            torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()

        long = n > 8192
        candidates: dict[str, Callable[[], object]] = {
            "ours": ours,
            "memory": partial(ours, model=memory),
            "limit": limit(model, tokens),
            "gpt2": theirs,
        }
        # GPT-2 is quadratic: two rounds must do at the longest, and the other two warm up for it.
        if long:
            ours()
            candidates["limit"]()
        best = best_of(2 if long else arguments.rounds, candidates, warm_up=not long)
        speed = {name: n / seconds for name, seconds in best.items()}
        ours_to = {name: seconds / best["ours"] for name, seconds in best.items()}
        print(
            f"n={n:<6} Transformer-PSM {speed['ours']:8.0f} tokens/s   of the limit {ours_to['limit']:.2f}   "
            f"GPT-2 {speed['gpt2']:8.0f} tokens/s   x{ours_to['gpt2']:.2f}   "
            f"prefix as memory x{best['gpt2'] / best['memory']:.2f}"
        )
        rows.append([n, *(round(speed[name], 1) for name in ("ours", "limit", "gpt2", "memory"))])
        del gpt2
    print(f"time per token, slowest over fastest: {max(r[1] for r in rows) / min(r[1] for r in rows):.3f}")  # pyright: ignore
    write_csv(
        arguments.out, ["n", "tokens_per_s", "limit_tokens_per_s", "gpt2_tokens_per_s", "memory_tokens_per_s"], rows
    )


if __name__ == "__main__":
    main()
