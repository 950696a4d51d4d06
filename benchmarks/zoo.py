"""The affine zoo against the code that people use: python benchmarks/zoo.py

Forward, and forward + backward, at n = 512, 2,048 and 8,192, width 256 with 4 heads, batch 1, in turn within one run:
kernels of the rows against `transformers` (gated delta rule, mLSTM), flash-linear-attention's naive functions and the
plain recurrence; Mamba and Mamba-2 layers against `transformers`; the diagonal recurrence on (4, 4096, 256) against
torch's associative scan, mambapy and accelerated-scan; one step of Mamba; and the peak memory of Mamba's backward.
"""

import argparse
import inspect
import resource
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import best_of
from torch import Tensor
from torch.nn import functional

warnings.filterwarnings("ignore")

import accelerated_scan.ref as accelerated_scan  # noqa: E402
from fla.ops.delta_rule import naive as fla_delta_rule  # noqa: E402
from fla.ops.gla.naive import naive_recurrent_gla  # noqa: E402
from fla.ops.linear_attn.naive import naive_chunk_linear_attn  # noqa: E402
from fla.ops.retention.naive import naive_retention  # noqa: E402
from mambapy.pscan import pscan  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from transformers import Mamba2Config, Mamba2Model, MambaConfig, MambaModel  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule  # noqa: E402
from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd  # noqa: E402

import scannable as sc  # noqa: E402
from scannable.layers.affine.actions import Diagonal, Identity, Scalar  # noqa: E402
from scannable.layers.affine.chunkwise import DeltaRule, OuterProduct  # noqa: E402
from scannable.layers.affine.elementwise import elementwise_states  # noqa: E402
from scannable.layers.mlstm import normalised, stabilised  # noqa: E402
from scannable.storage.files import write_csv  # noqa: E402

WIDTH, HEADS = 256, 4
SIZE = WIDTH // HEADS
OURS = "scannable"
PATIENCE = 2.0
"""Seconds; what takes longer is run once."""
Candidate = Callable[[], Tensor]
# With flash-linear-attention installed, transformers would call its CUDA kernels.
chunk_gated_delta_rule: Any = inspect.unwrap(torch_chunk_gated_delta_rule)
mlstm_chunkwise: Any = mlstm_chunkwise_native_autograd
linear_attention_chunks: Any = naive_chunk_linear_attn
fla_delta: Any = fla_delta_rule


def by_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def recurrence(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | float) -> Tensor:
    """The plain loop over time, S = decay S + k vᵀ."""
    state, outputs = q.new_zeros(q.shape[0], HEADS, SIZE, SIZE), list[Tensor]()
    for t in range(q.shape[1]):
        faded = state * (decay[:, t, ..., None] if isinstance(decay, Tensor) else decay)
        state = faded + k[:, t, ..., None] * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outputs, 1)


def kernels(n: int) -> dict[str, dict[str, Candidate]]:
    """The rows' kernels on random inputs that want gradients."""

    def random(*shape: int) -> Tensor:
        return torch.randn(1, n, HEADS, *shape)

    q, k, v, unit = random(SIZE), random(SIZE), random(SIZE), functional.normalize(random(SIZE), dim=-1)
    strength, gate, gates = random().sigmoid(), functional.logsigmoid(random()), functional.logsigmoid(random(SIZE))
    log_input, forget = random(), random()
    retention = torch.log1p(-torch.exp2(-5.0 - torch.arange(HEADS))).expand(1, n, -1)
    for x in (q, k, v, unit, strength, gate, gates, log_input, forget):
        x.requires_grad_(True)
    start = torch.zeros(1, HEADS, SIZE, SIZE)

    def mlstm() -> Tensor:
        rule, stabiliser = stabilised(
            q * SIZE**-0.5, k, v, log_input, functional.logsigmoid(forget), torch.zeros(1, HEADS)
        )
        return normalised(rule.run(torch.zeros(1, HEADS, SIZE, SIZE + 1))[0], stabiliser, 1e-6)

    return {
        "linear attention": {
            OURS: lambda: OuterProduct(q, k, v, Identity()).run(start)[0],
            "fla, naive chunks": lambda: linear_attention_chunks(q, k, v),
            "plain recurrence": lambda: recurrence(q, k, v, 1.0),
        },
        "DeltaNet": {
            OURS: lambda: DeltaRule(q, unit, v, strength).run(start)[0],
            "fla, naive chunks": lambda: by_heads(
                fla_delta.delta_rule_chunkwise(*map(by_heads, (q, unit, v, strength)))[0]
            ),
            "fla, naive recurrence": lambda: by_heads(
                fla_delta.delta_rule_recurrence(*map(by_heads, (q, unit, v, strength)))[0]
            ),
        },
        "Gated DeltaNet": {
            OURS: lambda: DeltaRule(q, unit, v, strength, gate).run(start)[0],
            "transformers, chunks": lambda: chunk_gated_delta_rule(q, unit, v, gate, strength)[0],
        },
        "RetNet": {
            OURS: lambda: OuterProduct(q, k, v, Scalar(retention)).run(start)[0],
            "fla, naive": lambda: by_heads(naive_retention(*map(by_heads, (q, k, v)))),
            "plain recurrence": lambda: recurrence(q, k, v, retention[..., None].exp()),
        },
        "mLSTM": {
            OURS: mlstm,
            "transformers, chunks": lambda: mlstm_chunkwise(
                *map(by_heads, (q, k, v)), igate=by_heads(log_input), fgate=by_heads(forget)
            ),
        },
        "GLA": {
            OURS: lambda: OuterProduct(q, k, v, Diagonal(gates)).run(start)[0],
            "fla, naive recurrence": lambda: naive_recurrent_gla(q, k, v, gates)[0],
            "plain recurrence": lambda: recurrence(q, k, v, gates.exp()),
        },
    }


