"""Everything that goes into a scan gets its gradient: Agg's parameters, the elements, the identity, the state."""

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import scannable as sc
from scannable.scan import reference

from operators import TanhMLP

LENGTHS = [1, 2, 3, 7, 8, 63, 64, 65, 200]
WIDTH = 5


def problem(n: int, seed: int = 0, batch: int = 3) -> tuple[TanhMLP, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    agg = TanhMLP(WIDTH)
    xs = torch.randn(batch, n, WIDTH, dtype=torch.float64, requires_grad=True)
    e = torch.randn(WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(batch, n, WIDTH, dtype=torch.float64)
    return agg, xs, e, weights


def values_and_gradients(prefixes: Tensor, weights: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad((prefixes * weights).sum(), inputs, allow_unused=True)
    return [
        prefixes.detach(),
        *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)),
    ]


def slow(agg: Callable[[Tensor, Tensor], Tensor], xs: Tensor, e: Tensor, **options: bool) -> Tensor:
    prefixes = reference.scan(agg, list(xs.unbind(1)), e.expand(xs.shape[0], -1), **options)
    return torch.stack(prefixes, 1)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("inclusive", [False, True])
def test_values_and_all_gradients_equal_the_recursion(n: int, literal: bool, inclusive: bool) -> None:
    agg, xs, e, weights = problem(n)
    inputs = [xs, e, *agg.parameters()]
    truth = values_and_gradients(slow(agg, xs, e, literal=literal, inclusive=inclusive), weights, inputs)
    for checkpoint in (False, True):
        fast = sc.scan(agg, xs, identity=e, dim=1, literal=literal, inclusive=inclusive, checkpoint=checkpoint)
        for a, b in zip(values_and_gradients(fast, weights, inputs), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [(1,) * 9, (5, 0, 1, 7), (64, 1, 63), (37, 91)])
def test_gradients_flow_back_through_the_incoming_state(parts: tuple[int, ...]) -> None:
    agg, xs, e, weights = problem(sum(parts))
    inputs = [xs, e, *agg.parameters()]
    truth = values_and_gradients(slow(agg, xs, e), weights, inputs)
    state, pieces = sc.empty(e), []
    for piece in xs.split(parts, 1):
        prefixes, state = sc.extend(agg, state, piece, dim=1)
        pieces.append(prefixes)
    for a, b in zip(values_and_gradients(torch.cat(pieces, 1), weights, inputs), truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_detached_state_cuts_the_gradient_to_the_past() -> None:
    agg, xs, e, _ = problem(9)
    past, present = xs[:, :6].detach().requires_grad_(), xs[:, 6:].detach().requires_grad_()
    _, state = sc.extend(agg, sc.empty(e), past, dim=1)
    prefixes, _ = sc.extend(agg, state.detach(), present, dim=1)
    to_past, to_present = torch.autograd.grad(prefixes.sum(), [past, present], allow_unused=True)
    assert to_past is None and to_present.abs().sum() > 0
    assert state.detach().identity is e


@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_gradcheck(n: int) -> None:
    torch.manual_seed(1)
    agg = TanhMLP(2)

    def function(xs: Tensor, e: Tensor, *parameters: Tensor) -> Tensor:
        names = [name for name, _ in agg.named_parameters()]

        def with_parameters(older: Tensor, newer: Tensor) -> Tensor:
            return torch.func.functional_call(agg, dict(zip(names, parameters, strict=True)), (older, newer))

        return sc.scan(with_parameters, xs, identity=e)

    xs = torch.randn(n, 2, dtype=torch.float64, requires_grad=True)
    e = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (xs, e, *agg.parameters()))
    if n == 5:
        assert torch.autograd.gradgradcheck(function, (xs, e, *agg.parameters()))


class RecordedDropout:
    """Agg with true dropout that remembers which mask each pair got, so that the recursion can use it again."""

    def __init__(self, agg: TanhMLP) -> None:
        self.agg = agg
        self.masks: dict[tuple[int, int], Tensor] = {}

    def batched(self, older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (a, i), (b, j) = older, newer
        masks = torch.nn.functional.dropout(torch.ones_like(a), 0.3)
        for pair, mask in zip(zip(i.tolist(), j.tolist(), strict=True), masks, strict=True):
            self.masks[pair] = mask
        return self.agg(a, b) * masks, 2 * i + 3 * j

    def again(self, older: tuple[Tensor, int], newer: tuple[Tensor, int]) -> tuple[Tensor, int]:
        (a, i), (b, j) = older, newer
        return self.agg(a, b) * self.masks[i, j], 2 * i + 3 * j


def test_agg_may_contain_dropout_and_every_pair_gets_its_own_mask() -> None:
    torch.manual_seed(3)
    n, dropping = 45, RecordedDropout(TanhMLP(WIDTH))
    xs = torch.randn(n, WIDTH, dtype=torch.float64, requires_grad=True)
    e = torch.zeros(WIDTH, dtype=torch.float64)
    names = torch.arange(1, n + 1)
    fast, _ = sc.scan(dropping.batched, (xs, names), identity=(e, torch.tensor(0)))
    truth = reference.scan(dropping.again, list(zip(xs.unbind(), names.tolist(), strict=True)), (e, 0))
    slow_prefixes = torch.stack([value for value, _ in truth])
    torch.testing.assert_close(fast, slow_prefixes, rtol=1e-10, atol=1e-10)
    inputs = [xs, *dropping.agg.parameters()]
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), inputs),
        torch.autograd.grad(slow_prefixes.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    distinct = {tuple(mask.tolist()) for mask in dropping.masks.values()}
    assert len(distinct) > 10


def test_dropout_under_a_fixed_seed_is_the_same_with_and_without_checkpointing() -> None:
    agg = TanhMLP(WIDTH, dropout=0.4)
    xs = torch.randn(2, 50, WIDTH, dtype=torch.float64, requires_grad=True)
    e = torch.zeros(WIDTH, dtype=torch.float64)
    inputs = [xs, *agg.parameters()]
    results = []
    for seed, checkpoint in ((0, False), (0, True), (1, False)):
        torch.manual_seed(seed)
        prefixes = sc.scan(agg, xs, identity=e, dim=1, checkpoint=checkpoint)
        results.append(values_and_gradients(prefixes, torch.ones_like(prefixes), inputs))
    for a, b in zip(results[0], results[1], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(results[0][0], results[2][0])


def test_checkpointing_keeps_fewer_tensors_for_backward() -> None:
    agg = TanhMLP(32)
    xs = torch.randn(1, 256, 32, dtype=torch.float64, requires_grad=True)

    def saved_bytes(checkpoint: bool) -> int:
        seen: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            out = sc.scan(
                lambda a, b: agg(agg(agg(a, b), b), b), xs, identity=xs.new_zeros(32), dim=1, checkpoint=checkpoint
            )
        assert out.requires_grad
        return sum(seen.values())

    assert saved_bytes(True) < 0.5 * saved_bytes(False)


def test_the_state_is_kept_in_the_dtype_of_the_elements_under_autocast() -> None:
    agg = TanhMLP(8, dtype=torch.float32)
    xs = torch.randn(2, 33, 8, requires_grad=True)
    e = torch.nn.Parameter(torch.zeros(8))
    full = sc.scan(agg, xs, identity=e, dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = sc.scan(agg, xs, identity=e, dim=1)
        _, state = sc.extend(agg, sc.empty(e), xs, dim=1)
        half = sc.scan(agg, xs.bfloat16(), identity=e, dim=1)
    assert mixed.dtype == torch.float32 and half.dtype == torch.bfloat16
    assert all(root.dtype == torch.float32 for root in state.roots.values())
    # bfloat16 keeps 8 bits: each of the at most 7 levels rounds a tanh output by 2^-9.
    torch.testing.assert_close(mixed, full, rtol=0, atol=7 * 2**-8)
    mixed.sum().backward()
    assert xs.grad is not None and agg.linear.weight.grad is not None and e.grad is not None


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 7 * 2**-8)])
def test_low_precision_parallel_and_online_agree_within_rounding(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    agg, n = TanhMLP(16, dtype=dtype), 65
    xs = torch.randn(n, 16, dtype=dtype)
    e = torch.zeros(16, dtype=dtype)
    with torch.no_grad():
        counter = sc.BinaryCounter(agg, e)
        online = []
        for x in xs:
            online.append(counter.prefix())
            counter.push(x)
        torch.testing.assert_close(sc.scan(agg, xs, identity=e), torch.stack(online), rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_a_compiled_agg_gives_the_same_values_and_gradients() -> None:
    torch.manual_seed(0)
    agg = TanhMLP(4, dtype=torch.float32)
    backend = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    compiled = torch.compile(agg, backend=backend, dynamic=True)
    xs = torch.randn(2, 37, 4, requires_grad=True)
    e = torch.zeros(4)
    inputs = [xs, *agg.parameters()]
    weights = torch.randn(2, 37, 4)
    plain = values_and_gradients(sc.scan(agg, xs, identity=e, dim=1), weights, inputs)
    fast = values_and_gradients(sc.scan(compiled, xs, identity=e, dim=1), weights, inputs)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_whole_scan_can_be_traced_into_one_graph_and_mapped() -> None:
    agg = TanhMLP(3)
    xs = torch.randn(4, 21, 3, dtype=torch.float64)
    e = torch.zeros(3, dtype=torch.float64)

    def whole(x: Tensor) -> Tensor:
        return sc.scan(agg, x, identity=e)

    truth = torch.stack([whole(x) for x in xs])
    torch.testing.assert_close(torch.func.vmap(whole)(xs), truth, rtol=1e-10, atol=1e-10)
    traced = torch.compile(whole, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(xs[0]), truth[0], rtol=1e-10, atol=1e-10)
