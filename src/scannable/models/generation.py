"""Tokens one after another, from any model with the streaming protocol."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from scannable.models.base import CausalModel
from scannable.models.protocol import SequenceModel, evaluating
from scannable.models.tokens import checked_tokens

PROMPT_PIECE = 1024


def generate(
    model: SequenceModel,
    prompt: Integer[Tensor, "b m"] | Sequence[int] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_tokens: Iterable[int] = (),
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every row as soon as it is chosen. Wrong arguments are refused at once.

    Args:
        model: consumes the prompt in parallel, then its own tokens one by one, in evaluation mode.
        prompt: (batch, length), of any integer dtype and on any device, or lists of tokens of equal length, or the
            tokens of a single row; at least one token.
        max_new_tokens: how many at the most; without it, until every row has stopped, or for ever.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: choose among the k likeliest.
        top_p: choose among the fewest likeliest tokens that together reach this probability.
        seed: makes the choice repeatable, and leaves torch's global generator alone.
        stop_tokens: a row that yields one of these has stopped, and repeats it while others go on.

    >>> model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",)))
    >>> tokens = [int(token) for token in sc.generate(model, [1, 2, 3], max_new_tokens=5, top_k=10, seed=0)]
    >>> len(tokens), all(0 <= token < 50 for token in tokens)
    (5, True)
    """
    if not isinstance(model, SequenceModel):
        raise TypeError(
            f"generate needs a model with initial_state, prefill and step, not {type(model).__name__}; "
            "scannable.SequenceModel says what they do"
        )
    rows = _rows(model, prompt)
    check_sampling(temperature, top_k, top_p)
    if max_new_tokens is not None and (type(max_new_tokens) is not int or max_new_tokens < 0):
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must not be negative, and a whole number or None")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**63 - 1, or None for a choice of its own")
    stops = tuple(stop_tokens) if isinstance(stop_tokens, Iterable) else (None,)
    if not all(type(stop) is int for stop in stops):
        raise ValueError(f"stop_tokens={stop_tokens!r} must be whole numbers in a list or tuple, even a single one")
    generator = None if seed is None else torch.Generator(rows.device).manual_seed(seed)
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator}
    return _tokens(model, rows, max_new_tokens, torch.tensor(stops, dtype=torch.int64, device=rows.device), choice)


def _rows(model: object, prompt: Any) -> Int[Tensor, "b m"]:
    """The prompt as a batch of tokens where the model is."""
    try:
        rows = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the prompt is no tensor of tokens: {error}; rows of a batch have one length, others are generated one by "
            "one"
        ) from error
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(
            f"the prompt has the shape {tuple(rows.shape)}; expected (batch, length) with a length above 0, and a row"
        )
    rows = checked_tokens(rows, 2, getattr(model, "vocab_size", None))
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return rows.to(device=None if weight is None else weight.device, dtype=torch.int64)


def _tokens(
    model: SequenceModel, prompt: Tensor, max_new_tokens: int | None, stops: Tensor, choice: dict[str, Any]
) -> Iterator[Tensor]:
    stopped = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
    token = prompt[:, -1]
    logits, state = None, model.initial_state(prompt.shape[0])
    # A model of one's own need not be able to leave the others out.
    only_last: dict[str, Any] = {"logits_to_keep": 1} if isinstance(model, CausalModel) else {}
    count = 0
    while max_new_tokens is None or count < max_new_tokens:
        with torch.no_grad(), evaluating(model):
            if logits is None:
                # In pieces, which bounds the memory that a long prompt needs.
                for piece in prompt.split(PROMPT_PIECE, 1):
                    every, state = model.prefill(piece, state, **only_last)
                    logits = every[:, -1]
                    del every
            else:
                logits, state = model.step(token, state)
            assert logits is not None
            chosen = choose(logits, **choice)
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
    if temperature == 0:
        return _checked(logits).argmax(-1)
    chances = probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def probabilities(
    logits: Float[Tensor, "b out"], *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "b out"]:
    """With what probability `choose` takes each token, at a temperature above 0.

    Logits of -inf are tokens that cannot come.
    """
    check_sampling(temperature, top_k, top_p)
    logits = _checked(logits)
    single = torch.finfo(torch.float32)
    # From the highest down, so that no temperature overflows; and no temperature is 0 or infinite in float32.
    scores = (logits - logits.amax(-1, keepdim=True)).float() / min(max(temperature, single.tiny), single.max)
    if top_k is not None and top_k < scores.shape[-1]:
        best = scores.topk(top_k)
        scores = torch.full_like(scores, -math.inf).scatter(-1, best.indices, best.values)
    if top_p is not None and top_p < 1:
        ordered, order = scores.sort(descending=True, stable=True)
        before = functional.pad(ordered.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
        # A token stays if those before it do not reach top_p, so the first always does. Half of what is left may be
        # 0.49999997 in float32, and reaches 0.5.
        out = before >= top_p - 1e-6
        out[..., 0] = False
        scores = scores.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -math.inf)
    return scores.softmax(-1)


def check_sampling(temperature: Any, top_k: Any, top_p: Any) -> None:
    """Refuse what no choice can be made with."""
    if not _is_number(temperature) or not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature!r} must be 0 (the likeliest token) or above, and finite")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(f"top_k={top_k!r} leaves nothing to choose from; use 1 or more, or None for all")
    if top_p is not None and (not _is_number(top_p) or not 0 < top_p <= 1):
        raise ValueError(f"top_p={top_p!r} must lie in (0, 1]; None for all tokens")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(logits: Tensor) -> Tensor:
    """Logits in float32 at least, if there is something to choose from in every row."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    highest = logits.amax(-1)
    if not bool(highest.isfinite().all()):
        raise ValueError(
            f"the largest logits are {highest.tolist()[:8]}; there is nothing to choose from where they are not a "
            "number, infinite, or -inf for every token"
        )
    return logits