def layers(n: int) -> dict[str, dict[str, Candidate]]:
    """One whole layer of Mamba and of Mamba-2, projections included; transformers' with its norm and embedding."""
    x = torch.randn(1, n, WIDTH, requires_grad=True)

    def theirs(model: Any) -> Candidate:
        return lambda: model(inputs_embeds=x, use_cache=False).last_hidden_state

    shared: dict[str, Any] = {"vocab_size": 8, "hidden_size": WIDTH, "num_hidden_layers": 1}
    mamba = {
        OURS: sc.zoo.Mamba(WIDTH).forward,
        "transformers, mambapy": theirs(MambaModel(MambaConfig(**shared, use_mambapy=True))),
        "transformers, default": theirs(MambaModel(MambaConfig(**shared))),
    }
    if n > 512:
        del mamba["transformers, default"]  # its backward is quadratic, and takes minutes
    inner: dict[str, Any] = {"num_heads": HEADS, "head_dim": 2 * SIZE, "state_size": 128, "n_groups": 1}
    mamba2 = {
        OURS: sc.zoo.Mamba2(WIDTH, HEADS).forward,
        "transformers": theirs(Mamba2Model(Mamba2Config(**shared, **inner))),
    }
    with_input = {name: {OURS: lambda f=group[OURS]: f(x)} for name, group in (("Mamba", mamba), ("Mamba-2", mamba2))}
    return {"Mamba": {**mamba, **with_input["Mamba"]}, "Mamba-2": {**mamba2, **with_input["Mamba-2"]}}


