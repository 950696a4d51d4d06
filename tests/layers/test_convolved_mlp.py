"""The MLP with convolutions: its formula, position by position, and the block of Transformer-PSM that it is half of."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import scannable as sc
from scannable.layers.convolved_mlp import ConvolvedMLP
from scannable.models.layer_options import AttentionOptions, ConvolvedMLPOptions
from scannable.nn.block_config import BlockConfig
from scannable.nn.transformer import Transformer

WIDTH, HEADS = 8, 2


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def by_position(layer: ConvolvedMLP, x: Tensor) -> Tensor:
    """The formula of the docstring, in a loop."""

    def beside(short: Any, rows: list[Tensor]) -> list[Tensor]:
        weight = short.weight[:, 0]
        before = range(short.length)
        return [
            row + sum(weight[:, -1 - lag] * rows[t - lag] for lag in before if lag <= t) for t, row in enumerate(rows)
        ]

    inner = [layer.into(row) for row in beside(layer.convolution, list(x.unbind(1)))]
    inner = beside(layer.inner_convolution, inner)
    if layer.activation == "swiglu":
        halves = [row.chunk(2, -1) for row in inner]
        inner = [functional.silu(gate) * value for gate, value in halves]
    elif layer.activation == "relu2":
        inner = [functional.relu(row) ** 2 for row in inner]
    else:
        inner = [functional.gelu(row, approximate="tanh") for row in inner]
    return torch.stack([layer.out(row) for row in inner], 1)


@pytest.mark.parametrize("activation", ["gelu", "swiglu", "relu2"])
@pytest.mark.parametrize(("n", "length"), [(1, 4), (2, 4), (7, 2), (63, 4), (65, 5)])
def test_every_position_is_the_formula(activation: Any, n: int, length: int) -> None:
    layer = ConvolvedMLP(WIDTH, activation=activation, convolution=length)
    x = torch.randn(2, n, WIDTH, requires_grad=True)
    y, truth = layer(x), by_position(layer, x)
    torch.testing.assert_close(y, truth, rtol=1e-12, atol=1e-12)
    weight = torch.randn(y.shape)
    found, wanted = (
        torch.autograd.grad((one * weight).sum(), [x, *layer.parameters()], materialize_grads=True)
        for one in (y, truth)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ["gelu", "swiglu", "relu2"])
def test_attention_and_this_mlp_are_a_block_of_transformer_psm(activation: Any) -> None:
    choices: dict[str, Any] = {"qk_norm": True, "convolution": 4}
    config = sc.LMConfig(
        5,
        (
            AttentionOptions(positions="rotary", with_mlp=False, **choices),
            ConvolvedMLPOptions(activation=activation, convolution=4),
        )
        * 2,
        WIDTH,
        HEADS,
    )
    model = sc.LM(config)
    block = BlockConfig(positions="rotary", norm="rms", mlp=activation, **choices)
    transformer = Transformer(width=WIDTH, heads=HEADS, layers=2, window=20, causal=True, block=block)
    names = {
        "attention_norm": "blocks.{0}.norm",
        "attention_convolution": "blocks.{0}.mixer.convolution",
        "attention": "blocks.{0}.mixer.attention",
        "mlp_norm": "blocks.{1}.norm",
        "mlp_convolution": "blocks.{1}.mixer.convolution",
        "mlp_in": "blocks.{1}.mixer.into",
        "inner_convolution": "blocks.{1}.mixer.inner_convolution",
        "mlp_out": "blocks.{1}.mixer.out",
    }
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    weights = {"norm.weight": transformer.norm.weight, "embedding.weight": model.embedding.weight}
    for i, one in enumerate(transformer.blocks):
        for name, value in one.state_dict().items():
            part, _, rest = name.partition(".")
            weights[f"{names[part].format(2 * i, 2 * i + 1)}.{rest}"] = value
    model.load_state_dict(weights | {"head.weight": model.head.weight})
    tokens = torch.randint(5, (2, 20))
    torch.testing.assert_close(model.hidden(tokens), transformer(model.embedding(tokens)), rtol=1e-10, atol=1e-10)


def test_a_stack_of_both_starts_as_the_transformer_does() -> None:
    config = sc.LMConfig(5, (AttentionOptions(with_mlp=False), "convolved_mlp") * 3, width=64)
    model = sc.LM(config)
    blocks: Any = model.blocks
    for block in blocks:
        out = block.mixer.out
        assert float(out.weight.detach().std() * out.in_features**0.5 * 6**0.5) == pytest.approx(1, rel=0.1)
    small = sc.LM(sc.LMConfig(5, ("convolved_mlp",), width=64, init_std=0.02))
    (block,) = small.blocks
    into: Any = block.get_submodule("mixer.into")
    assert float(into.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"convolution": 1}, "convolution=1 sees no other position; choose 2 or more, or with_mlp of another layer"),
        ({"convolution": 0}, "convolution=0 must be a whole number of at least 1"),
        ({"activation": "tanh"}, "mlp='tanh' is none of 'gelu', 'swiglu', 'relu2'"),
        ({"bias": 1}, "bias=1 must be True or False"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_what_it_cannot_be_is_told(choices: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConvolvedMLP(WIDTH, **choices)
