"""Any model of this library as a `PreTrainedModel`: hidden vectors for tokens, with padding and with a stream."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from scannable.hf import remote_code
from scannable.hf.cache import ScannableCache
from scannable.hf.configuration import ScannableConfig
from scannable.hf.documents import begins_anew, document_starts
from scannable.hf.initial_values import fill, mark_initialized
from scannable.hf.output_layer import build_parts
from scannable.hf.padding import RealTokens
from scannable.models.base import CausalModel


class ScannablePreTrainedModel(PreTrainedModel):
    """What both classes share: how they start, are saved, and what is refused."""

    config_class = ScannableConfig
    config: ScannableConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LMBlock", "PSMLayer"]  # pyright: ignore  # noqa: RUF012
    # Theirs replaces scaled_dot_product_attention, which Agg and Inf use for windows that know no other process.
    _supports_context_parallel = False

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As ever; the folder can also be loaded with trust_remote_code=True, without importing `scannable.hf`."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            remote_code.write(save_directory)
        return saved

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Refused: the vocabulary is part of the configuration inside."""
        embedding = self.get_input_embeddings()
        if new_num_tokens in (None, self.config.vocab_size) and not kwargs.get("pad_to_multiple_of"):
            return embedding
        raise NotImplementedError(
            f"the vocabulary of {self.config.vocab_size} tokens cannot become one of {new_num_tokens}: it is part of "
            f"the {type(self.config.typed).__name__} inside; build a model with another vocab_size and copy weights"
        )


class ScannableModel(ScannablePreTrainedModel):
    """A model of this library without its output layer: `AutoModel`.

    >>> from scannable.hf import ScannableConfig, ScannableModel
    >>> model = ScannableModel(ScannableConfig(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",))))
    >>> model(torch.randint(50, (2, 7))).last_hidden_state.shape
    torch.Size([2, 7, 16])
    """

    def __init__(self, config: ScannableConfig, network: CausalModel[Any] | None = None) -> None:
        super().__init__(config)
        self.network: CausalModel[Any] = build_parts(config.checked())[0] if network is None else network
        mark_initialized(self)
        self.post_init()

    # PreTrainedModel asks for these.

    def get_input_embeddings(self) -> nn.Module:
        return self.network.get_submodule(cast(str, self.network.embedding_name))

    def set_input_embeddings(self, value: nn.Module) -> None:
        setattr(self.network, cast(str, self.network.embedding_name), value)

    def _init_weights(self, module: nn.Module) -> None:
        fill(self.network, lambda: build_parts(self.config.typed)[0])

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether activations are computed anew for backward."""
        return getattr(self.network, "checkpoint", False)

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        if not hasattr(self.network, "checkpoint"):
            raise ValueError(f"a {type(self.network).__name__} has no gradient checkpointing (an attribute checkpoint)")
        setattr(self.network, "checkpoint", on)  # noqa: B010

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ScannableCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Hidden vectors of all tokens, and the stream behind them.

        Args:
            input_ids: (b, n); with `past_key_values`, the tokens behind those it has seen.
            attention_mask: (b, n), or with the columns before them in front; 0 for padding, anywhere.
            position_ids: where documents are packed in rows, from 0 on in each.
            past_key_values: a `ScannableCache`; it goes on with these tokens.
            inputs_embeds: refused.
            use_cache: return a `ScannableCache`; by default if there are no gradients.
            return_dict: False for a tuple.
            kwargs: refused if they ask for something that does not exist here.
        """
        tokens = _checked(input_ids, inputs_embeds, past_key_values, kwargs)
        real = RealTokens.of(attention_mask, *tokens.shape)
        if use_cache is None:
            use_cache = self.config.use_cache and not torch.is_grad_enabled()
        cache = past_key_values
        if cache is None and use_cache:
            cache = ScannableCache()
        if cache is not None:
            cache.check_rows(tokens.shape[0])
        starts = None
        if position_ids is not None and (cache is None or not cache.is_initialized):
            starts = document_starts(position_ids, tokens, None if real is None else real.real)
        elif position_ids is not None and cache is not None and tokens.shape[1] > 1:
            begun = torch.tensor([position > 0 for position in cache.state.positions], device=tokens.device)
            if begins_anew(position_ids, None if real is None else real.real, begun):
                _none_for_documents(cache)
        if starts is not None:
            # Documents that are packed have no stream: the next token would belong to the last one.
            cache = _none_for_documents(past_key_values)
        if cache is not None:
            hidden = cache.read(self.network, tokens, real)
        elif real is not None:
            hidden = real.back(self.network.hidden(real.first(tokens), lengths=real.lengths))
        else:
            hidden = self.network.hidden(tokens, starts=starts)
        if return_dict is False:
            return (hidden,) if cache is None else (hidden, cache)
        return BaseModelOutputWithPast(last_hidden_state=cast(Any, hidden), past_key_values=cast(Any, cache))


def _checked(tokens: Tensor | None, embedded: Tensor | None, cache: object, others: dict[str, Any]) -> Tensor:
    if tokens is None or embedded is not None:
        raise ValueError("a model here reads input_ids, and no inputs_embeds; pass tokens")
    if cache is not None and not isinstance(cache, ScannableCache):
        raise TypeError(
            f"past_key_values is a {type(cache).__name__}; a model here goes on from a scannable.hf.ScannableCache, as "
            "forward and generate return it: pass none, or an empty ScannableCache()"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if others.get(name):
            raise ValueError(
                f"{name}=True: a model here gives no {name.removeprefix('output_')} of its layers; last_hidden_state "
                "of AutoModel is what the output layer sees"
            )
    if tokens.ndim == 2 and not tokens.shape[1]:
        seen = 0 if cache is None else cast(ScannableCache, cache).get_seq_length()
        raise ValueError(
            f"there are no new tokens behind the {seen} columns that the cache has seen; pass all input_ids again, or "
            "only the new ones with an attention_mask of all columns"
        )
    return tokens


def _none_for_documents(cache: ScannableCache | None) -> None:
    if cache is not None:
        raise ValueError("position_ids that begin anew in a row cannot be read into a cache: a stream is one document")
