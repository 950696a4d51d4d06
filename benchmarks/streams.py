"""Many streams at once, and the slowest token of one: python benchmarks/streams.py

Transformer-PSM (256 wide, 4 heads, 2 Agg + 2 Inf layers, c = 64, vocabulary 256).

1. 32 prompts of 100 to 2,000 tokens, prefilled together and one by one: throughput, and evaluations of Agg.
2. 32 streams at different positions, a step of all against a step of one.
3. One stream's step against its limit, the weights of Inf read once by matrix-vector products; p50, p99 and slowest
   at 1,024 and at 40,960 tokens, chunk boundaries included, in the paper's form and with one recent chunk, whose merges
   are spread over the tokens of the next.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from interleaved import best_of
from torch import Tensor

import scannable as sc
from scannable.storage.files import write_csv

CONFIG = sc.TransformerPSMConfig(256, 256, 4, chunk_length=64)
STREAMS, SHORTEST, LONGEST = 32, 100, 2000


def counted(model: sc.TransformerPSM, run: Callable[[], object]) -> int:
    """Evaluations of Agg in a run."""
    total = 0

    def count(_: object, inputs: tuple[Tensor, Tensor]) -> None:
        nonlocal total
        total += inputs[0].shape[:-2].numel()

    hook = model.agg.register_forward_pre_hook(count)
    run()
    hook.remove()
    return total


def prompts(rounds: int) -> list[list[object]]:
    torch.manual_seed(0)
    model = sc.TransformerPSM(CONFIG).eval()
    lengths = torch.linspace(SHORTEST, LONGEST, STREAMS).long()[torch.randperm(STREAMS)].tolist()
    tokens = torch.randint(256, (STREAMS, LONGEST))

    def together() -> object:
        return model.prefill(tokens, model.initial_state(STREAMS), lengths=lengths, logits_to_keep=0)

    def one_by_one() -> object:
        each = zip(tokens, lengths, strict=True)
        return [model.prefill(row[None, :m], model.initial_state(1), logits_to_keep=0) for row, m in each]

    best = best_of(rounds, {"together": together, "one by one": one_by_one})
    ratio = best["one by one"] / best["together"]
    evaluations = [counted(model, run) for run in (together, one_by_one)]
    print(
        f"{STREAMS} prompts of {SHORTEST} to {LONGEST} tokens: {sum(lengths) / best['together']:,.0f} tokens/s "
        f"together, {sum(lengths) / best['one by one']:,.0f} one by one, x{ratio:.2f}; "
        f"Agg evaluated {evaluations[0]} and {evaluations[1]} times"
    )
    return [["prompts together over one by one", ratio], ["Agg evaluations together", evaluations[0]]]


def steps(rounds: int) -> list[list[object]]:
    torch.manual_seed(0)
    model = sc.TransformerPSM(CONFIG).eval()
    ends = torch.randint(100, 2000, (STREAMS,)).tolist()
    states = [model.prefill(torch.randint(256, (1, n)), model.initial_state(1), logits_to_keep=0)[1] for n in ends]
    held = {"all": sc.join(states), "one": states[0].fork()}

    def chunk(name: str) -> Callable[[], object]:
        def run() -> None:
            for token in torch.randint(256, (64, held[name].batch_size)):
                _, held[name] = model.step(token, held[name])

        return run

    best = best_of(rounds, {name: chunk(name) for name in held})
    gain = STREAMS * best["one"] / best["all"]
    print(
        f"{STREAMS} streams: {best['all'] / 64 * 1e3:.2f} ms a step, one {best['one'] / 64 * 1e3:.2f} ms; throughput "
        f"x{gain:.1f}"
    )
    return [["throughput of 32 streams over one", gain]]


def latency(config: sc.TransformerPSMConfig, starts: list[int], count: int) -> list[list[object]]:
    torch.manual_seed(0)
    model = sc.TransformerPSM(config).eval()
    form = f"recent={config.recent}"
    weights = [weight for name, weight in model.inf.named_parameters() if weight.ndim == 2 and "positions" not in name]
    vectors = [torch.randn(weight.shape[1]) for weight in weights]
    found: list[list[object]] = []
    for start in starts:
        state = model.initial_state(1)
        for _ in range(start // 1024 - 1):
            _, state = model.prefill(torch.randint(256, (1, 1024)), state, logits_to_keep=0)
        seconds: list[float] = []
        limits: list[float] = []
        for token in torch.randint(256, (count + 64, 1)):
            began = time.perf_counter()
            _, state = model.step(token, state)
            middle = time.perf_counter()
            for weight, vector in zip(weights, vectors, strict=True):
                torch.mv(weight, vector)
            seconds.append(middle - began)
            limits.append(time.perf_counter() - middle)
        seconds, limits = sorted(seconds[64:]), sorted(limits[64:])
        p50, p99, worst = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100], seconds[-1]
        ratio = p50 / statistics.median(limits)
        print(
            f"{form} at {start:>6}: p50 {p50 * 1e3:.2f} ms (x{ratio:.2f} of the limit), p99 {p99 * 1e3:.2f}, slowest "
            f"{worst * 1e3:.2f}"
        )
        found += [
            [f"{form} at {start}: {name} ms", value * 1e3]
            for name, value in (("p50", p50), ("p99", p99), ("max", worst))
        ]
        found.append([f"{form} at {start}: p50 over limit", ratio])
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the best counts (default 3)")
    parser.add_argument("--tokens", type=int, default=1024, help="timed one by one (default 1,024)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/streams.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = prompts(arguments.rounds) + steps(arguments.rounds)
    for recent in (0, 1):
        rows += latency(replace(CONFIG, recent=recent), [1024, 40_960], arguments.tokens)
    write_csv(arguments.out, ["what", "value"], [[name, round(float(str(value)), 4)] for name, value in rows])


if __name__ == "__main__":
    main()
