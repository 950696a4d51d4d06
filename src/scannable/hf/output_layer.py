"""The output layer of a model, as a module of its own: `transformers` ties, saves and finds only such."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.models.base import CausalModel
from scannable.nn.head import TiedHead
from scannable.storage.model_file import build_model


class ScaledLinear(nn.Linear):
    """A linear map without bias, times a number: a `TiedHead` whose weight has a name."""

    def __init__(self, embedding: nn.Embedding, scale: float) -> None:
        # Without memory: `tie_weights` puts the embedding's weight in its place. Until then they must not be the same,
        # or transformers takes an embedding that it has not loaded for one that it has tied.
        super().__init__(embedding.embedding_dim, embedding.num_embeddings, bias=False, device="meta")
        self.scale: float = scale

    def forward(self, input: Float[Tensor, "*b d"]) -> Float[Tensor, "*b out"]:
        return nn.functional.linear(input, self.weight) * self.scale


def build_parts(typed: Any) -> tuple[CausalModel[Any], nn.Module]:
    """A new model that returns hidden vectors, and the output layer that was its head."""
    network = build_model(typed)
    if not isinstance(network, CausalModel) or network.embedding_name is None:
        raise TypeError(
            f"a {type(network).__name__} cannot be wrapped for transformers: that takes a scannable.models.base."
            "CausalModel that names its embedding (embedding_name); models of transformers itself are used as they are"
        )
    head = network.head
    if isinstance(head, TiedHead):
        head = ScaledLinear(cast(nn.Embedding, network.get_submodule(network.embedding_name)), head.scale)
    network.head = nn.Identity()
    return network, head


def put_together(typed: Any, network: CausalModel[Any], head: nn.Module) -> CausalModel[Any]:
    """The model that `build_parts` took apart. It has the same weights: training one trains the other."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        whole = build_model(typed)
    weights = dict(network.state_dict(keep_vars=True))
    if not isinstance(whole.head, TiedHead):
        weights |= {f"head.{name}": value for name, value in head.state_dict(keep_vars=True).items()}
    whole.load_state_dict(weights, assign=True)
    return whole.train(network.training)
