"""Each option of a block is what its name says."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scannable.nn import BlockConfig, Transformer
from scannable.nn.block import Attention, Block
from scannable.nn.rotary import rotate, rotations
from scannable.nn.short_convolution import ShortConvolution


def make(window: int = 12, causal: bool = True, layers: int = 2, **options: Any) -> Transformer:
    torch.manual_seed(0)
    block = BlockConfig(**options)
    return Transformer(width=16, layers=layers, heads=2, window=window, causal=causal, block=block).double()


def block_of(**options: Any) -> Any:
    return make(**options).blocks[0]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_rotated_products_depend_on_the_distance_alone() -> None:
    rotation = rotations(20, 8, torch.device("cpu"), torch.float64)
    query, key = numbers(2, 8).unbind(0)
    queries, keys = (rotate(one.expand(1, 1, 20, 8), rotation)[0, 0] for one in (query, key))
    products = queries @ keys.T
    for distance in range(5):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12)
    assert products.diagonal(-1)[0] != products.diagonal(-2)[0]
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(20), rtol=1e-12, atol=1e-12)


def test_rotation_is_that_of_transformers() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    angles = torch.arange(7.0, dtype=torch.float64)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    both = torch.cat((angles, angles), -1)[None]
    x = numbers(2, 3, 7, 8)
    theirs, _ = apply_rotary_pos_emb(x, x, both.cos(), both.sin())
    torch.testing.assert_close(rotate(x, rotations(7, 8, torch.device("cpu"), torch.float64)), theirs)


def test_rotary_positions_are_counted_from_the_start_of_the_window() -> None:
    # One layer, so that the last position only sees keys: moving the whole window leaves it as it was.
    model, x = make(positions="rotary", window=12), numbers(1, 5, 16)
    assert model.positions is None and "positions" not in dict(model.named_parameters())
    cache = model.new_cache(1)
    with torch.no_grad():
        model(numbers(1, 4, 16), cache=cache)
        cache.keys = [torch.full_like(one, -1e9) if i == 0 else one for i, one in enumerate(cache.keys)]
        assert model(x, cache=cache).isfinite().all()
    swapped = x[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(model(x)[:, -1], model(swapped)[:, -1])
    without = make(positions="none", layers=1, window=12)
    torch.testing.assert_close(without(x)[:, -1], without(swapped)[:, -1])


def test_a_rotation_made_in_inference_mode_serves_training() -> None:
    model = make(positions="rotary", window=11)
    with torch.inference_mode():
        model(numbers(1, 5, 16))
    model(numbers(1, 5, 16)).sum().backward()


def test_norms() -> None:
    x = numbers(2, 3, 16) + 1
    rms = block_of(norm="rms").attention_norm
    torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    assert isinstance(block_of().attention_norm, nn.LayerNorm) and not hasattr(rms, "bias")
    assert isinstance(make(norm="rms").norm, nn.RMSNorm)


@pytest.mark.parametrize("width", [8, 16, 64, 256])
def test_swiglu_has_about_as_many_parameters(width: int) -> None:
    count = {
        mlp: sum(p.numel() for p in Block(width, 2, 0.0, BlockConfig(mlp=mlp)).parameters())  # pyright: ignore
        for mlp in ("gelu", "swiglu", "relu2")
    }
    assert count["relu2"] == count["gelu"]
    assert count["swiglu"] == pytest.approx(count["gelu"], rel=0.03 if width > 16 else 0.12)


def test_mlps_are_their_formulas() -> None:
    x = numbers(1, 3, 16)
    for mlp, formula in {
        "gelu": lambda h: F.gelu(h, approximate="tanh"),
        "relu2": lambda h: h.clamp(min=0) ** 2,
        "swiglu": lambda h: F.silu(h[..., :48]) * h[..., 48:],
    }.items():
        block = block_of(mlp=mlp)
        y = x + block.attention(block.attention_norm(x), 3, causal=True, mask=None, cache=None, layer=0)
        expected = y + block.mlp_out(formula(block.mlp_in(block.mlp_norm(y))))
        torch.testing.assert_close(block(x, 3, causal=True), expected)


def test_queries_and_keys_of_any_size_count_as_much_as_their_gain() -> None:
    attention: Attention = block_of(qk_norm=True).attention
    x = numbers(1, 5, 16)
    arguments: dict[str, Any] = {"causal": True, "mask": None, "cache": None, "layer": 0}
    before = attention(x, 5, **arguments)
    with torch.no_grad():
        for linear, rows in ((attention.query, 16), (attention.key_value, 16)):
            linear.weight[:rows] *= 100
    torch.testing.assert_close(attention(x, 5, **arguments), before, rtol=1e-4, atol=1e-4)
    assert attention.gain is not None and attention.gain.shape == (2,)
    with torch.no_grad():
        attention.gain.zero_()
    values = attention.key_value(x)[..., 16:].cumsum(1) / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(attention(x, 5, **arguments), attention.out(values))


def test_convolutions_stand_at_the_four_points_and_cost_nothing_at_zero() -> None:
    names = {name.removesuffix(".weight") for name, _ in block_of(convolution=4).named_parameters() if "convol" in name}
    assert names == {
        "attention_convolution",
        "attention.query_convolution",
        "attention.key_value_convolution",
        "mlp_convolution",
        "inner_convolution",
    }
    assert not any(isinstance(part, ShortConvolution) for part in make().modules())
    block, plain = block_of(convolution=4), block_of()
    plain.load_state_dict(block.state_dict(), strict=False)
    x = numbers(2, 6, 16)
    assert not torch.allclose(block(x, 6, causal=True), plain(x, 6, causal=True))
    with torch.no_grad():
        for name, weight in block.named_parameters():
            if "convolution" in name:
                weight.zero_()
    torch.testing.assert_close(block(x, 6, causal=True), plain(x, 6, causal=True))


@pytest.mark.parametrize("options", [{}, {"convolution": 3}, {"positions": "rotary", "convolution": 2}], ids=str)
def test_a_causal_transformer_never_looks_ahead(options: Any) -> None:
    model, x = make(**options), numbers(1, 9, 16).requires_grad_()
    for i in range(9):
        (gradient,) = torch.autograd.grad(model(x, memory=numbers(1, 3, 16))[:, i].sin().sum(), x)
        assert not gradient[:, i + 1 :].any() and bool(gradient[:, i].any())


def test_a_memory_is_not_carried_through_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, memory = make(), numbers(3, 2, 5, 16), numbers(3, 2, 4, 16)
    seen: list[int] = []
    block: Any = model.blocks[0]
    block.mlp_in.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    whole = model(x, memory=memory)
    assert seen == [5]
    # Where memory and window are one, layer by layer, they give what a window of both gives.
    single = make(layers=1)
    torch.testing.assert_close(single(x, memory=memory), single(torch.cat((memory, x), -2), kept=5))
    assert not torch.allclose(whole, model(torch.cat((memory, x), -2), kept=5))
    monkeypatch.setattr("scannable.nn.transformer.CPU_SLICE", 20)
    torch.testing.assert_close(model(x, memory=memory), whole)


@pytest.mark.parametrize("layers", [1, 2])
def test_every_parameter_of_every_option_learns(layers: int) -> None:
    options = {"norm": "rms", "mlp": "swiglu", "qk_norm": True, "convolution": 4}
    model = make(layers=layers, **options)
    model(numbers(2, 9, 16)).square().sum().backward()
    for name, parameter in model.named_parameters():
        learns = parameter.grad is not None and bool(parameter.grad[:9].any())
        assert learns or name.endswith("key_value.bias"), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "absolute"}, "positions='absolute' is none of 'learned', 'rotary', 'none'"),
        ({"norm": "batch"}, "norm='batch' is none of 'layer', 'rms'"),
        ({"mlp": "relu"}, "mlp='relu' is none of 'gelu', 'swiglu', 'relu2'"),
        ({"qk_norm": 1}, "qk_norm=1 must be True or False"),
        ({"convolution": 1}, "convolution=1 must be 0 for none, or a whole number of at least 2"),
        ({"convolution": True}, "convolution=True must be 0 for none"),
        ({"convolution": -2}, "convolution=-2 must be 0 for none"),
        ({"convolution": 2.5}, "convolution=2.5 must be 0 for none"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_options_that_no_block_has_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockConfig(**options)


def test_what_does_not_fit_together_is_refused() -> None:
    rotary = BlockConfig(positions="rotary")
    with pytest.raises(ValueError, match=r"positions='rotary' rotates pairs .* width=6 and heads=2 make heads of 3"):
        Transformer(width=6, layers=1, heads=2, window=4, causal=True, block=rotary)
    model = make()
    cache = model.new_cache(1)
    with pytest.raises(ValueError, match="put it there with remember"):
        model(numbers(1, 2, 16), cache=cache, memory=numbers(1, 2, 16))
    model.remember(numbers(1, 2, 16), cache)
    with pytest.raises(ValueError, match=r"the cache has \(2,\) positions already"):
        model.remember(numbers(1, 2, 16), cache)


def test_options_are_read_without_torch() -> None:
    code = "import sys, scannable.nn.block_config as c; c.BlockConfig(mlp='relu2'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
