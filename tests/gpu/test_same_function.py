"""A GPU computes what a CPU computes: scans, layers, models and streams."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import scannable as sc
from scannable.layers import LAYERS
from scannable.nn import compile_transformers
from scannable.scan.tree import tree_map

from operators import TanhMLP, two_three

WIDTH, VOCABULARY = 32, 13


def assert_near(found: Tensor, truth: Tensor, device: torch.device, what: str = "", tolerance: float = 1e-4) -> None:
    """Within so many root mean squares, and on the device."""
    assert found.device.type == device.type, what
    error, scale = (found.cpu().double() - truth).abs().max(), truth.square().mean().sqrt()
    assert error <= tolerance * scale, f"{what}: off by {error:.1e} where the root mean square is {scale:.1e}"


def psm(**changes: Any) -> sc.TransformerPSM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": WIDTH, "chunk_length": 4, "agg_layers": 1, "inf_layers": 2, "heads": 2}
    return sc.TransformerPSM(sc.TransformerPSMConfig(VOCABULARY, **(sizes | changes)))


def test_a_scan_brackets_as_on_a_cpu(device: torch.device) -> None:
    xs = torch.randint(-(2**40), 2**40, (3, 1000))
    for options in ({}, {"inclusive": True}, {"literal": True}, {"checkpoint": True}):
        truth = sc.scan(two_three, xs, identity=5, dim=1, **options)
        assert torch.equal(sc.scan(two_three, xs.to(device), identity=5, dim=1, **options).cpu(), truth)


def test_extending_in_any_pieces_is_the_scan_on_a_cpu(device: torch.device) -> None:
    xs = torch.randint(-(2**40), 2**40, (3, 300))
    truth, state, found = sc.scan(two_three, xs, identity=5, dim=1), sc.empty(5), []
    for piece in xs.to(device).split((1, 1, 70, 3, 128, 97), 1):
        prefixes, state = sc.extend(two_three, state, piece, dim=1)
        found.append(prefixes.cpu())
    assert torch.equal(torch.cat(found, 1), truth)
    away = state.to("cpu")
    assert all(root.device.type == "cpu" for root in away.roots.values())


def test_streams_advance_together_as_on_a_cpu(device: torch.device) -> None:
    xs = torch.randint(-(2**40), 2**40, (40, 3))
    states = [sc.extend(two_three, sc.empty(5), xs[:t])[1] for t in (0, 1, 7, 31)]
    there = [sc.extend(two_three, sc.empty(5), xs[:t].to(device))[1] for t in (0, 1, 7, 31)]
    for first in range(9):
        new = [xs[first : first + m] for m in (1, 0, 5, 2)]
        truth, states = sc.extend_many(two_three, states, new)
        found, there = sc.extend_many(two_three, there, [x.to(device) for x in new])
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, truth, strict=True))


def test_gradients_of_a_learned_scan_are_those_of_a_cpu(device: torch.device) -> None:
    agg, xs = TanhMLP(8), torch.randn(2, 37, 8, dtype=torch.float64)
    there = copy.deepcopy(agg).to(device)
    for each, x in ((agg, xs), (there, xs.to(device))):
        sc.scan(each, x, identity=0.0, dim=1).square().sum().backward()
    for a, b in zip(there.parameters(), agg.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1, 7, 65, 300])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_those_of_a_cpu(name: str, n: int, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](WIDTH, 2).double()
    there = copy.deepcopy(layer).to(device)
    x = torch.randn(3, n, WIDTH, dtype=torch.float64)
    results: list[list[Tensor]] = []
    for each, inputs in ((there, x.to(device)), (layer, x.clone())):
        inputs.requires_grad_()
        first, state = each.extend(inputs, each.initial_state(3))
        second, state = each.extend(inputs, state)
        last, _ = each.step(inputs[:, 0], state)
        (first.square().sum() + second.square().sum() + last.square().sum()).backward()
        grads = [p.grad for p in (*each.parameters(), inputs) if p.grad is not None]
        results.append([first.detach(), second.detach(), last.detach(), *grads])
    assert len(results[0]) == len(results[1])
    for i, (found, truth) in enumerate(zip(*results, strict=True)):
        assert_near(found, truth, device, f"{name}, number {i}", 1e-8)


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_different_lengths_are_the_rows_alone(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](WIDTH, 2)
    there = copy.deepcopy(layer).to(device)
    layer.double()
    lengths = [70, 1, 0, 33]
    x = torch.randn(4, 70, WIDTH)
    y, state = there.extend(x.to(device), there.initial_state(4), lengths=torch.tensor(lengths, device=device))
    after, _ = there.step(x[:, 0].to(device), state)
    for row, n in enumerate(lengths):
        truth, alone = layer.extend(x[row : row + 1, :n].double(), layer.initial_state(1))
        last, _ = layer.step(x[row : row + 1, 0].double(), alone)
        if n:
            assert_near(y[row : row + 1, :n], truth, device, f"row {row}")
        assert_near(after[row : row + 1], last, device, f"after row {row}")


@pytest.mark.parametrize(
    "changes", [{}, {"compress": "projection"}, {"unit_states": True}, {"tie_weights": True}], ids=str
)
def test_transformer_psm_in_every_form_is_that_of_a_cpu(changes: Any, device: torch.device) -> None:
    model = psm(**changes).eval()
    there = copy.deepcopy(model).to(device)
    model.double()
    tokens = torch.randint(VOCABULARY, (2, 27))
    with torch.no_grad():
        truth = model(tokens)
        assert_near(there(tokens.to(device)), truth, device, "in parallel")
    state, found = there.initial_state(2), []
    for piece in tokens.to(device).split((1, 6, 9, 1, 1, 9), 1):
        logits, state = there.prefill(piece, state)
        found.append(logits)
    assert_near(torch.cat(found, 1), truth, device, "in pieces")
    assert state.nbytes == there.state_nbytes(27, 2)
    sc.verify_duality(there, tokens.to(device)).raise_if_failed()


def test_streams_at_different_positions_are_those_of_a_cpu(device: torch.device) -> None:
    model = psm().eval()
    there = copy.deepcopy(model).to(device)
    model.double()
    tokens = torch.randint(VOCABULARY, (3, 30))
    with torch.no_grad():
        truth = model(tokens)
    starts = [3, 4, 11]
    batch = sc.join(
        [there.prefill(tokens[i : i + 1, :n].to(device), there.initial_state(1))[1] for i, n in enumerate(starts)]
    )
    for k in range(9):
        token = torch.stack([tokens[i, n + k] for i, n in enumerate(starts)]).to(device)
        logits, batch = there.step(token, batch)
        for i, n in enumerate(starts):
            assert_near(logits[i], truth[i, n + k], device, f"stream {i}, step {k}")
    alone = batch.row(2)
    assert alone.position == 20
    logits, _ = there.step(tokens[2:, 20].to(device), alone)
    assert_near(logits[0], truth[2, 20], device, "a stream that left")


@pytest.mark.parametrize("row", ["mamba", "gla", "gated_deltanet", "log_linear", "attention", "psm"])
def test_a_language_model_streams_as_on_a_cpu(row: str, device: torch.device) -> None:
    torch.manual_seed(0)
    model = sc.LM(sc.LMConfig(VOCABULARY, (row,) * 2, width=WIDTH, heads=2)).eval()
    there = copy.deepcopy(model).to(device)
    model.double()
    tokens = torch.randint(VOCABULARY, (2, 90))
    with torch.no_grad():
        truth = model(tokens)
    state, found = there.initial_state(2), []
    for piece in tokens.to(device).split((70, 1, 1, 18), 1):
        logits, state = there.prefill(piece, state) if piece.shape[1] > 1 else there.step(piece[:, 0], state)
        found.append(logits.reshape(2, -1, VOCABULARY))
    assert_near(torch.cat(found, 1), truth, device)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_happens_on_the_device_and_repeats(temperature: float, device: torch.device) -> None:
    model = psm().eval()
    there = copy.deepcopy(model).to(device)
    prompt = torch.randint(VOCABULARY, (2, 9))
    runs = [
        torch.stack(list(sc.generate(there, prompt.to(device), max_new_tokens=20, temperature=temperature, seed=1)))
        for _ in range(2)
    ]
    assert runs[0].device.type == device.type and torch.equal(runs[0], runs[1])
    if temperature == 0:
        truth = torch.stack(list(sc.generate(model, prompt, max_new_tokens=20, temperature=0)))
        assert torch.equal(runs[0].cpu(), truth)


@pytest.mark.parametrize("make", [psm, lambda: sc.LM(sc.LMConfig(VOCABULARY, ("mamba2",), width=WIDTH))])
def test_bfloat16_trains_with_finite_gradients_near_those_of_float32(make: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    model = make().to(device)
    tokens = torch.randint(VOCABULARY, (2, 70), device=device)
    losses: list[float] = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        losses.append(float(loss.detach()))
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert abs(losses[0] - losses[1]) < 0.05 * losses[0]


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.usefixtures("shapes_unchecked")
def test_compiled_blocks_are_the_same_function_at_every_length(device: torch.device) -> None:
    torch._dynamo.reset()
    model = psm(chunk_length=1).to(device)
    plain = copy.deepcopy(model)
    compile_transformers(model, backend="inductor" if device.type == "cuda" else "aot_eager")
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for n in range(4, 19):
            tokens = torch.randint(VOCABULARY, (3, n), device=device)
            for each in (model, plain):
                each.zero_grad()
                each.loss(tokens, tokens).backward()
            for a, b in zip(model.parameters(), plain.parameters(), strict=True):
                if b.grad is not None and a.grad is not None:
                    torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


def test_a_state_that_was_moved_goes_on(device: torch.device) -> None:
    _, state = sc.extend(torch.add, sc.empty(torch.zeros(3)), torch.ones(2, 5, 3), dim=1)
    prefixes, after = sc.extend(torch.add, state.to(device), torch.ones(2, 4, 3, device=device), dim=1)
    assert prefixes.device.type == device.type and prefixes[0, :, 0].tolist() == [5, 6, 7, 8]
    assert tree_map(lambda x: x.cpu(), after.prefix())[0, 0] == 9
