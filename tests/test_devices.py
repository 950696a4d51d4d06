"""Everything runs where its tensors are. The meta device stands for a GPU: it computes shapes only, refuses tensors of
another device beside its own, and has no value that could be looked at.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import scannable as sc
from scannable.baselines import (
    GPT2Baseline,
    GPT2BaselineConfig,
    MambaBaseline,
    MambaBaselineConfig,
)
from scannable.layers import LAYERS
from scannable.layers.state import State
from scannable.models.layer_options import OPTIONS, AttentionOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.nn.loss import sliced_cross_entropy
from scannable.scan.tree import flatten

from operators import TanhMLP

META = torch.device("meta")
WIDTH, VOCABULARY = 16, 11


class OnlyThere(TorchDispatchMode):
    """Refuses every operation that reads or makes a tensor elsewhere than on the meta device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # `torch.tensor(numbers, device=...)` sends them from here.
        sent = func._schema.name == "aten::_to_copy"
        for x in tree_leaves((() if sent else (args, kwargs), result)):
            assert not isinstance(x, Tensor) or x.device == META, f"{func} has a tensor on {x.device}"
        return result


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    with OnlyThere():
        yield


def on_meta(module: Any) -> Any:
    with _disable_current_modes():
        return module().to(META)


def tokens(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64, device=META)


def assert_gradients(loss: Tensor, module: nn.Module, but: tuple[str, ...] = ()) -> None:
    assert loss.device == META
    loss.backward()
    for name, parameter in module.named_parameters():
        assert (parameter.grad is not None) != name.endswith(but) if but else parameter.grad is not None, name


def assert_there(state: State) -> None:
    assert all(leaf.device == META for leaf in state.tensors())


# Layers.

SMALL: dict[str, dict[str, Any]] = {"psm": {"chunk_length": 1}}
"""Options under which a few positions use every weight."""


def layer_of(name: str) -> Any:
    return on_meta(lambda: LAYERS[name](WIDTH, 2, **SMALL.get(name, {})))


