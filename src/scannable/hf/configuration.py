"""The configuration of a model here, inside one of `transformers`."""

from typing import Any, ClassVar

from transformers import PretrainedConfig

from scannable.storage.configuration import from_plain, to_plain
from scannable.storage.registry import is_model_configuration, known_models

AUTO_MAP = {
    "AutoConfig": "configuration_scannable.ScannableConfig",
    "AutoModel": "modeling_scannable.ScannableModel",
    "AutoModelForCausalLM": "modeling_scannable.ScannableForCausalLM",
}
"""For those who load a folder with trust_remote_code=True instead of importing `scannable.hf`."""


class ScannableConfig(PretrainedConfig):
    """Any configuration of this library that stands for a model, for `transformers`.

        config = ScannableConfig(sc.LMConfig(vocab_size=257, layers=("mamba", "psm", "attention")))
        config.typed            # the LMConfig

    What `transformers` looks for (vocab_size, hidden_size, tie_word_embeddings, ...) is derived from it, and cannot be
    set beside it.

    Args:
        network: a configuration such as `TransformerPSMConfig` or `LMConfig`, or the JSON of one.
        use_cache: whether `forward` returns a cache where neither gradients nor labels are.

    >>> from scannable.hf import ScannableConfig
    >>> config = ScannableConfig(sc.LMConfig(vocab_size=257, width=32, layers=("gla",)))
    >>> config.hidden_size, config.vocab_size, config.typed.layers
    (32, 257, ('gla',))
    """

    model_type = "scannable"
    # A list, since Trainer adds lists to it.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, network: Any = None, use_cache: bool = True, **kwargs: Any) -> None:
        self.network: dict[str, Any] | None = None
        if network is not None:
            typed = _checked(from_plain(network, Any, "network") if isinstance(network, dict) else network)
            self.network = to_plain(typed)
            for name, value in derived(typed).items():
                kwargs.setdefault(name, value)
        self.use_cache: bool = use_cache
        kwargs.setdefault("auto_map", dict(AUTO_MAP))
        super().__init__(**kwargs)

    @property
    def typed(self) -> Any:
        """The configuration inside."""
        if self.network is None:
            raise ValueError(
                "this ScannableConfig has no network; give it the configuration of a model, such as "
                "ScannableConfig(sc.LMConfig(vocab_size=257))"
            )
        return _checked(from_plain(self.network, Any, "network"))

    def checked(self) -> Any:
        """The configuration inside, if all that is derived from it still is what was derived."""
        typed = self.typed
        for name, value in derived(typed).items():
            if getattr(self, name, value) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} contradicts the {type(typed).__name__} inside, which has "
                    f"{value!r}; change the configuration inside, and what depends on it follows"
                )
        return typed


def derived(typed: Any) -> dict[str, Any]:
    """What `transformers` and tools around it look for in a configuration."""
    found: dict[str, Any] = {
        "vocab_size": typed.vocab_size,
        "tie_word_embeddings": bool(getattr(typed, "tie_weights", False)),
    }
    if hasattr(typed, "width"):
        found["hidden_size"] = typed.width
    if hasattr(typed, "heads"):
        found["num_attention_heads"] = typed.heads
    if isinstance(layers := getattr(typed, "layers", None), tuple):
        found["num_hidden_layers"] = len(layers)
    elif hasattr(typed, "inf_layers"):
        found["num_hidden_layers"] = typed.agg_layers + typed.inf_layers
    if isinstance(learned := getattr(typed, "positions", None), int) and learned:
        found["max_position_embeddings"] = learned
    return found


def _checked(typed: Any) -> Any:
    if not is_model_configuration(type(typed)):
        raise ValueError(
            f"network is a {type(typed).__name__}, which is no configuration of a model; known: "
            f"{', '.join(known_models())} (scannable.register_model adds one)"
        )
    if type(getattr(typed, "vocab_size", None)) is not int:
        raise ValueError(f"a {type(typed).__name__} has no vocab_size; a model of tokens is needed here")
    return typed
