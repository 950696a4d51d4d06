"""A model over a split sequence: every rank has the weights, and its own part of the tokens."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scannable.distributed.agreement import agree
from scannable.distributed.layer import check_layers, layer_over_ranks, unit_of
from scannable.distributed.messages import Group, all_gather, here, message_device
from scannable.distributed.scan_over_ranks import split_of
from scannable.distributed.split import Split, even_bounds
from scannable.models.lm import LM
from scannable.models.prefix_scannable import PrefixScannableModel
from scannable.models.tokens import checked_tokens
from scannable.nn.loss import sliced_cross_entropy


def bounds_for(model: nn.Module, n: int, ranks: int) -> tuple[int, ...]:
    """Where a sequence of n tokens is cut for `ranks` ranks: between chunks, and as evenly as that allows.

    >>> from scannable import distributed
    >>> model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    >>> distributed.bounds_for(model, 50, ranks=3)
    (0, 16, 32, 50)
    """
    return even_bounds(n, ranks, unit_of(model))


def forward(model: nn.Module, tokens: Tensor, *, group: Group = None, split: Split | None = None) -> Tensor:
    """The outputs of this rank's tokens (b, m), as `model(tokens)` of the whole sequence has them. Gradients as for
    `scan`: each rank has its share of those of the weights.

    Args:
        model: an `LM` of prefix-scannable, affine and attention layers, or a `PrefixScannableModel`.
        tokens: this rank's part; `bounds_for` says where a sequence may be cut.
        group: the ranks; None for all processes.
        split: who has what, if all ranks have agreed on it; then nothing is checked.

    >>> from scannable import distributed
    >>> model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    >>> tokens = torch.randint(50, (2, 30))
    >>> torch.allclose(distributed.forward(model, tokens), model(tokens), atol=1e-5)
    True
    """
    head: Any = model.head
    return head(hidden(model, tokens, group=group, split=split))


def loss(
    model: nn.Module, tokens: Tensor, targets: Tensor, *, group: Group = None, split: Split | None = None
) -> Tensor:
    """This rank's share of `model.loss` of the whole sequence: the shares of all ranks add up to it.

    >>> from scannable import distributed
    >>> model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla", "psm")))
    >>> tokens = torch.randint(50, (2, 31))
    >>> share = distributed.loss(model, tokens[:, :-1], tokens[:, 1:])
    >>> share.backward()
    >>> torch.allclose(share, model.loss(tokens[:, :-1], tokens[:, 1:]))
    True
    """
    outputs = hidden(model, tokens, group=group, split=split)
    head: Any = model.head
    total = sliced_cross_entropy(outputs, targets, head, reduction="sum")
    asked = (targets != -100).sum()[None].to(message_device(group, tokens.device) if here(group)[1] > 1 else "cpu")
    return total / all_gather(asked, group, kind="count").sum().clamp(min=1).to(total.device)


def hidden(model: nn.Module, tokens: Tensor, *, group: Group = None, split: Split | None = None) -> Tensor:
    """What `forward` gives to the head.

    >>> from scannable import distributed
    >>> model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla", "psm")))
    >>> distributed.hidden(model, torch.randint(50, (2, 30))).shape
    torch.Size([2, 30, 16])
    """
    if split is None:
        split = _agreed(model, tokens, group)
    if isinstance(model, PrefixScannableModel):
        return layer_over_ranks(model.layer, model.enc(tokens), split, group)
    if isinstance(model, LM):
        return _through_blocks(model, tokens, split, group)
    raise _refusal(model)


def _through_blocks(model: LM, tokens: Tensor, split: Split, group: Group) -> Tensor:
    places = None
    if model.positions is not None:
        places = torch.arange(split.first, split.stop, device=tokens.device)
        # All ranks refuse what only the last has no positions for.
        places = model.within_positions(places, (0,), split.bounds[-1], None).expand(tokens.shape)
    x = model.embedded(tokens, places)

    def through(block: Any, x: Tensor) -> Tensor:
        return block.after(x, layer_over_ranks(block.mixer, block.norm(x), split, group))

    again = model.checkpoint and model.training and torch.is_grad_enabled()
    for block in model.blocks:
        # What is computed once more exchanges once more, on all ranks alike.
        x = checkpoint(through, block, x, use_reentrant=False) if again else through(block, x)
    return model.norm(x)


def _agreed(model: nn.Module, tokens: Tensor, group: Group) -> Split:
    """Who has what; anything that does not fit is an error on all ranks."""
    rank = here(group)[0]

    def prepare() -> tuple[None, int, str]:
        checked_tokens(tokens, 2, getattr(model, "vocab_size", None))
        check_model(model)
        return None, tokens.shape[1], _words(model, tokens)

    split = split_of(agree(prepare, group, tokens.device)[1], rank)
    check_bounds(model, split.bounds)
    return split


def check_model(model: nn.Module) -> None:
    """Refuse what does not go over a split sequence."""
    if not isinstance(model, PrefixScannableModel | LM):
        raise _refusal(model)
    check_layers(model)


def check_bounds(model: nn.Module, bounds: tuple[int, ...]) -> None:
    """Refuse bounds that cut a chunk."""
    unit = unit_of(model)
    for bound in bounds:
        if bound % unit and bound != bounds[-1]:
            raise ValueError(
                f"the sequence is cut at {bound}, inside a chunk: this model's chunks end at multiples of {unit}; "
                f"bounds_for(model, {bounds[-1]}, {len(bounds) - 1}) cuts between them"
            )


def _refusal(model: nn.Module) -> ValueError:
    return ValueError(
        f"{type(model).__name__} does not go over a split sequence; an LM and a PrefixScannableModel do: split the "
        "batch instead (sequence=1)"
    )


def _words(model: nn.Module, tokens: Tensor) -> str:
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    known = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
    on = "on" if torch.is_grad_enabled() else "off"
    return (
        f"{len(tokens)} rows for a {type(model).__name__} whose weights have the shapes {known}, "
        f"{'training' if model.training else 'evaluating'}, gradients {on}"
    )
