"""Transformer-PSM (Sec. "Transformer-PSM"): Enc an embedding, Agg and Inf GPT-2-style Transformers over two chunks."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.models.prefix_scannable import PrefixScannableModel
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.nn import KVCache, Transformer
from scannable.nn.head import TiedHead


class TransformerAgg(nn.Module):
    """Agg(x_i, x_j) = RH(GPT_b([x_i | x_j])): two chunks of c tokens to one.

    Bidirectional over the 2c tokens. Of the last layer only the right half is computed, being all that is kept; with
    a projection all 2c tokens are, and LayerNorm and a learned map over the token axis bring them to c.
    """

    def __init__(self, config: TransformerPSMConfig) -> None:
        super().__init__()
        c = config.chunk_length
        self.unit: bool = config.unit_states
        self.noise: float = config.state_noise
        """Deviation of the Gaussian noise on what Agg returns in training, as a fraction of its size; 0 for none. May
        be set at any time, and is not saved with the weights."""
        self.transformer = Transformer(
            width=config.width,
            layers=config.agg_layers,
            heads=config.agg_heads or config.heads,
            window=2 * c,
            causal=config.agg_causal,
            dropout=config.dropout,
            sinusoids=config.sinusoids,
        )
        self.projection: nn.Linear | None = None
        if config.compress == "projection":
            self.projection = nn.Linear(2 * c, c)
            # The sum of both halves, place by place: what is mixed from the start is hard to tell apart again.
            halves = torch.eye(c).repeat(1, 2) * 0.5**0.5
            self.projection.weight.data.copy_(halves)
            nn.init.zeros_(self.projection.bias)

    def forward(self, older: Float[Tensor, "*b c d"], newer: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c d"]:
        if older.ndim > 3:
            # The rows of the batch outermost, as everywhere else: a training step seeds noise by the row.
            return self._rows_first(older.movedim(-3, 0), newer.movedim(-3, 0)).movedim(0, -3)
        return self._rows_first(older, newer)

    def _rows_first(self, older: Tensor, newer: Tensor) -> Tensor:
        pair = torch.cat((older, newer), -2)
        if self.projection is None:
            both = self.transformer(pair, kept=newer.shape[-2])
        else:
            both = self.projection(self.transformer(pair).transpose(-1, -2)).transpose(-1, -2)
        if self.unit:
            both = nn.functional.rms_norm(both, both.shape[-1:])
        return self._with_noise(both) if self.training and self.noise else both

    def _with_noise(self, states: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c d"]:
        # Relative, or the gain of the last LayerNorm would grow until the noise no longer matters.
        size = states.detach().square().mean((-1, -2), keepdim=True).sqrt()
        return states + self.noise * size * torch.randn_like(states)


class TransformerInf(nn.Module):
    """Inf(s, x) = RH(GPT_c([s | x])): causal, so output j sees the prefix and tokens 0 to j of its chunk."""

    def __init__(self, config: TransformerPSMConfig) -> None:
        super().__init__()
        self.transformer = Transformer(
            width=config.width,
            layers=config.inf_layers,
            heads=config.heads,
            window=2 * config.chunk_length,
            causal=True,
            dropout=config.dropout,
            sinusoids=config.sinusoids,
        )

    def forward(self, prefix: Float[Tensor, "*b c d"], x: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c d"]:
        return self.transformer(torch.cat((prefix, x), -2), kept=x.shape[-2])

    def new_cache(self, batch: int) -> KVCache:
        return self.transformer.new_cache(batch)

    def cache_nbytes(self, batch: int) -> int:
        return self.transformer.cache_nbytes(batch)

    def begin(self, prefix: Float[Tensor, "b c d"], cache: KVCache) -> None:
        """Put only the prefix of a chunk into an unfilled cache: keys and values, no outputs."""
        self.transformer(prefix, kept=0, cache=cache)

    def read(self, prefix: Tensor | None, x: Float[Tensor, "b m d"], cache: KVCache) -> Float[Tensor, "b m d"]:
        """The next m positions of a chunk; the first ones bring the prefix with them, unless it was `begun`."""
        if prefix is None:
            return self.transformer(x, cache=cache)
        window = torch.cat((prefix.expand(x.shape[0], -1, -1), x), -2)
        return self.transformer(window, kept=x.shape[1], cache=cache)


class TransformerPSM(PrefixScannableModel):
    """A language model, or any model with one output a token, whose state is a scan of Transformer aggregates.

        model = TransformerPSM(TransformerPSMConfig(vocab_size=50257, width=256, chunk_length=64))

    Elements have unit variance from the start, whether embeddings, positions, the identity or what Agg's LayerNorm
    returns: a prefix may be any of them, and Agg must not find one side of its window louder than the other.
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
            TransformerAgg(config),
            TransformerInf(config),
            nn.Parameter(torch.randn(config.chunk_length, config.width)),
            config.chunk_length,
            head=head,
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
        agg.transformer.load_state_dict(inf.transformer.state_dict())
        return [f"agg.transformer.{name}" for name, _ in agg.transformer.named_parameters()]
