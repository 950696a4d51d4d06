"""Gated RFA is what its docstring says, written out position by position."""

import torch

import scannable as sc


@torch.no_grad()
def test_the_memory_forgets_by_the_gate_and_takes_up_the_rest() -> None:
    torch.manual_seed(0)
    layer, x = sc.zoo.GatedRFA(width=8, heads=2, features=3).double(), torch.randn(2, 9, 8, dtype=torch.float64)
    layer.log_scale.normal_(std=0.3)
    layer.gate.bias.normal_()
    q, k, v = layer.query_key_value(x).unflatten(-1, (3, 2, 4)).unbind(2)
    gate = layer.gate(x).sigmoid()

    def features(row: torch.Tensor, head: int) -> torch.Tensor:
        angles = layer.random[head] @ (layer.log_scale[head, 0].exp() * row / (row.square().sum() + 1e-6).sqrt())
        return torch.cat((angles.sin(), angles.cos())) / 3**0.5

    expected = torch.zeros(2, 9, 2, 4, dtype=torch.float64)
    for b in range(2):
        for head in range(2):
            memory, total = torch.zeros(6, 4, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
            for t in range(9):
                g, key = gate[b, t, head], features(k[b, t, head], head)
                memory = g * memory + (1 - g) * torch.outer(key, v[b, t, head])
                total = g * total + (1 - g) * key
                query = features(q[b, t, head], head)
                divisor = total @ query
                divisor = divisor.sign() * max(float(divisor.abs()), 0.1)
                expected[b, t, head] = query @ memory / divisor
    torch.testing.assert_close(layer(x), layer.out(expected.flatten(2)), rtol=1e-9, atol=1e-9)
