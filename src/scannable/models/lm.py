"""A language model of any layers: embedding, pre-norm residual blocks of a layer and an MLP, output layer.

GPT, sliding-window attention, Mamba and every other row of the zoo, a stack of prefix-scannable layers, and hybrids of
them are lines of configuration in this one frame.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scannable.layers import LAYERS
from scannable.layers.affine.recurrence import Mode
from scannable.layers.attention import Attention
from scannable.layers.convolved_mlp import ConvolvedMLP
from scannable.layers.layer import SequenceLayer
from scannable.layers.state import State, advanced
from scannable.models.base import CausalModel, check_logits_to_keep, last
from scannable.models.layer_options import LayerOptions
from scannable.models.lm_config import LMConfig
from scannable.models.lm_state import LMState
from scannable.models.tokens import checked_tokens
from scannable.nn.decay import undecayed
from scannable.nn.head import TiedHead
from scannable.nn.mlp import activated
from scannable.nn.positions import starting_positions
from scannable.nn.projection import projection
from scannable.scan.documents import documents_of
from scannable.scan.many_streams import on_device, runs


class LMBlock(nn.Module):
    """x + layer(norm(x)), then x + MLP(norm(x)) if there is one."""

    def __init__(self, config: LMConfig, options: LayerOptions) -> None:
        super().__init__()
        layer = LAYERS[options.layer]
        self.norm = norm(config)
        self.mixer: SequenceLayer = layer(config.width, options.heads or config.heads, **options.arguments())
        self.dropout = nn.Dropout(config.dropout)
        wanted = config.mlp if options.with_mlp is None else options.with_mlp
        self.mlp_norm: nn.Module | None = None
        self.mlp: MLP | None = None
        if layer.usual_mlp if wanted is None else wanted:
            self.mlp_norm, self.mlp = norm(config), MLP(config)

    def forward(self, x: Float[Tensor, "b n d"], *, lengths: Any, starts: Any, mode: Mode) -> Float[Tensor, "b n d"]:
        """All positions, from nothing."""
        return self.after(x, self.mixer(self.norm(x), lengths=lengths, starts=starts, mode=mode))

    def extend(
        self, x: Float[Tensor, "b n d"], state: State, lengths: Any, mode: Mode
    ) -> tuple[Float[Tensor, "b n d"], State]:
        """More positions, from a state on."""
        mixed, state = self.mixer.extend(self.norm(x), state, lengths=lengths, mode=mode)
        return self.after(x, mixed), state

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block's output, from its input and what the layer made of it."""
        x = x + self.dropout(mixed)
        return x if self.mlp is None or self.mlp_norm is None else x + self.dropout(self.mlp(self.mlp_norm(x)))


class MLP(nn.Module):
    """Four times as wide inside unless told; with SwiGLU, as many parameters."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.kind: str = config.activation
        gated = config.activation == "swiglu"
        inner = config.mlp_width or (-(-8 * config.width // 3) if gated else 4 * config.width)
        self.into = projection(config.width, 2 * inner if gated else inner, bias=config.mlp_bias)
        self.out = projection(inner, config.width, bias=config.mlp_bias)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self.out(activated(self.into(x), self.kind))


def norm(config: LMConfig) -> nn.Module:
    """The norm that a configuration asks for."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.width, eps=config.eps)


