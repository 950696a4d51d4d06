"""Time per token while a stream grows to 40,960 tokens: python benchmarks/decode.py

Transformer-PSM (256 wide, 4 heads, 2 Agg + 2 Inf layers, c = 64, vocabulary 50,257) against `transformers`' GPT-2 (4
layers, 4 heads, 256 wide) at a context of 40,960, with its static and its growing cache, and its Mamba (4 layers, 256
wide). The output layer over 50,257 tokens is the same for all and hides the rest, so it is left out where not said.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import DynamicCache, GPT2Config, GPT2Model, MambaConfig, MambaModel, StaticCache

import scannable as sc
from scannable.storage.files import write_csv

VOCABULARY, WIDTH, HEADS, LAYERS = 50_257, 256, 4, 4
WINDOW = 4096


def stream(model: sc.TransformerPSM, start: int, count: int) -> list[float]:
    """Seconds of each of `count` tokens after position `start`, chunk boundaries included."""
    state = model.initial_state(1)
    for _ in range(start // WINDOW):
        _, state = model.prefill(torch.randint(VOCABULARY, (1, WINDOW)), state)
    seconds: list[float] = []
    for token in torch.randint(VOCABULARY, (count + 64, 1)):
        began = time.perf_counter()
        _, state = model.step(token, state)
        seconds.append(time.perf_counter() - began)
    return seconds[64:]  # the first chunk warms up


def timed(run: Callable[[], object], count: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds


def gpt2_step(context: int, *, static: bool) -> Callable[[], object]:
    """One token after `context` others, whose keys and values are random: time does not depend on them."""
    config = GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=context + 256, vocab_size=VOCABULARY)
    model = GPT2Model(config).eval()
    cache = StaticCache(config, max_cache_len=context + 256) if static else DynamicCache(config=config)
    past = torch.randn(2, 1, HEADS, context, WIDTH // HEADS)
    for layer in range(LAYERS):
        cache.update(past[0], past[1], layer)
    token = torch.randint(VOCABULARY, (1, 1))

    def step() -> object:
        return model(token, past_key_values=cache, use_cache=True)

    return step


def mamba_step() -> Callable[[], object]:
    config = MambaConfig(num_hidden_layers=LAYERS, hidden_size=WIDTH, vocab_size=VOCABULARY)
    model = MambaModel(config).eval()
    first = model(torch.randint(VOCABULARY, (1, 8)), use_cache=True)
    token = torch.randint(VOCABULARY, (1, 1))

    def step() -> object:
        return model(token, cache_params=first.cache_params, use_cache=True)

    return step


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40_960, help="length of the stream (default 40,960)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/decode.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    n, last = arguments.tokens, arguments.tokens - WINDOW
    model = sc.TransformerPSM(
        sc.TransformerPSMConfig(VOCABULARY, WIDTH, chunk_length=64, agg_layers=2, inf_layers=2, heads=HEADS)
    )
    model.eval()
    head, model.head = model.head, nn.Identity()

    rows: list[list[object]] = []

    def report(what: str, position: int, seconds: list[float]) -> float:
        ordered = sorted(1e3 * s for s in seconds)
        mean = statistics.fmean(ordered)
        p50, p99 = ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))]
        spread = f"p50 {p50:7.2f}   p99 {p99:7.2f}   max {ordered[-1]:7.2f}"
        print(f"{what:<34} at {position:>7,}: mean {mean:7.2f} ms   {spread}")
        rows.append([what, position, len(ordered), *(round(x, 4) for x in (mean, p50, p99, ordered[-1]))])
        return mean

    # First and last window in turn, so that a drift of the machine meets both.
    early, late = [], []
    for _ in range(3):
        early.append(stream(model, 0, WINDOW))
        late.append(stream(model, last, WINDOW))
    first = report("Transformer-PSM", WINDOW, min(early, key=sum))
    final = report("Transformer-PSM", n, min(late, key=sum))
    peers: dict[str, Callable[[], object]] = {
        "GPT-2, static cache": gpt2_step(n, static=True),
        "GPT-2, growing cache": gpt2_step(n, static=False),
        "Mamba": mamba_step(),
    }
    for step in peers.values():
        timed(step, 3)
    seconds: dict[str, list[float]] = {name: [] for name in ("Transformer-PSM, in turn", *peers)}
    for _ in range(5):
        seconds["Transformer-PSM, in turn"] += stream(model, last, 256)
        for name, step in peers.items():
            seconds[name] += timed(step, 100 if name == "Mamba" else 5)
    means = {name: report(name, n, values) for name, values in seconds.items()}
    model.head = head
    report("Transformer-PSM with output layer", WINDOW, stream(model, 0, 512))
    report("Transformer-PSM with output layer", n, stream(model, last, 512))

    ours = means["Transformer-PSM, in turn"]
    print(f"\nlast {WINDOW:,} tokens against the first: x{final / first:.3f}")
    for name in peers:
        print(f"{name} takes x{means[name] / ours:.1f} the time of Transformer-PSM")
    write_csv(arguments.out, ["what", "position", "tokens", "mean_ms", "p50_ms", "p99_ms", "max_ms"], rows)


if __name__ == "__main__":
    main()
