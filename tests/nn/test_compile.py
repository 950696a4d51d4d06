"""Compiled blocks are the same function, and lengths do not make more graphs of them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.nn import compile_transformers

# torch's compiler warns about itself, and cannot see through checks of shapes.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shapes_unchecked")]


class Graphs:
    """A backend that compiles nothing and counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.count += 1
        return graph.forward

    def __deepcopy__(self, memo: Any) -> "Graphs":
        return self


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    torch._dynamo.reset()
    # Agg and Inf, in training and in evaluation: where torch would give up, it fails here.
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        yield Graphs()
    torch._dynamo.reset()


def models(graphs: Graphs, **changes: Any) -> tuple[Any, Any]:
    """One that is compiled, and one that is not."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 16, "agg_layers": 1, "inf_layers": 2, "heads": 2}
    model = sc.TransformerPSM(sc.TransformerPSMConfig(11, **(sizes | changes)))
    plain = copy.deepcopy(model)
    assert compile_transformers(model, backend=graphs) == 2
    return model, plain


def trained_and_evaluated(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The loss of a step, all gradients, and the outputs in evaluation."""
    model.zero_grad()
    model.train()
    torch.manual_seed(1)
    loss: Any = model.loss  # pyright: ignore[reportAttributeAccessIssue]
    value = loss(tokens, tokens)
    value.backward()
    model.eval()
    with torch.no_grad():
        outputs = model(tokens)
    return [value.detach(), outputs, *(torch.zeros(()) if p.grad is None else p.grad for p in model.parameters())]


def assert_equal(model: nn.Module, plain: nn.Module, *shape: int) -> None:
    tokens = torch.randint(11, shape)
    pairs = zip(trained_and_evaluated(model, tokens), trained_and_evaluated(plain, tokens), strict=True)
    for compiled, expected in pairs:
        torch.testing.assert_close(compiled, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_curriculum_of_15_lengths_needs_four_graphs(rows: int, graphs: Graphs) -> None:
    model, plain = models(graphs, chunk_length=1)
    for n in range(4, 19):
        assert_equal(model, plain, rows, n)
    assert graphs.count == 4


@pytest.mark.slow
def test_lengths_from_100_to_1000_need_four_graphs(graphs: Graphs) -> None:
    model, plain = models(graphs, chunk_length=16)
    for n in (100, 101, 112, 250, 333, 512, 640, 800, 999, 1000):
        assert_equal(model, plain, 2, n)
    assert graphs.count == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"compress": "projection"},
        {"dropout": 0.1, "state_noise": 0.2, "unit_states": True},
        {"checkpoint": True},
        {"agg_causal": True, "literal_identity": True},
        {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "convolution": 3},
        {"prefix": "memory"},
    ],
    ids=str,
)
def test_every_variant_is_the_same_compiled(changes: Any, graphs: Graphs) -> None:
    model, plain = models(graphs, chunk_length=4, **changes)
    for n in (9, 20, 33):
        model.agg.noise = plain.agg.noise = plain.config.state_noise * n / 100  # another size of noise each time
        assert_equal(model, plain, 2, n)
    assert graphs.count == 4


def test_slices_of_a_cpu_need_no_more_graphs(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannable.nn.transformer.CPU_SLICE", 40)
    model, plain = models(graphs, chunk_length=4)
    for n in (9, 20, 33, 60):
        assert_equal(model, plain, 3, n)
    assert graphs.count == 4


def test_a_compiled_model_streams_as_before(graphs: Graphs) -> None:
    model, plain = models(graphs, chunk_length=4)
    tokens = torch.randint(11, (2, 11))
    for pieces in ((11,), (3, 5, 3), (1,) * 11):
        found, truth = list[Tensor](), list[Tensor]()
        for each, outputs in ((model, found), (plain, truth)):
            state = each.initial_state(2)
            for piece in tokens.split(pieces, 1):
                logits, state = each.prefill(piece, state)
                outputs.append(logits)
        torch.testing.assert_close(torch.cat(found, 1), torch.cat(truth, 1), rtol=1e-5, atol=1e-6)


def test_a_copy_of_a_compiled_model_has_its_own_weights(graphs: Graphs) -> None:
    model, plain = models(graphs, chunk_length=4)
    assert_equal(model, plain, 2, 20)
    other, other_plain = copy.deepcopy(model), copy.deepcopy(plain)
    with torch.no_grad():
        for each in (other, other_plain):
            for parameter in each.parameters():
                parameter.mul_(1.5)
    assert_equal(other, other_plain, 2, 20)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert graphs.count == 4


def test_a_model_without_transformers_has_nothing_to_compile(graphs: Graphs) -> None:
    model = sc.LM(sc.LMConfig(11, ("gla",), width=16, heads=2))
    assert compile_transformers(model, backend=graphs) == 0
