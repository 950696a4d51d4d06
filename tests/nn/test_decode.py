"""The lean way of one position is the block, operation by operation, and calls what is not plain."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scannable.nn import Transformer, decode
from windows import every_option, make, rows_of


def both_ways(model: Transformer, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rows = rows_of(*(12 for _ in lengths))
    outputs: list[Tensor] = []
    for lean in (True, False):
        with monkeypatch.context() as patch, torch.no_grad():
            if not lean:
                patch.setattr("scannable.nn.transformer.can_decode", lambda block: False)
            cache = model.new_cache(len(lengths))
            model(torch.stack([row[:9] for row in rows]), cache=cache, counts=lengths)
            steps = [model(torch.stack([row[i : i + 1] for row in rows]), cache=cache) for i in (9, 10, 11)]
            outputs.append(torch.cat(steps, 1))
    return outputs[0], outputs[1]


@every_option
@pytest.mark.parametrize("lengths", [(5,), (5, 5), (0, 3, 9)], ids=str)
def test_it_is_the_block_bit_for_bit(options: Any, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    lean, general = both_ways(make(**options).eval(), monkeypatch, lengths)
    assert torch.equal(lean, general)


def test_plain_modules_are_not_called_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make().eval()
    called: list[str] = []
    monkeypatch.setattr(
        nn.Linear, "forward", lambda self, x: called.append("plain") or nn.functional.linear(x, self.weight, self.bias)
    )
    x = rows_of(3)[0].detach()[None]
    cache = model.new_cache(1)
    with torch.no_grad():
        model(x[:, :1], cache=cache)
        assert not called
        block: Any = model.blocks[0]
        block.mlp_out.register_forward_hook(lambda *_: called.append("hooked"))
        model(x[:, 1:2], cache=cache)
        assert called == ["plain", "hooked"]

        class Doubled(nn.Linear):
            def forward(self, input: Tensor) -> Tensor:
                called.append("own")
                return 2 * super().forward(input)

        block.attention.query = Doubled(8, 8).double()
        model(x[:, 2:], cache=cache)
    assert called.count("own") == 1


@pytest.mark.parametrize("part", ["blocks.0", "blocks.0.attention", "blocks.0.attention_norm", "norm"])
def test_hooks_of_every_part_are_called(part: str) -> None:
    model = make(norm="rms").eval()
    called: list[str] = []
    model.get_submodule(part).register_forward_pre_hook(lambda *_: called.append(part))
    with torch.no_grad():
        model(rows_of(1)[0][None], cache=model.new_cache(1))
    # The last norm, though plain otherwise, is one of them.
    assert called == [part]


def test_training_and_convolutions_take_the_general_way() -> None:
    assert decode.can_decode(make().blocks[0]) and not decode.can_decode(make(convolution=3).blocks[0])
    torch.manual_seed(0)
    model = Transformer(width=8, layers=1, heads=2, window=6, causal=True, dropout=0.5)
    with torch.no_grad():
        outputs = [model(torch.ones(1, 1, 8), cache=model.new_cache(1)) for _ in range(4)]
    assert not all(torch.equal(outputs[0], each) for each in outputs[1:])
