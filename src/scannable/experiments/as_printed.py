"""Transformer-PSM as the paper prints it, or its released code has it, switch by switch. Wrong prefixes and absolute
positions are there in parallel only.
"""

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from scannable.experiments.as_printed_config import AsPrintedConfig
from scannable.experiments.wrong_scans import SCANS
from scannable.layers.psm import into_chunks
from scannable.layers.transformer_psm import TransformerAgg, TransformerInf
from scannable.models.tokens import checked_tokens
from scannable.models.transformer_psm import TransformerPSM
from scannable.nn.block import Block
from scannable.nn.head import TiedHead
from scannable.nn.positions import starting_positions
from scannable.scan import scan


class AsPrinted(TransformerPSM):
    """The same weights, and prefixes, positions or a start that are not the library's."""

    def __init__(self, config: AsPrintedConfig) -> None:
        super().__init__(config)
        self.switches: AsPrintedConfig = config
        if config.absolute:
            self.enc = AbsoluteEmbedding(self.enc, config.absolute)
        if config.init_std:
            start_as_gpt2(self, config.init_std)
        if config.random_projection:
            assert isinstance(self.agg, TransformerAgg) and self.agg.projection is not None
            self.agg.projection.reset_parameters()

    def hidden(
        self, tokens: Integer[Tensor, "b n"], *, lengths: Any = None, starts: Any = None
    ) -> Float[Tensor, "b n d"]:
        if self._prefixes_are_right():
            return super().hidden(tokens, lengths=lengths, starts=starts)
        if lengths is not None or starts is not None:
            raise TypeError("what is as printed takes whole rows only, neither lengths nor starts")
        n = tokens.shape[1]
        chunks = into_chunks(self.enc(checked_tokens(tokens, 2, self.vocab_size)), self.chunk_length)
        return self.inf(self._prefixes(chunks), chunks).flatten(1, 2)[:, :n]

    def _prefixes(self, chunks: Float[Tensor, "b r c d"]) -> Float[Tensor, "b r c d"]:
        switches, e = self.switches, self.identity
        if switches.tree != "right":
            return SCANS[switches.tree](self.agg, chunks, e)
        found = scan(
            self.agg,
            chunks,
            identity=e,
            dim=1,
            inclusive=switches.prefix_of == "own",
            literal=switches.literal_identity,
        )
        if switches.prefix_of == "late":
            first = e.expand(len(chunks), 1, *e.shape)
            found = torch.cat((first, found[:, :-1]), 1)
        return found

    def _prefixes_are_right(self) -> bool:
        return self.switches.tree == "right" and self.switches.prefix_of == "earlier"

    def _consume(self, tokens: Tensor, state: Any, lengths: Any) -> Any:
        if self.switches.absolute or not self._prefixes_are_right():
            raise TypeError(
                "with this tree, these prefixes or positions it runs in parallel only; TransformerPSM streams"
            )
        return super()._consume(tokens, state, lengths)


class AbsoluteEmbedding(nn.Module):
    """Enc with learned positions that are counted from the start of the sequence."""

    def __init__(self, tokens: nn.Module, count: int) -> None:
        super().__init__()
        assert isinstance(tokens, nn.Embedding)
        self.tokens: nn.Embedding = tokens
        self.num_embeddings: int = tokens.num_embeddings
        # As sinusoids, so that they are not behind local ones that start so.
        self.positions = nn.Parameter(starting_positions(count, tokens.embedding_dim, sinusoids=True))

    def forward(self, tokens: Integer[Tensor, "*b n"]) -> Float[Tensor, "*b n d"]:
        n = tokens.shape[-1]
        if n > len(self.positions):
            raise ValueError(f"{n} tokens, but there are positions for {len(self.positions)} only")
        return self.tokens(tokens) + self.positions[:n]


@torch.no_grad()
def start_as_gpt2(model: TransformerPSM, std: float) -> None:
    """GPT-2's start: N(0, std^2) everywhere, residual outputs by 1/sqrt(2 layers), biases 0, and a plain tied head."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    for part in (model.agg, model.inf):
        assert isinstance(part, TransformerAgg | TransformerInf)
        blocks = part.transformer.blocks
        if part.transformer.positions is not None:
            nn.init.normal_(part.transformer.positions, std=std)
        for block in blocks:
            assert isinstance(block, Block)
            for residual in (block.attention.out, block.mlp_out):
                residual.weight.mul_((2 * len(blocks)) ** -0.5)
    nn.init.normal_(model.layer.get_parameter("identity_0"), std=std)
    if isinstance(model.head, TiedHead):
        model.head.scale = 1.0
