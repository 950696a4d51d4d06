"""What is left out is exactly what is thrown away, and a cache is the same window read in pieces."""

import pytest
import torch
from transformers import GPT2Config, GPT2Model

from scannable.nn import Transformer


def make(causal: bool, layers: int = 2, window: int = 12) -> Transformer:
    torch.manual_seed(0)
    return Transformer(width=16, layers=layers, heads=4, window=window, causal=causal).double().eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 5, 12])
def test_keeping_the_last_positions_is_the_same_as_dropping_the_others(causal: bool, kept: int) -> None:
    model = make(causal)
    x = torch.randn(3, 2, 12, 16, dtype=torch.float64)
    torch.testing.assert_close(model(x, kept=kept), model(x)[..., 12 - kept :, :], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 1, 4, 2), (3, 9)])
def test_a_cached_window_read_in_pieces_equals_the_whole(pieces: tuple[int, ...]) -> None:
    model = make(causal=True)
    x = torch.randn(3, 12, 16, dtype=torch.float64)
    cache = model.new_cache(3)
    assert cache.nbytes == model.cache_nbytes(3)
    with torch.no_grad():
        read = torch.cat([model(piece, cache=cache) for piece in x.split(pieces, 1)], 1)
    torch.testing.assert_close(read, model(x), rtol=1e-12, atol=1e-12)


def test_a_window_that_is_not_causal_has_no_cache() -> None:
    with pytest.raises(ValueError, match="a window that is not causal cannot be read in pieces"):
        make(causal=False).new_cache(1)


def test_it_is_gpt2() -> None:
    """The same weights in `transformers`' GPT-2 give the same outputs."""
    ours = make(causal=True)
    config = GPT2Config(
        vocab_size=1, n_positions=12, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    theirs = GPT2Model(config).double().eval()
    assert ours.positions is not None
    weights = {"wte.weight": theirs.wte.weight.detach(), "wpe.weight": ours.positions.detach()}
    names = {
        "attention_norm": "ln_1",
        "attention.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp_in": "mlp.c_fc",
        "mlp_out": "mlp.c_proj",
    }
    for i, block in enumerate(ours.blocks):
        parts = dict(block.named_parameters())
        for mine, his in names.items():
            transpose = not mine.endswith("norm")
            weights[f"h.{i}.{his}.weight"] = parts[f"{mine}.weight"].T if transpose else parts[f"{mine}.weight"]
            weights[f"h.{i}.{his}.bias"] = parts[f"{mine}.bias"]
        for kind in ("weight", "bias"):
            joined = torch.cat((parts[f"attention.query.{kind}"], parts[f"attention.key_value.{kind}"]))
            weights[f"h.{i}.attn.c_attn.{kind}"] = joined.T if kind == "weight" else joined
    weights |= {"ln_f.weight": ours.norm.weight, "ln_f.bias": ours.norm.bias}
    theirs.load_state_dict(weights)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(inputs_embeds=x).last_hidden_state, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_a_block_starts_with_the_same_strength_at_every_width(width: int) -> None:
    """What a block adds to unit-variance input neither vanishes nor explodes, whatever the width."""
    torch.manual_seed(0)
    model = Transformer(width=width, layers=1, heads=4, window=8, causal=False)
    x = torch.randn(16, 8, width)
    y = model.blocks[0](x, 8, causal=False)
    assert 0.3 < (y - x).std() < 1.0


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width 16 is not a multiple of 3 heads"):
        Transformer(width=16, layers=1, heads=3, window=4, causal=True)


def test_a_batch_too_large_for_one_slice_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(causal=True)
    x = torch.randn(5, 2, 12, 16, dtype=torch.float64, requires_grad=True)
    whole = model(x, kept=3)
    monkeypatch.setattr("scannable.nn.transformer.CPU_SLICE", 40)
    sliced = model(x, kept=3)
    torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-12)
    inputs = [x, *model.parameters()]
    for a, b in zip(torch.autograd.grad(sliced.sum(), inputs), torch.autograd.grad(whole.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_residual_outputs_start_smaller_the_deeper_the_stack() -> None:
    torch.manual_seed(0)
    for layers in (1, 8):
        block = Transformer(width=256, layers=layers, heads=4, window=8, causal=False).blocks[0]
        for name, fan_in in (("attention.out", 256), ("mlp_out", 1024)):
            weight = dict(block.named_parameters())[f"{name}.weight"]
            assert abs(float(weight.detach().std()) * (2 * layers * fan_in) ** 0.5 - 1) < 0.02, name


def test_dropout_reaches_embeddings_attention_and_residuals() -> None:
    torch.manual_seed(0)
    model = Transformer(width=16, layers=1, heads=2, window=6, causal=True, dropout=0.5)
    calls: list[float] = []
    model.dropout.register_forward_hook(lambda *_: calls.append(0.5))
    x = torch.randn(2, 6, 16)
    assert not torch.equal(model(x), model(x)) and len(calls) == 2
    attention = model.blocks[0].get_submodule("attention")
    arguments = {"causal": True, "mask": None, "cache": None, "layer": 0}
    assert not torch.equal(attention(x, 6, **arguments), attention(x, 6, **arguments))
    model.eval()
    assert torch.equal(model(x), model(x))
