"""Tokens one after another, from any model with the streaming protocol."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scannable.models.protocol import SequenceModel, evaluating

PROMPT_PIECE = 1024


def generate(
    model: SequenceModel,
    prompt: Int[Tensor, "b m"] | Sequence[int],
    *,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_tokens: Iterable[int] = (),
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every row as soon as it is chosen.

    Args:
        model: consumes the prompt in parallel, then its own tokens one by one, in evaluation mode.
        prompt: (batch, length), or the tokens of a single row; at least one token.
        max_new_tokens: how many at the most; without it, until every row has stopped, or for ever.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: choose among the k likeliest.
        top_p: choose among the likeliest that together reach this probability.
        seed: makes the choice repeatable, and leaves torch's global generator alone.
        stop_tokens: a row that yields one of these has stopped, and repeats it while others go on.
    """
    rows = torch.as_tensor(prompt)
    if rows.ndim == 1:
        rows = rows[None]
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            f"the prompt has the shape {tuple(rows.shape)}; expected (batch, length) with a length above 0"
        )
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be 0 (the likeliest token) or above")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} leaves nothing to choose from; use 1 or more, or None for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must lie in (0, 1]")
    if max_new_tokens is not None and max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    return _tokens(model, rows, max_new_tokens, temperature, top_k, top_p, seed, tuple(stop_tokens))


def _tokens(
    model: SequenceModel,
    prompt: Tensor,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    stop_tokens: tuple[int, ...],
) -> Iterator[Tensor]:
    generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
    stops = torch.tensor(stop_tokens, dtype=torch.int64, device=prompt.device)
    stopped = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
    token = prompt[:, -1]
    logits, state = None, model.initial_state(prompt.shape[0])
    count = 0
    while max_new_tokens is None or count < max_new_tokens:
        with torch.no_grad(), evaluating(model):
            if logits is None:
                # In pieces, because a prefill gives logits for all its tokens and only the last are wanted.
                for piece in prompt.split(PROMPT_PIECE, 1):
                    every, state = model.prefill(piece, state)
                    logits = every[:, -1]
                    del every
            else:
                logits, state = model.step(token, state)
            assert logits is not None
            chosen = choose(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        token = torch.where(stopped, token, chosen) if count else chosen
        stopped |= torch.isin(token, stops)
        yield token
        count += 1
        if stops.numel() and bool(stopped.all()):
            return


def choose(
    logits: Float[Tensor, "b out"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " b"]:
    """One token for each row of logits."""
    highest = logits.amax(-1, keepdim=True)
    if not bool(highest.isfinite().all()):
        raise ValueError(f"the largest logits are {highest.flatten().tolist()[:8]}; there is nothing to choose from")
    if temperature == 0:
        return logits.argmax(-1)
    # From the highest down, so that no temperature can overflow.
    scores = (logits - highest).float() / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        best = scores.topk(top_k)
        scores = torch.full_like(scores, float("-inf")).scatter(-1, best.indices, best.values)
    if top_p is not None and top_p < 1:
        ordered, order = scores.sort(descending=True)
        probabilities = ordered.softmax(-1)
        # A token stays if those before it do not reach top_p; so the first always does.
        out = probabilities.cumsum(-1) - probabilities >= top_p
        scores = scores.masked_fill(torch.zeros_like(out).scatter(-1, order, out), float("-inf"))
    return torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]
