"""GPT-2 as people use it: the model of transformers. Its state is the keys and values of all tokens so far."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from scannable.baselines.model import Baseline, check_config, check_part, output_layer, transformers
from scannable.layers.attention_state import AttentionState, capacity
from scannable.models.config_checks import check_choice, check_number
from scannable.nn import Continuation, KVCache
from scannable.nn.decay import undecayed
from scannable.nn.positions import starting_positions
from scannable.storage.registry import register_model

GPT2_INIT_STD = 0.02


@dataclass(frozen=True)
class GPT2BaselineConfig:
    """The knobs of a `GPT2Baseline`."""

    vocab_size: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    context: int = 1024
    """How many positions are learned, and so the longest input; not used with positions="none"."""
    positions: Literal["absolute", "none"] = "absolute"
    """A learned vector for each position, or nothing but the causal mask (NoPE), for inputs of any length."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""
    dropout: float = 0.0
    init_std: float | None = None
    """Deviation of all weights at the start, embedding and positions included; GPT-2's 0.02, unless told. What writes
    to the residual stream starts lower by sqrt(2 layers), as in GPT-2."""
    sinusoids: bool = False
    """Start the learned positions as sinusoids of that size instead of noise."""

    def __post_init__(self) -> None:
        check_config(self, "heads", "context")
        check_choice(self, "positions", "absolute", "none")
        if self.sinusoids and self.positions == "none":
            raise ValueError("sinusoids=True needs positions to start so, but positions='none'; drop one of the two")
        if self.init_std is not None:
            check_number(self, "init_std", lambda std: std > 0, f"be above 0, or None for GPT-2's {GPT2_INIT_STD}")


class NoPositions(nn.Module):
    """In place of the position table: adds nothing, at any length."""

    def forward(self, places: Int[Tensor, "b n"]) -> Int[Tensor, " 1"]:
        return places.new_zeros(1)


class GPT2Baseline(Baseline[AttentionState]):
    """The GPT2Model of transformers with the protocol that all models here have.

        model = GPT2Baseline(GPT2BaselineConfig(vocab_size=50257, tie_weights=True))

    Weights start as transformers starts them, and the head has no bias.
    """

    state_kind: ClassVar[type] = AttentionState

    def __init__(self, config: GPT2BaselineConfig) -> None:
        super().__init__()
        self.config: GPT2BaselineConfig = config
        absolute = config.positions == "absolute"
        std = GPT2_INIT_STD if config.init_std is None else config.init_std
        library = transformers()
        self.transformer = library.GPT2Model(
            library.GPT2Config(
                vocab_size=config.vocab_size,
                n_positions=config.context if absolute else 1,
                n_embd=config.width,
                n_layer=config.layers,
                n_head=config.heads,
                resid_pdrop=config.dropout,
                embd_pdrop=config.dropout,
                attn_pdrop=config.dropout,
                initializer_range=std,
                attn_implementation="sdpa",
                # The same function as GPT-2's "gelu_new", in one kernel instead of eight.
                activation_function="gelu_pytorch_tanh",
                # Those of the GPT-2 tokenizer lie outside a smaller vocabulary, and are of no use here.
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        if not absolute:
            self.transformer.wpe = NoPositions()
        else:
            undecayed(self.transformer.wpe, "weight")
            if config.sinusoids:
                start = starting_positions(config.context, config.width, sinusoids=True)
                self.transformer.wpe.weight.data.copy_(std * start)
        self.head: nn.Module = output_layer(config, self.transformer.wte, std)

    def capacity(self, position: int) -> int:
        """Positions that the buffers have room for after `position` tokens.

        The next power of two, so that a token is copied O(1) times on average; never more than the context.
        """
        room = capacity(position)
        return room if self.config.positions == "none" else min(room, self.config.context)

    def _nbytes(self, position: int, batch_size: int) -> int:
        vectors = 2 * self.config.layers * batch_size * self.capacity(position)
        return vectors * self.config.width * self.transformer.wte.weight.itemsize

    def _empty(self, batch_size: int) -> AttentionState:
        c, like = self.config, self.transformer.wte.weight
        return AttentionState(
            (0,) * batch_size, KVCache.empty(c.layers, batch_size, c.heads, 0, c.width // c.heads, like.detach())
        )

    def _check_state(self, state: AttentionState, rows: int) -> None:
        c, cache = self.config, state.current()
        if len(set(state.positions)) > 1:
            raise ValueError(
                f"rows at {state.positions}: in a stream of GPT2Baseline, a model of transformers, all rows are at one "
                "position; sc.LM has the same model for others"
            )
        shape = (rows, c.heads, cache.capacity, c.width // c.heads)
        if not len(cache.keys) == len(cache.values) == c.layers:
            raise ValueError(f"the state has {len(cache.keys)} layers, this model {c.layers}; another model made it")
        for name, each in (("keys", cache.keys), ("values", cache.values)):
            for one in each:
                check_part(name, one, shape, self.transformer.wte.weight.dtype)

    def _run(self, tokens: Tensor, state: AttentionState | None) -> tuple[Tensor, AttentionState | None]:
        n = tokens.shape[1]
        end = n + (0 if state is None else state.position)
        if self.config.positions == "absolute" and end > self.config.context:
            raise ValueError(
                f"{end} tokens are more than the {self.config.context} positions this model has learned; build it with "
                "a larger context, or with positions='none'"
            )
        if state is None:
            return self.transformer(tokens, use_cache=False).last_hidden_state, None
        recording = torch.is_grad_enabled()
        cache = state.cache.branch() if recording else state.cache
        cache.make_room(self.capacity(end))
        past = BuffersForTransformers(Continuation(cache, n, recording=recording), state.position)
        hidden = self.transformer(tokens, past_key_values=past, use_cache=True).last_hidden_state
        past.new.finish()
        return hidden, AttentionState(cache.lengths, cache)


class BuffersForTransformers:
    """Our buffers, as GPT2Model asks for them; its own cache copies all that it holds for each new token."""

    def __init__(self, new: Continuation, start: int) -> None:
        self.new, self.start = new, start

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.new.store(layer_idx, keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.start + query_length, 0


register_model(GPT2Baseline, GPT2BaselineConfig)
