"""The GPT-2 baseline is transformers' GPT-2, with buffers that grow by doubling."""

import warnings
from typing import Any

import pytest
import torch

from scannable.baselines import GPT2Baseline, GPT2BaselineConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import GPT2Config, GPT2LMHeadModel

pytestmark = pytest.mark.filterwarnings("ignore")


def model_of(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "width": 16, "layers": 2, "heads": 2, "context": 64, "tie_weights": True}
    return GPT2Baseline(GPT2BaselineConfig(**(sizes | changes)))


def theirs() -> Any:
    """GPT-2 with all of transformers' defaults but its sizes, and without dropout; away from its start."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    quiet: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **quiet)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("positions", ["absolute", "none"])
def test_logits_and_gradients_are_those_of_transformers(positions: Any) -> None:
    raw, ours = theirs(), model_of(positions=positions).double()
    if positions == "none":
        # A table of zeros is the same as no table.
        torch.nn.init.zeros_(raw.transformer.wpe.weight)
    weights = raw.transformer.state_dict()
    if positions == "none":
        del weights["wpe.weight"]
    ours.transformer.load_state_dict(weights)
    tokens = torch.randint(40, (3, 33))
    expected, found = raw(tokens).logits, ours(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    for name, parameter in ours.transformer.named_parameters():
        torch.testing.assert_close(parameter.grad, raw.transformer.get_parameter(name).grad, rtol=0, atol=1e-10)


def test_without_positions_there_is_no_table_and_no_limit() -> None:
    absolute, none = model_of(), model_of(positions="none", context=8)
    count = {name: sum(p.numel() for p in m.parameters()) for name, m in {"absolute": absolute, "none": none}.items()}
    assert count["absolute"] - count["none"] == 64 * 16
    assert not any("wpe" in name for name in none.state_dict())
    tokens = torch.randint(40, (1, 100))
    _, state = none.prefill(tokens[:, :99], none.initial_state(1))
    torch.testing.assert_close(none.step(tokens[:, 99], state)[0], none(tokens)[:, -1])


def test_weights_start_as_those_of_gpt2_or_as_told() -> None:
    for std in (None, 0.1):
        model = model_of(width=128, heads=4, context=256, vocab_size=500, init_std=std, tie_weights=False)
        expected = std or 0.02
        block: Any = model.transformer.h[0]
        for weight in (
            model.transformer.wte.weight,
            model.transformer.wpe.weight,
            block.mlp.c_fc.weight,
            model.head.weight,
        ):
            assert float(weight.std()) == pytest.approx(expected, rel=0.05)
        assert float(block.mlp.c_proj.weight.std()) == pytest.approx(expected / 2, rel=0.05)


def test_buffers_double_and_stop_at_the_context() -> None:
    model = model_of(context=20)
    assert [model.capacity(n) for n in (0, 1, 2, 3, 4, 5, 16, 17, 20)] == [0, 1, 2, 4, 4, 8, 16, 20, 20]
    _, state = model.prefill(torch.randint(40, (1, 9)), model.initial_state(1))
    keys = state.cache.keys[0]
    for position in range(10, 17):
        _, state = model.step(torch.tensor([3]), state)
        # No step copies what is there while there is room.
        assert state.position == position and state.cache.keys[0] is keys
    _, state = model.step(torch.tensor([3]), state)
    assert state.cache.keys[0] is not keys and state.cache.capacity == 20


def test_a_state_that_was_gone_on_from_is_refused() -> None:
    model = model_of()
    state = model.initial_state(1)
    _, after = model.step(torch.tensor([3]), state)
    for use in (lambda: model.step(torch.tensor([3]), state), state.fork):
        with pytest.raises(
            ValueError,
            match=r"at position 0, but its buffers have gone on to position 1; .* fork\(\) before you branch",
        ):
            use()
    assert model.step(torch.tensor([3]), after)[1].position == 2


def test_dropout_is_for_training_only() -> None:
    model, tokens = model_of(dropout=0.5), torch.randint(40, (2, 9))
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))
