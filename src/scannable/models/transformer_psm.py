"""Transformer-PSM (Sec. "Transformer-PSM"): Enc an embedding, Agg and Inf GPT-2-style Transformers over two chunks."""

import torch
from torch import nn

from scannable.layers.transformer_psm import TransformerAgg, TransformerInf
from scannable.models.prefix_scannable import PrefixScannableModel
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.nn.head import TiedHead


class TransformerPSM(PrefixScannableModel):
    """A language model, or any model with one output a token, whose state is a scan of Transformer aggregates.

        model = TransformerPSM(TransformerPSMConfig(vocab_size=50257, width=256, chunk_length=64))

    Elements have unit variance from the start, whether embeddings, positions, the identity or what Agg's LayerNorm
    returns: a prefix may be any of them, and Agg must not find one side of its window louder than the other.

    >>> model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    >>> tokens = torch.randint(50, (2, 30))
    >>> model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    >>> logits, state = model.prefill(tokens, model.initial_state(2), logits_to_keep=1)
    >>> logits.shape, state.positions
    (torch.Size([2, 1, 50]), (30, 30))
    """

    def __init__(self, config: TransformerPSMConfig) -> None:
        enc = nn.Embedding(config.vocab_size, config.width)
        head = (
            TiedHead(enc, config.width**-0.5)
            if config.tie_weights
            else nn.Linear(config.width, config.out_size or config.vocab_size)
        )
        if isinstance(head, nn.Linear):
            nn.init.normal_(head.weight, std=config.width**-0.5)
            nn.init.zeros_(head.bias)
        super().__init__(
            enc,
            TransformerAgg(config.width, config.heads, config),
            TransformerInf(config.width, config.heads, config),
            nn.Parameter(torch.randn(config.chunk_length, config.width)),
            config.chunk_length,
            head=head,
            recent=config.recent,
            literal_identity=config.literal_identity,
            checkpoint=config.checkpoint,
        )
        self.config: TransformerPSMConfig = config

    @torch.no_grad()
    def start_agg_from_inf(self) -> list[str]:
        """Copy the weights of Inf's Transformer into Agg's; the names of the parameters that were changed.

        At c = 1 the second position of Inf computes x_0 * x_1, which is what Agg has to learn: after a first stage of
        length 2 or 3, at whose second position no Agg takes part, Agg starts where Inf has arrived. What an optimizer
        remembers of the changed parameters is of no more use.
        """
        agg, inf = self.agg, self.inf
        if not isinstance(agg, TransformerAgg) or not isinstance(inf, TransformerInf):
            raise TypeError(
                f"start_agg_from_inf copies a TransformerInf into a TransformerAgg, not a {type(inf).__name__} into a "
                f"{type(agg).__name__}"
            )
        theirs, ours = ((len(part.transformer.blocks), part.transformer.heads) for part in (agg, inf))
        if theirs != ours:
            raise ValueError(
                f"start_agg_from_inf needs an Agg with the layers and heads of Inf, {ours}, but it has {theirs}"
            )
        windows = [0 if part.positions is None else len(part.positions) for part in (agg.transformer, inf.transformer)]
        if windows[0] != windows[1]:
            raise ValueError(
                f"start_agg_from_inf needs an Agg with the windows of Inf, {windows[1]} positions, but it has "
                f"{windows[0]}; choose recent=0, or positions that are not learned"
            )
        agg.transformer.load_state_dict(inf.transformer.state_dict())
        return [f"layer.agg.transformer.{name}" for name, _ in agg.transformer.named_parameters()]