class LM(CausalModel[LMState]):
    """Any layers as a causal sequence model, with the protocol that all models here have.

        model = LM(LMConfig(vocab_size=50257, width=256, layers=("mamba", "mamba", "psm", "attention")))

    Projections start with variance 1 / fan-in unless `init_std` says otherwise, those that write to the residual stream
    less by the square root of how many there are.

    >>> model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("mamba", "attention")))
    >>> logits, state = model.prefill(torch.randint(50, (2, 10)), model.initial_state(2))
    >>> logits, state = model.step(torch.tensor([3, 4]), state)
    >>> logits.shape, state.positions
    (torch.Size([2, 50]), (11, 11))
    """

    state_kind: ClassVar[type] = LMState
    embedding_name: ClassVar[str | None] = "embedding"

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config: LMConfig = config
        self.checkpoint: bool = config.checkpoint
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions: nn.Parameter | None = None
        self.blocks = nn.ModuleList(LMBlock(config, options) for options in config.options())
        self.norm = norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head: nn.Module
        # A tied embedding must give logits of unit scale.
        scale = config.init_std or (config.width**-0.5 if config.tie_weights else 1.0)
        if scale != 1:
            nn.init.normal_(self.embedding.weight, std=scale)
        if config.tie_weights:
            self.head = TiedHead(self.embedding)
        else:
            self.head = projection(config.width, config.out_size or config.vocab_size)
        if config.positions:
            start = starting_positions(config.positions, config.width, sinusoids=config.sinusoids)
            # Of the scale of the embeddings that they are added to.
            self.positions = nn.Parameter(start * scale)
            undecayed(self, "positions")
        if config.init_std is not None:
            self._restart(config.init_std)
        self._scale_residuals()

    def _blocks(self) -> Iterator[LMBlock]:
        return (cast(LMBlock, block) for block in self.blocks)

    def _restart(self, std: float) -> None:
        """GPT-2's start, of what GPT-2 has."""
        parts: list[nn.Module] = [self.head]
        for block in self._blocks():
            parts += [part for part in (block.mixer, block.mlp) if isinstance(part, Attention | ConvolvedMLP | MLP)]
        for linear in (module for part in parts for module in part.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=std)

    @torch.no_grad()
    def _scale_residuals(self) -> None:
        writers = [
            part
            for block in self._blocks()
            for part in (getattr(block.mixer, "out", None), None if block.mlp is None else block.mlp.out)
            if isinstance(part, nn.Linear)
        ]
        for writer in writers:
            writer.weight.mul_(len(writers) ** -0.5)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.config.vocab_size

    def forward(
        self,
        tokens: Integer[Tensor, "b n"],
        *,
        logits_to_keep: int | None = None,
        lengths: Any = None,
        starts: Any = None,
        mode: Mode = "chunkwise",
    ) -> Float[Tensor, "b m out"]:
        """As for every model; `mode` is which of the equal ways runs the recurrences."""
        check_logits_to_keep(logits_to_keep)
        hidden = self.hidden(tokens, lengths=lengths, starts=starts, mode=mode)
        return self.head(last(hidden, logits_to_keep))

    def hidden(
        self,
        tokens: Integer[Tensor, "b n"],
        *,
        lengths: Any = None,
        starts: Any = None,
        mode: Mode = "chunkwise",
    ) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head."""
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        places = self._places(tokens, lengths, starts)
        x = self.embedded(tokens, places)
        again = self.checkpoint and self.training and torch.is_grad_enabled()
        for block in self._blocks():
            options: dict[str, Any] = {"lengths": lengths, "starts": starts, "mode": mode}
            x = checkpoint(block, x, use_reentrant=False, **options) if again else block(x, **options)
        return self.norm(x)

    def _places(self, tokens: Tensor, lengths: Any, starts: Any) -> Tensor | None:
        """Where each token stands in its document."""
        if self.positions is None:
            return None
        b, n = tokens.shape
        if starts is None:
            return self.within_positions(torch.arange(n, device=tokens.device), (0,) * b, n, lengths).expand(b, n)
        documents = documents_of(b, n, starts=starts).in_all_rows()
        places = on_device(runs(documents.counts * 0, documents.counts), tokens.device).view(b, n)
        return self.within_positions(places, (0,), int(documents.counts.max(initial=0)), None)

    def within_positions(self, places: Tensor, start: tuple[int, ...], n: int, lengths: Any) -> Tensor:
        """Places of tokens; refused if one that counts has no learned position."""
        assert self.positions is not None
        learned = len(self.positions)
        if max(start, default=0) + n <= learned:
            return places
        furthest = max(advanced(start, n, lengths), default=0)
        if furthest > learned:
            raise ValueError(
                f"{furthest} tokens are more than the {learned} positions this model has learned; build it with more "
                "positions, or with positions=0 and rotary ones"
            )
        return places.clamp(max=learned - 1)

    def embedded(self, tokens: Tensor, places: Tensor | None) -> Tensor:
        """What the first block gets, for tokens at these places."""
        x = self.embedding(tokens)
        if self.positions is not None and places is not None:
            x = x + functional.embedding(places, self.positions)
        return self.dropout(x) if self.training else x

    def _empty(self, batch_size: int) -> LMState:
        layers = tuple(block.mixer.initial_state(batch_size) for block in self._blocks())
        return LMState((0,) * batch_size, layers)

    def _nbytes(self, position: int, batch_size: int) -> int:
        return sum(block.mixer.state_nbytes(position, batch_size) for block in self._blocks())

    def _check_state(self, state: LMState, rows: int) -> None:
        if len(state.layers) != len(self.blocks):
            raise ValueError(
                f"the state has {len(state.layers)} layers, this model {len(self.blocks)}; another model made it"
            )
        for block, layer in zip(self._blocks(), state.layers, strict=True):
            block.mixer.check_state(layer, rows)
            if layer.positions != state.positions:
                raise ValueError(
                    f"the state is at {state.positions}, but one of its layers at {layer.positions}; another stream "
                    "made it"
                )

    def _consume(self, tokens: Tensor, state: LMState, lengths: Any) -> tuple[Float[Tensor, "b m d"], LMState]:
        m = tokens.shape[1]
        mode: Mode = "step" if m == 1 else "chunkwise"
        places = None
        if self.positions is not None:
            places = torch.tensor(state.positions, device=tokens.device)[:, None]
            places = places + torch.arange(m, device=tokens.device)
            places = self.within_positions(places, state.positions, m, lengths)
        x = self.embedded(tokens, places)
        after: list[State] = []
        for block, layer in zip(self._blocks(), state.layers, strict=True):
            x, layer = block.extend(x, layer, lengths, mode)
            after.append(layer)
        return self.norm(x), LMState(advanced(state.positions, m, lengths), tuple(after))
