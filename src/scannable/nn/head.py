"""The embedding as output layer."""

from jaxtyping import Float
from torch import Tensor, nn


class TiedHead(nn.Module):
    """Logits are products with the embedding's rows, times `scale`: 1/sqrt(d) for rows of unit variance."""

    def __init__(self, embedding: nn.Embedding, scale: float = 1.0) -> None:
        super().__init__()
        # In a tuple, so that the shared weight has one name and is saved once.
        self._shared: tuple[nn.Embedding] = (embedding,)
        self.scale: float = scale

    def forward(self, hidden: Float[Tensor, "*b d"]) -> Float[Tensor, "*b out"]:
        return nn.functional.linear(hidden, self._shared[0].weight) * self.scale
