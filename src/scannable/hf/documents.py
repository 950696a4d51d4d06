"""What position_ids say: the usual places, or documents that are packed in a row."""

from jaxtyping import Bool
from torch import Tensor


def document_starts(position_ids: Tensor, tokens: Tensor, real: Tensor | None) -> Bool[Tensor, "b n"] | None:
    """Where packed documents begin, from nothing on; None if each row is one document. What no model here can do is
    refused: its positions follow from the tokens.

    Args:
        position_ids: (b or 1, n).
        tokens: (b, n).
        real: which of them are no padding; None for all.
    """
    if position_ids.ndim != 2 or position_ids.shape[-1] != tokens.shape[1]:
        raise ValueError(
            f"position_ids have the shape {tuple(position_ids.shape)} for input_ids of {tuple(tokens.shape)}; expected "
            "one for each token"
        )
    places = position_ids.expand(*tokens.shape)
    follows = places[:, 1:] == places[:, :-1] + 1
    if real is None:
        if bool((places[:, 0] == 0).all()):
            if bool(follows.all()):
                return None
            if bool((follows | (places[:, 1:] == 0)).all()):
                return places == 0
    elif not bool(((places == 0) & real & (real.cumsum(1) > 1)).any()):
        # `generate` goes on behind right padding with other numbers; those begin no document.
        return None
    raise ValueError(
        "position_ids must count the tokens of each row from 0, or of each of several documents that are packed in "
        "rows without padding; other positions have no meaning in a model here: leave position_ids out"
    )


def begins_anew(position_ids: Tensor, real: Tensor | None, begun: Bool[Tensor, " b"]) -> bool:
    """Whether a token of a row that has begun is said to be the first of a document."""
    first = (position_ids == 0) & begun[:, None]
    return bool((first if real is None else first & real).any())
