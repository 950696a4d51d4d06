"""A prefix-scannable model from your own parts: ten lines of Agg, any causal Inf, and the check that both forms agree.

python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import scannable as sc

VOCABULARY, WIDTH, CHUNK = 32, 24, 8


class GatedAgg(nn.Module):
    """Neither associative nor commutative: a gate decides, number by number, how much of the past to keep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        self.mix = nn.Linear(2 * width, width)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        both = torch.cat((older, newer), -1)  # every axis but the last is batch
        gate = self.gate(both).sigmoid()
        return gate * older + (1 - gate) * torch.tanh(self.mix(both))


class MeanInf(nn.Module):
    """Output j sees the prefix and the mean of the chunk's tokens 0 to j."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.out = nn.Linear(2 * width, out)

    def forward(self, prefix: Tensor, x: Tensor) -> Tensor:
        so_far = x.cumsum(-2) / torch.arange(1, x.shape[-2] + 1, dtype=x.dtype)[:, None]
        return self.out(torch.cat((prefix, so_far), -1))


def main() -> None:
    torch.manual_seed(0)
    identity = nn.Parameter(torch.zeros(CHUNK, WIDTH))
    model = sc.PrefixScannableModel(
        nn.Embedding(VOCABULARY, WIDTH), GatedAgg(WIDTH), MeanInf(WIDTH, VOCABULARY), identity, chunk_length=CHUNK
    )
    tokens = torch.randint(VOCABULARY, (2, 100))
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()  # trains like any module

    report = sc.verify_duality(model, tokens, dtype=torch.float64)
    print(report)
    report.raise_if_failed()

    state = model.initial_state(1)
    for token in sc.generate(model, [1, 2, 3], max_new_tokens=5, seed=0):
        print("generated", int(token))
    for n in (1_000, 10_000, 100_000):
        _, state = model.prefill(torch.randint(VOCABULARY, (1, n - state.position)), state)
        print(f"after {n:>7,} tokens a stream holds {state.nbytes:,} bytes")


if __name__ == "__main__":
    main()
