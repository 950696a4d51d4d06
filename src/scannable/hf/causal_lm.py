"""A language model for `transformers`: `generate`, pipelines, `Trainer`."""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from scannable.hf.cache import ScannableCache
from scannable.hf.configuration import ScannableConfig
from scannable.hf.initial_values import fill, mark_initialized
from scannable.hf.model import ScannableModel, ScannablePreTrainedModel
from scannable.hf.output_layer import build_parts, put_together
from scannable.models.base import CausalModel

GROWING = (None, "dynamic", "dynamic_full")
"""What `generate` calls a cache that grows as it needs: the only one here."""
NO_PAGES = (
    "generate_batch packs rows into one and keeps keys and values in pages; a stream has neither. generate takes "
    "batches of prompts of any lengths, left-padded"
)


class ScannableForCausalLM(ScannablePreTrainedModel, GenerationMixin):
    """Any model of this library with one output for each token, as a causal language model.

        model = ScannableForCausalLM(ScannableConfig(sc.TransformerPSMConfig(vocab_size=257)))
        model.generate(**tokenizer(["def main("], return_tensors="pt"), max_new_tokens=100)

    Beyond what `PreTrainedModel` needs it overrides nothing of `generate` but which cache there is.

    >>> from scannable.hf import ScannableConfig, ScannableForCausalLM
    >>> model = ScannableForCausalLM(ScannableConfig(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",))))
    >>> model.generate(torch.randint(50, (1, 7)), max_new_tokens=5, do_sample=False, pad_token_id=0).shape
    torch.Size([1, 12])
    """

    _is_stateful = False

    def __init__(self, config: ScannableConfig) -> None:
        super().__init__(config)
        typed = config.checked()
        outputs = getattr(typed, "out_size", None)
        if outputs not in (None, typed.vocab_size):
            raise ValueError(
                f"a causal language model has an output for each of its {typed.vocab_size} tokens, this configuration "
                f"out_size={outputs}; AutoModel wraps the model without its output layer"
            )
        network, head = build_parts(typed)
        self.model = ScannableModel(config, network)
        self.lm_head: nn.Module = head
        if config.tie_word_embeddings:
            # Of this instance: where the embedding is depends on the kind of model.
            self._tied_weights_keys = {"lm_head.weight": f"model.network.{network.embedding_name}.weight"}
        mark_initialized(self)
        self.post_init()

    def to_scannable(self) -> CausalModel[Any]:
        """The model as this library has it, with the same weights: training one trains the other.
        For `sc.verify_duality` and `sc.save_model`, for example.
        """
        return put_together(self.config.typed, self.model.network, self.lm_head)

    # PreTrainedModel asks for these.

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def _init_weights(self, module: nn.Module) -> None:
        fill(self.lm_head, lambda: build_parts(self.config.typed)[1])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ScannableCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits, the mean loss of the next tokens if there are `labels`, and the stream behind the tokens.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds: as for `ScannableModel`.
            labels: (b, n), the tokens themselves; they are shifted here. -100 does not count, and neither does the
                first token behind padding, which nothing predicts.
            use_cache: return a `ScannableCache`; by default if there are neither gradients nor labels.
            logits_to_keep: logits of the last so many columns only, or of these columns; 0 for all.
            return_dict: False for a tuple.
            kwargs: such as num_items_in_batch, for the loss.
        """
        if use_cache is None and labels is not None:
            use_cache = False
        hidden, *cache = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=False,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        loss = None
        if labels is not None:
            labels = _with_a_context(labels, attention_mask)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=next(iter(cache), None))
        return output.to_tuple() if return_dict is False else output

    # What generate asks for.

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation not in GROWING:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: a model here has one kind of cache, "
                "the stream of O(log n) bytes; leave it out"
            )
        cache = model_kwargs.get("past_key_values")
        if cache is None:
            if not generation_config.use_cache:
                return
            cache = model_kwargs["past_key_values"] = ScannableCache()
        elif isinstance(cache, ScannableCache):
            # As transformers marks those that it gives back.
            cache._is_user_defined = True  # pyright: ignore[reportAttributeAccessIssue]
        # Older versions never say that they are going to drop candidates.
        assisted = any(str(getattr(one, "value", one)) == "assisted_generation" for one in (*args, *kwargs.values()))
        if isinstance(cache, ScannableCache) and (assisted or getattr(generation_config, "is_assistant", False)):
            cache.activate_past_recording()

    @property
    def init_continuous_batching(self) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Not here: with an AttributeError, those who look for continuous batching do not find it."""
        raise AttributeError(NO_PAGES)

    def generate_batch(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        raise NotImplementedError(NO_PAGES)


def _with_a_context(labels: Tensor, mask: Tensor | None) -> Tensor:
    """Labels without those that a column of padding would have to predict."""
    if mask is None or mask.shape != labels.shape:
        return labels
    return torch.cat((labels[:, :1], labels[:, 1:].masked_fill(mask[:, :-1] == 0, -100)), 1)
