"""Eqs. C1 and C2 for Transformer-PSM, predicted and counted: work in parallel, work and memory of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.spd.bounds import agg_evaluations
from scannable.spd.counters import CountedWork


@dataclass(frozen=True)
class Prediction:
    """One of the paper's costs of Transformer-PSM for n tokens, as counted and as predicted in two ways."""

    equation: str
    n: int
    counted: int
    from_parts: int
    """How often Agg and Inf are called, times what one call of each costs by itself."""
    from_formula: int
    """From L, c, d and n alone: matrix products only."""


@torch.no_grad()
def predict(model: TransformerPSM, chunks: Sequence[int]) -> list[Prediction]:
    """C1, the parallel work; C2, the work and the memory of a stream; each for so many chunks."""
    c, d = model.chunk_length, model.config.width
    element = torch.randn(1, c, d)
    agg, inf, head = (
        _work(lambda: model.agg(element, element)),
        _work(lambda: model.inf(element, element)),
        _work(lambda: model.head(element)),
    )
    read = _work(lambda: _read_one_by_one(model, element))
    formula = Formula(model.config)
    found: list[Prediction] = []
    for r in chunks:
        n, pairs = r * c, agg_evaluations(r)
        # The last chunk is in no prefix of a sequence that ends with it; a stream must be ready to go on.
        inside = agg_evaluations(r - 1)
        tokens = torch.randint(model.config.vocab_size, (1, n))
        found.append(
            Prediction(
                "C1 work",
                n,
                _work(lambda tokens=tokens: model(tokens)),
                inside * agg + r * (inf + head),
                inside * formula.agg + r * (formula.inf + formula.head),
            )
        )
        with CountedWork() as work:
            state = model.initial_state(1)
            for token in tokens[0].split(1):
                _, state = model.step(token, state)
        found.append(
            Prediction(
                "C2 work",
                n,
                work.operations,
                pairs * agg + r * (read + head),
                pairs * formula.agg + r * (formula.read + formula.head),
            )
        )
        found.append(Prediction("C2 memory", n, state.nbytes, model.state_nbytes(n), formula.held(r)))
    return found


def _work(run: Callable[[], object]) -> int:
    with CountedWork() as work:
        run()
    return work.operations


def _read_one_by_one(model: TransformerPSM, element: Tensor) -> None:
    """A chunk as a stream reads it: its prefix, then one token after the other."""
    inf: Any = model.inf
    cache = inf.begin(element)
    for i in range(model.chunk_length):
        _, cache = inf.read(element[:, i : i + 1], cache)


class Formula:
    """The matrix products of one chunk, and the bytes of a stream, from L_agg, L_inf, c and d.

    C1 and C2 keep only the scaling in n, c and L; here the factors that they leave out are written down. A layer over
    l positions, of which q ask, costs 4 l d^2 for keys and values, 20 q d^2 for queries, output and MLP, and 4 q l d
    for attention. In the last layer only the positions ask whose outputs are kept.
    """

    def __init__(self, config: TransformerPSMConfig) -> None:
        self.c, self.d, self.layers = config.chunk_length, config.width, config.inf_layers
        c, d = self.c, self.d
        self.agg: int = self._stack(config.agg_layers, 2 * c, 2 * c, c)
        self.inf: int = self._stack(config.inf_layers, 2 * c, 2 * c, c)
        # The prefix, whose outputs nobody needs; then token j of a chunk looks at the prefix and at j tokens.
        begin = self._stack(config.inf_layers, c, c, 0)
        self.read: int = begin + sum(self._stack(config.inf_layers, 1, c + j, 1) for j in range(1, c + 1))
        self.head: int = 2 * c * d * (config.out_size or config.vocab_size)

    def _stack(self, layers: int, new: int, keys: int, kept: int) -> int:
        def layer(q: int) -> int:
            return 4 * new * self.d**2 + 20 * q * self.d**2 + 4 * q * keys * self.d

        return (layers - 1) * layer(new) + layer(kept)

    def held(self, chunks: int) -> int:
        """Keys and values of Inf over 2c positions, a root and a fold for each bit, and the chunk in progress."""
        values = max(0, 2 * chunks.bit_count() - 1) + 1
        return 4 * (2 * self.layers * 2 * self.c * self.d + values * self.c * self.d)
