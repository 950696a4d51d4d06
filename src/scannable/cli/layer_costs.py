"""What each layer costs: `scannable zoo` prints the table."""

from dataclasses import dataclass

import torch

from scannable.layers import LAYERS
from scannable.spd.counters import CountedWork
from scannable.storage.configuration import ConfigurationError
from scannable.training.limits import memory_of


@dataclass(frozen=True)
class LayerCost:
    """One layer of a certain width: what it is, what it holds, and what a token costs."""

    name: str
    title: str
    action: str
    spd_class: str
    state_nbytes: int
    """Of one stream after `length` tokens."""
    parallel_work: float
    """Floating-point operations for a token, counted over `length` tokens at once."""
    step_work: float
    """The same for one more token by itself."""
    parameters: int


@torch.no_grad()
def rows(width: int = 256, heads: int = 4, length: int = 1024) -> list[LayerCost]:
    """What every row costs, counted on a layer of this width."""
    facts: list[LayerCost] = []
    for name, row in LAYERS.items():
        layer = row(width, heads)
        x = torch.randn(1, length, width)
        with CountedWork() as parallel:
            _, state = layer.extend(x, layer.initial_state(1))
        with CountedWork() as stepped:
            layer.step(x[:, 0], state)
        facts.append(
            LayerCost(
                name,
                row.title,
                row.action,
                row.spd_class,
                layer.state_nbytes(length),
                parallel.operations / length,
                stepped.operations,
                sum(parameter.numel() for parameter in layer.parameters()),
            )
        )
    return facts


def check_fits(width: int, length: int) -> None:
    """Refuse a sequence that does not fit with its outputs."""
    needed, limit = 2 * 4 * width * length, memory_of("cpu")
    if needed > limit:
        raise ConfigurationError(
            f"a layer of width {width:,} over {length:,} tokens takes {needed / 1e9:,.1f} GB or more, and there are "
            f"{limit / 1e9:,.1f} GB; choose a smaller width or length"
        )


def table(width: int = 256, heads: int = 4, length: int = 1024) -> str:
    """`rows` for people."""
    lines = [
        f"One layer of width {width} with {heads} heads, after {length} tokens; work in floating-point operations.",
        "",
        f"{'row':<18}{'E_t':<30}{'class (work, memory)':<22}{'state bytes':>12}{'work/token':>12}{'work/step':>11}"
        f"{'weights':>10}",
    ]
    lines += [
        f"{f.name:<18}{f.action:<30}{f.spd_class:<22}{f.state_nbytes:>12,}{f.parallel_work:>12,.0f}{f.step_work:>11,.0f}"
        f"{f.parameters:>10,}"
        for f in rows(width, heads, length)
    ]
    return "\n".join(lines)
