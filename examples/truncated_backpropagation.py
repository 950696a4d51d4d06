"""A long text in pieces: the state is carried from piece to piece, and its history is cut where memory asks for it.

python examples/truncated_backpropagation.py
"""

import torch
from torch import Tensor, nn

import scannable as sc

LENGTH, PIECE, KEPT = 2_048, 128, 2
"""Tokens of the text, tokens of a piece, and pieces that gradients go back through."""


def main() -> None:
    torch.manual_seed(0)
    model = sc.LM(sc.LMConfig(vocab_size=64, layers=("mamba", "psm", "attention"), width=32, heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    # Every token is the one 3 before it, and one more: something that a model can learn from one text.
    text = (torch.arange(3).repeat(LENGTH // 3 + 1)[: LENGTH + 1] + torch.arange(LENGTH + 1) // 3)[None] % 64

    check_that_uncut_pieces_are_one_pass(model, text[:, :300])

    state, losses, waiting = model.initial_state(1), list[float](), list[Tensor]()
    for start in range(0, LENGTH, PIECE):
        tokens, targets = text[:, start : start + PIECE], text[:, start + 1 : start + PIECE + 1]
        logits, state = model.extend(tokens, state)
        waiting.append(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        losses.append(float(waiting[-1].detach()))
        if len(waiting) == KEPT:
            optimizer.zero_grad()
            torch.stack(waiting).mean().backward()
            optimizer.step()
            state, waiting = state.detach(), []  # the state stays, its history goes
    print(f"loss of the first piece {losses[0]:.2f}, of the last {losses[-1]:.2f}, after {state.position:,} tokens")
    assert losses[-1] < losses[0]


def check_that_uncut_pieces_are_one_pass(model: sc.LM, text: Tensor) -> None:
    """Where nothing is cut, the gradients of pieces are those of one pass over the whole."""
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(text).square().mean(), weights)
    state, outputs = model.initial_state(1), list[Tensor]()
    for piece in text.split([1, 99, 150, 50], 1):
        logits, state = model.extend(piece, state)
        outputs.append(logits)
    found = torch.autograd.grad(torch.cat(outputs, 1).square().mean(), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    print("gradients through four pieces are those of one pass")


if __name__ == "__main__":
    main()