@pytest.mark.parametrize("n", [1, 130])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_runs_forward_and_backward_where_it_is(name: str, n: int) -> None:
    layer = layer_of(name)
    # The LSTM of torch goes there position by position, and has no chunks for which the length would matter.
    x = torch.empty(2, min(n, 9) if name == "lstm" else n, WIDTH, device=META, requires_grad=True)
    y = layer(x)
    y, state = layer.extend(y, layer.initial_state(2))
    # From a state, which has a gradient too.
    z, state = layer.extend(x, state)
    last, state = layer.step(z[:, -1], state)
    assert_there(state)
    assert_gradients(last.sum(), layer)
    assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("mode", ["scan", "step"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_other_modes_run_where_the_layer_is(name: str, mode: Any) -> None:
    layer = layer_of(name)
    x = torch.empty(2, 9, WIDTH, device=META, requires_grad=True)
    assert_gradients(layer(x, mode=mode).sum(), layer)


LENGTHS = torch.tensor([70, 0, 64]), [3, 70, 9]
"""Here, where numbers can be looked at."""


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_different_lengths_run_where_the_layer_is(name: str) -> None:
    layer = layer_of(name)
    x = torch.empty(3, 70, WIDTH, device=META, requires_grad=True)
    with pytest.raises(ValueError, match=r"lengths on meta cannot be looked at: .* pass them as a .* on the CPU"):
        layer.extend(x, layer.initial_state(3), lengths=tokens(3))
    y, state = layer.extend(x, layer.initial_state(3), lengths=LENGTHS[0])
    y, state = layer.extend(y, state, lengths=LENGTHS[1])
    assert_there(state)
    assert_gradients(y.sum(), layer)


# Scans.


def add(older: Any, newer: Any) -> Any:
    return older[0] + newer[0], older[1] * newer[1]


def test_scans_run_where_their_elements_are() -> None:
    xs = (torch.empty(2, 13, 3, device=META, requires_grad=True), tokens(2, 13))
    prefixes = sc.scan(add, xs, identity=(0.0, 1), dim=1)
    prefixes[0].sum().backward()
    checked = sc.scan(add, xs, identity=(0.0, 1), dim=1, checkpoint=True, inclusive=True, literal=True)
    checked[0].sum().backward()
    state = sc.empty((0.0, 1))
    for m in (1, 5, 2):
        part = tuple(x[:, :m] for x in xs)
        prefixes, state = sc.extend(add, state, part, dim=1)
    assert state.position == 8 and state.nbytes
    elements = [tuple(x[:, :m] for x in xs) for m in (1, 7, 0)]
    first, states = sc.extend_many(add, [sc.empty((0.0, 1)), state, state], elements, dim=1)
    assert [s.position for s in states] == [1, 15, 8]
    assert all(leaf.device == META for leaf in flatten((first, states[0].roots[0]))[0])
    counter = sc.BinaryCounter(add, (0.0, 1))
    for _ in range(5):
        counter.push(tuple(x[:, 0] for x in xs))
    ragged = sc.scan(add, xs, identity=(0.0, 1), dim=1, lengths=[13, 4])
    packed = sc.scan(add, xs, identity=(0.0, 1), dim=1, starts=[0, 4, 5])
    (ragged[0].sum() + packed[0].sum()).backward()


# Models.


def streamed(model: Any) -> None:
    """Prefill, steps and a fork from any of them."""
    logits, state = model.prefill(tokens(2, 5), model.initial_state(2))
    logits, state = model.prefill(tokens(2, 9), state)
    branch = state.fork()
    for _ in range(5):
        logits, state = model.step(tokens(2), state)
    model.step(tokens(2), branch)
    assert logits.device == META and state.nbytes


def trained(model: Any, n: int = 21, but: tuple[str, ...] = ()) -> None:
    model.train()
    assert_gradients(model.loss(tokens(2, n), tokens(2, n), slice_length=8), model, but)
    model.zero_grad()
    assert_gradients(model(tokens(2, n)).sum(), model, but)


PSM: dict[str, dict[str, Any]] = {
    "as published": {},
    "projection": {"compress": "projection"},
    "unit states and noise": {"unit_states": True, "state_noise": 0.1, "dropout": 0.1},
    "tied": {"tie_weights": True},
    "literal": {"literal_identity": True},
    "checkpoint": {"checkpoint": True},
    "sinusoids and causal": {"sinusoids": True, "agg_causal": True},
}


@pytest.mark.parametrize("variant", PSM)
def test_transformer_psm_runs_where_it_is(variant: str) -> None:
    config = sc.TransformerPSMConfig(
        VOCABULARY, WIDTH, chunk_length=4, agg_layers=1, inf_layers=2, heads=2, **PSM[variant]
    )
    model = on_meta(lambda: sc.TransformerPSM(config))
    trained(model)
    streamed(model.eval())


@pytest.mark.parametrize("c", [1, 4])
def test_streams_at_different_positions_run_where_the_model_is(c: int) -> None:
    config = sc.TransformerPSMConfig(VOCABULARY, WIDTH, chunk_length=c, agg_layers=1, inf_layers=1, heads=2)
    model = on_meta(lambda: sc.TransformerPSM(config)).eval()
    states = [model.prefill(tokens(1, n), model.initial_state(1))[1] for n in (3, 4, 11)]
    batch = sc.join(states)
    for _ in range(9):
        logits, batch = model.step(tokens(3), batch)
    batch = batch.fork().select([2, 0])
    logits, batch = model.step(tokens(2), batch)
    assert logits.device == META and batch.nbytes


class OwnInf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, prefix: Tensor, x: Tensor) -> Tensor:
        return self.out(prefix.mean(-2, keepdim=True) + x.cumsum(-2))


def test_a_model_of_ones_own_modules_runs_where_it_is() -> None:
    model = on_meta(
        lambda: sc.PrefixScannableModel(
            nn.Embedding(VOCABULARY, WIDTH),
            TanhMLP(WIDTH, torch.float32),
            OwnInf(),
            nn.Parameter(torch.zeros(WIDTH)),
            4,
        )
    )
    trained(model)
    streamed(model.eval())
    batch = sc.join([model.prefill(tokens(1, n), model.initial_state(1))[1] for n in (3, 4, 11)])
    for _ in range(5):
        _, batch = model.step(tokens(3), batch)


@pytest.mark.slow
@pytest.mark.parametrize("row", LAYERS)
def test_a_language_model_of_any_row_runs_where_it_is(row: str) -> None:
    model = on_meta(
        lambda: sc.LM(sc.LMConfig(VOCABULARY, (OPTIONS[row](**SMALL.get(row, {})),) * 2, width=WIDTH, heads=2))
    )
    trained(model, 70)
    streamed(model.eval())
    _, state = model.prefill(tokens(2, 9), model.initial_state(2), lengths=[9, 4])
    assert state.positions == (9, 4)


def test_a_sliding_window_runs_where_it_is() -> None:
    model = on_meta(lambda: LM(LMConfig(VOCABULARY, (AttentionOptions(window=4),) * 2, WIDTH, 2)))
    trained(model)
    streamed(model.eval())


def test_gpt2_streams_where_it_is() -> None:
    # Without a cache transformers looks at the positions, for sequences packed in a row: once a pass, on a GPU too.
    streamed(on_meta(lambda: GPT2Baseline(GPT2BaselineConfig(VOCABULARY, WIDTH, 2, 2, 64))).eval())


def test_the_mamba_of_transformers_runs_where_it_is() -> None:
    model = on_meta(lambda: MambaBaseline(MambaBaselineConfig(VOCABULARY, WIDTH, 2)))
    trained(model)
    streamed(model.eval())


def test_a_sliced_loss_is_computed_where_its_input_is() -> None:
    head = on_meta(lambda: nn.Linear(WIDTH, VOCABULARY))
    hidden = torch.empty(2, 9, WIDTH, device=META, requires_grad=True)
    assert_gradients(sliced_cross_entropy(hidden, tokens(2, 9), head, slice_length=4), head)
    assert hidden.grad is not None


def test_a_state_moves_with_everything_in_it() -> None:
    with _disable_current_modes():
        xs = torch.ones(2, 5, 3)
        state = sc.extend(torch.add, sc.empty(torch.zeros(3)), xs, dim=1)[1].to("meta")
    _, after = sc.extend(torch.add, state, torch.empty(2, 4, 3, device=META), dim=1)
    assert after.identity.device == META
