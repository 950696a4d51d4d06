"""Attention over a window, cut into chunks, is dense attention with a band for its mask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scannable.baselines import SlidingWindowConfig, SlidingWindowTransformer
from scannable.baselines.sliding_window import WindowAttention


def model_of(**changes: Any) -> SlidingWindowTransformer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "width": 8, "layers": 2, "heads": 2, "window": 4, "context": 80}
    return SlidingWindowTransformer(SlidingWindowConfig(**(sizes | changes))).double()


def dense(model: SlidingWindowTransformer, tokens: Tensor) -> Tensor:
    """The same function written down plainly: all scores, a band, softmax."""
    n, window = tokens.shape[1], model.config.window
    distance = torch.arange(n)[:, None] - torch.arange(n)
    far = (distance < 0) | (distance >= window)
    x = model.embedding.weight[tokens] + model.positions[:n]
    for block in model.blocks:
        part: Any = block
        y = part.attention_norm(x)
        queries = part.attention.query(y)
        keys, values = part.attention.key_value(y).chunk(2, -1)
        queries, keys, values = (
            z.unflatten(-1, (model.config.heads, -1)).transpose(1, 2) for z in (queries, keys, values)
        )
        scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
        gathered = scores.masked_fill(far, float("-inf")).softmax(-1) @ values
        x = x + part.attention.out(gathered.transpose(1, 2).flatten(2))
        x = x + part.mlp_out(torch.nn.functional.gelu(part.mlp_in(part.mlp_norm(x)), approximate="tanh"))
    return model.head(model.norm(x))


@pytest.mark.parametrize("window", [1, 2, 7, 32, 64, 65, 100])
@pytest.mark.parametrize("n", [1, 7, 63, 65])
def test_outputs_and_every_gradient_are_those_of_dense_attention(n: int, window: int) -> None:
    model = model_of(window=window)
    tokens = torch.randint(40, (2, n))
    found, expected = model(tokens), dense(model, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad((found * weight).sum(), list(parameters.values()))
    wanted = torch.autograd.grad((expected * weight).sum(), list(parameters.values()))
    for name, gradient, want in zip(parameters, gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, want, rtol=0, atol=1e-10, msg=name)


def test_a_layer_sees_its_window_and_nothing_before() -> None:
    for window in (1, 3, 10):
        model = model_of(layers=1, window=window)
        x = model.embedding(torch.arange(20)[None]).detach().requires_grad_()
        attention: Any = model.blocks[0].attention  # pyright: ignore[reportAttributeAccessIssue]
        attention(x, 20, causal=True, mask=None, cache=None, layer=0)[0, 12].sum().backward()
        reached = (x.grad.abs().amax(-1)[0] > 0).nonzero().flatten()  # pyright: ignore[reportOptionalMemberAccess]
        assert reached.tolist() == list(range(13 - window, 13))


def test_the_scores_of_a_long_input_are_a_band() -> None:
    model = model_of(context=4096, window=16, layers=1)
    sizes: list[int] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def counted(queries: Tensor, keys: Tensor, *rest: Any, **options: Any) -> Tensor:
        sizes.append(queries.shape[0] * queries.shape[1] * queries.shape[2] * keys.shape[2])
        return real(queries, keys, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        model(torch.randint(40, (1, 4096)))
    heads = 2
    assert sizes == [heads * 4096 * 31]


def test_the_state_holds_a_window_however_long_the_stream() -> None:
    model = model_of(window=6)
    _, state = model.prefill(torch.randint(40, (3, 50)), model.initial_state(3))
    assert state.keys.shape == (2, 3, 2, 5, 4)
    # Not a view of all that was computed, which would stay alive with it.
    assert state.keys.untyped_storage().nbytes() == state.keys.nbytes
    bytes_held = {state.nbytes}
    for _ in range(8):
        _, state = model.step(torch.tensor([1, 2, 3]), state)
        bytes_held.add(state.nbytes)
    assert bytes_held == {2 * 2 * 3 * 5 * 8 * 8}


def test_a_position_may_be_asked_alone() -> None:
    attention = WindowAttention(8, 2, 0.0, window=3).double()
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    whole = attention(x, 11, causal=True, mask=None, cache=None, layer=0)
    for kept in (1, 4, 9):
        last = attention(x, kept, causal=True, mask=None, cache=None, layer=0)
        torch.testing.assert_close(last, whole[:, 11 - kept :], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="causal and has a mask of its own"):
        attention(x, 11, causal=False, mask=None, cache=None, layer=0)


def test_logits_start_at_unit_scale() -> None:
    for changes in ({}, {"tie_weights": True}):
        logits = model_of(width=128, heads=4, **changes)(torch.randint(40, (2, 60))).detach()
        assert 0.5 < float(logits.std()) < 2


def test_dropout_is_for_training_only() -> None:
    model, tokens = model_of(dropout=0.5), torch.randint(40, (2, 9))
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))
