"""What depends on where tensors live, and on whether a graph is being compiled."""

import torch
from torch import Tensor

from scannable.nn.device import may_look


def test_values_are_looked_at_on_a_cpu_and_not_while_compiling() -> None:
    x = torch.zeros(2)
    assert may_look(x) and not may_look(x.to("meta"))

    def looks(x: Tensor) -> Tensor:
        return x + 1 if may_look(x) else x + 2

    torch._dynamo.reset()
    assert looks(x).tolist() == [1, 1]
    assert torch.compile(looks, backend="eager", fullgraph=True)(x).tolist() == [2, 2]