def diagonal_recurrence() -> dict[str, Candidate]:
    """The recurrence h = a h + b on (4, 4096, 256)."""
    a, b = torch.rand(4, 4096, 256, requires_grad=True), torch.randn(4, 4096, 256, requires_grad=True)
    start = torch.zeros(4, 256)

    def compose(older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return older[0] * newer[0], newer[0] * older[1] + newer[1]

    def generic() -> Tensor:
        return associative_scan(compose, (a, b), dim=1, combine_mode="generic")[1]

    compiled = torch.compile(generic)
    with torch.no_grad():
        compiled()  # compiled here, and once more for gradients, so that it is not timed
    compiled().sum().backward()
    return {
        OURS: lambda: elementwise_states(a, b, start),
        "torch, associative scan": generic,
        "torch, associative scan compiled": compiled,
        "mambapy": lambda: pscan(a[..., None], b[..., None])[..., 0],
        "accelerated-scan": lambda: accelerated_scan.scan(a.mT.contiguous(), b.mT.contiguous()).mT,
    }


def steps() -> dict[str, Callable[[], object]]:
    """One token of a Mamba of four layers."""
    shared: dict[str, Any] = {"vocab_size": 1000, "hidden_size": WIDTH, "num_hidden_layers": 4}
    theirs: Any = MambaModel(MambaConfig(**shared)).eval()
    ours = sc.LM(sc.LMConfig(1000, ("mamba",) * 4, width=WIDTH, tie_weights=True)).eval()
    ours.head = torch.nn.Identity()  # theirs has none here
    tokens = torch.randint(1000, (1, 8))
    with torch.no_grad():
        cache = theirs(tokens, use_cache=True).cache_params
    _, state = ours.prefill(tokens, ours.initial_state(1))

    def theirs_step() -> None:
        with torch.no_grad():
            for _ in range(20):
                theirs(tokens[:, :1], cache_params=cache, use_cache=True)

    def our_step() -> None:
        held = state
        for _ in range(20):
            _, held = ours.step(tokens[:, 0], held)

    return {OURS: our_step, "transformers": theirs_step}


def peak_memory(candidate: str, n: int) -> float:
    """MiB that forward + backward of one layer of Mamba adds to a fresh process."""
    command = [sys.executable, __file__, "--memory", candidate, "--lengths", str(n)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(candidate: str, n: int) -> None:
    """Watched from a thread: the system's own high-water mark would count the parent's memory too."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    layers(8)["Mamba"][candidate]().sum().backward()
    run, before, peak, done = layers(n)["Mamba"][candidate], resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run().sum().backward()
    done.set()
    watcher.join()
    print((peak[0] - before) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="interleaved rounds; the best counts (default 5; up to 25 where n is short)",
    )
    parser.add_argument("--only", default="", help="only what has this in its name, such as 'Mamba'")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/zoo.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.memory:
        print_memory(arguments.memory, arguments.lengths[0])
        return
    rows: list[list[object]] = []

    def report(what: str, n: int, mode: str, seconds: dict[str, float], count: int) -> None:
        for name, best in seconds.items():
            ratio = best / seconds[OURS]
            print(
                f"{what:<22} n={n:<6} {mode:<18} {name:<34} {1e6 * best / count:10.1f} us   x{ratio:8.2f}", flush=True
            )
            rows.append([what, n, mode, name, f"{1e6 * best / count:.3f}", f"{ratio:.3f}"])

    def compare(what: str, n: int, candidates: dict[str, Candidate], count: int) -> None:
        if arguments.only not in what:
            return
        grad = torch.randn_like(candidates[OURS]().detach())

        def forward(run: Candidate) -> Callable[[], object]:
            return torch.no_grad()(run)

        def backward(run: Candidate) -> Callable[[], object]:
            return lambda: (lambda y: y.backward(grad.reshape(y.shape)))(run())

        for mode, wrap in (("forward", forward), ("forward+backward", backward)):
            timed = {name: wrap(run) for name, run in candidates.items()}
            # Short runs are disturbed more easily, and more of them cost nothing.
            rounds = min(25, arguments.rounds * max(1, max(arguments.lengths) // n))
            report(what, n, mode, best_of(rounds, timed, patience=PATIENCE), count)

    for n in arguments.lengths:
        for what, candidates in (kernels(n) | layers(n)).items():
            compare(what, n, candidates, n)
    if len(arguments.lengths) > 1:
        # Is time linear in n? The two longest in turn, ours only.
        short, long = sorted(arguments.lengths)[-2:]
        groups = {n: kernels(n) | layers(n) for n in (short, long)}
        for what in groups[short]:
            if arguments.only in what:
                runs = {n: groups[n][what][OURS] for n in (short, long)}
                timed = {str(n): (lambda f=f: f().sum().backward()) for n, f in runs.items()}
                best = best_of(8, timed)
                ratio = (best[str(long)] / long) / (best[str(short)] / short)
                print(
                    f"{what:<22} time a token at {long} over that at {short}, forward+backward: {ratio:.3f}", flush=True
                )
                rows.append(
                    [what, long, "forward+backward", f"scannable against itself at {short}", "", f"{ratio:.3f}"]
                )
    compare("diagonal recurrence", 4096, diagonal_recurrence(), 4 * 4096)
    if arguments.only in "Mamba step":
        report("Mamba step", 1, "step", best_of(arguments.rounds, steps()), 20)
    if arguments.only in "Mamba memory":
        n = max(arguments.lengths)
        held = {name: peak_memory(name, n) for name in (OURS, "transformers, mambapy")}
        for name, mebibytes in held.items():
            print(f"Mamba, peak memory of forward+backward n={n} {name:<24} {mebibytes:8.0f} MiB")
            rows.append(
                [
                    "Mamba memory (MiB)",
                    n,
                    "forward+backward",
                    name,
                    f"{mebibytes:.0f}",
                    f"{mebibytes / max(1, held[OURS]):.3f}",
                ]
            )
    write_csv(arguments.out, ["what", "n", "mode", "candidate", "microseconds per token", "times scannable"], rows)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
