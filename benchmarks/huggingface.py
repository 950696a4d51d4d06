"""What `generate` of `transformers` costs around a model of this library: python benchmarks/huggingface.py

Greedy, Transformer-PSM (256 wide, 4 heads, 2 Agg + 2 Inf layers, c = 64, bytes). First: 1,000 tokens through `generate`
against the sum of 1,000 steps of the model itself and of `generate` around a model that does nothing. Then: `generate`
from a long context on, against `transformers`' GPT-2 of the same width and depth with its default cache. What is
compared runs in turn, so that all meet the same machine, and each has its best round.
"""

import argparse
import copy
import inspect
from pathlib import Path
from typing import Any

import torch
from interleaved import best_of
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutputWithPast

import scannable as sc
from scannable.hf import ScannableCache, ScannableConfig, ScannableForCausalLM
from scannable.storage.files import write_csv

VOCABULARY, WIDTH, HEADS = 257, 256, 4


class Nothing(ScannableForCausalLM):
    """The same to `generate`, which is all that it costs."""

    logits: Tensor | None = None

    def forward(self, input_ids: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        past_key_values._columns += input_ids.shape[1]
        if self.logits is None or len(self.logits) != len(input_ids):
            self.logits = torch.zeros(len(input_ids), 1, VOCABULARY)
        return CausalLMOutputWithPast(logits=self.logits, past_key_values=past_key_values)  # pyright: ignore[reportArgumentType]

    # `generate` looks at the arguments.
    forward.__signature__ = inspect.signature(ScannableForCausalLM.forward)  # pyright: ignore[reportFunctionMemberAccess]


def around(model: Any, batch: int, tokens: int, rounds: int) -> list[object]:
    """`generate` against its two parts."""
    nothing: Any = Nothing(model.config).eval()
    own = model.to_scannable()
    prompt = torch.randint(VOCABULARY - 1, (batch, 1))
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "attention_mask": torch.ones_like(prompt)}

    def step_by_step() -> None:
        state, token = own.initial_state(batch), prompt[:, 0]
        for _ in range(tokens):
            logits, state = own.step(token, state)
            token = logits.argmax(-1)

    best = best_of(
        rounds,
        {
            "generate": lambda: model.generate(prompt, **options),
            "steps": step_by_step,
            "loop": lambda: nothing.generate(prompt, **options),
        },
    )
    whole, steps, loop = (1000 * best[name] / tokens for name in ("generate", "steps", "loop"))
    ratio = whole / (steps + loop)
    print(
        f"batch {batch}: generate {whole:.3f}, steps {steps:.3f}, loop {loop:.3f} ms a token; ratio {ratio:.3f}",
        flush=True,
    )
    return [f"batch {batch}", 0, f"{whole:.4f}", f"{steps:.4f}", f"{loop:.4f}", f"{ratio:.3f}"]


def against_gpt2(model: Any, context: int, tokens: int, rounds: int) -> list[object]:
    """`generate` behind a long context; keys and values of GPT-2 are random, since time does not depend on them."""
    config = GPT2Config(n_layer=4, n_head=HEADS, n_embd=WIDTH, n_positions=context + tokens + 1, vocab_size=VOCABULARY)
    theirs = GPT2LMHeadModel(config).eval()
    past, ours = DynamicCache(config=config), ScannableCache()
    for layer in range(4):
        keys, values = torch.randn(2, 1, HEADS, context, WIDTH // HEADS)
        past.update(keys, values, layer)
    ids = torch.randint(VOCABULARY - 1, (1, context + 1))
    for piece in ids[:, :context].split(4096, 1):
        model.model(piece, past_key_values=ours)
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 256}

    def run(one: Any, cache: Any) -> None:
        # A copy takes a thousandth of what is timed.
        one.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=copy.deepcopy(cache), **options)

    best = best_of(rounds, {"psm": lambda: run(model, ours), "gpt2": lambda: run(theirs, past)})
    mine, other = (1000 * best[name] / tokens for name in ("psm", "gpt2"))
    print(f"behind {context:,} tokens: {mine:.3f}, GPT-2 {other:.3f} ms a token; ratio {mine / other:.3f}", flush=True)
    return ["against GPT-2", context, f"{mine:.4f}", f"{other:.4f}", "", f"{mine / other:.3f}"]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000, help="tokens to generate (default 1,000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run (default 5)")
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 8192, 16384], help="for the second part")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/huggingface.csv"), help="where the CSV goes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = sc.TransformerPSMConfig(VOCABULARY, WIDTH, heads=HEADS, chunk_length=64, agg_layers=2, inf_layers=2)
    model = ScannableForCausalLM(ScannableConfig(config)).eval()
    model.generation_config.pad_token_id = 256
    rows = [around(model, batch, arguments.tokens, arguments.rounds) for batch in (1, 8)]
    rows += [against_gpt2(model, context, 256, arguments.rounds) for context in arguments.contexts]
    header = ["what", "context", "generate ms", "steps or GPT-2 ms", "loop ms", "ratio"]
    write_csv(arguments.out, header, rows)


if __name__ == "__main__":
    main()
