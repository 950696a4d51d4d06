"""Where launches count, a recurrence takes few of them; the choice is by device, and here it is made by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recurrences import DOUBLE, KINDS, Draw, Size, assert_all_near, results, run_mode
from scannable.layers.affine import blocks
from scannable.layers.affine.elementwise import elementwise_states
from scannable.layers.affine.recurrence import Recurrence

LENGTHS = [1, 7, 63, 65, 300]


class Launches(TorchDispatchMode):
    """Counts calls of kernels: everything that is no view and does not only set memory aside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = [each.alias_info for each in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in returned)
        only_memory = func._schema.name in ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::_unsafe_view")
        self.count += not view and not only_memory
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choices for a GPU, on tensors of this CPU."""
    monkeypatch.setattr(blocks, "launches_count", lambda device: True)


def launches(kind: str, n: int, *, b: int = 1, k: int = 4, v: int = 4) -> tuple[int, int]:
    """Of forward, and of backward."""
    inputs = {name: x.requires_grad_() for name, x in KINDS[kind].draw(Draw(), Size(n, b, 1, k, v)).items()}
    with Launches() as forward:
        outputs, last = run_mode(KINDS[kind], "chunkwise")(inputs)
    with Launches() as backward:
        torch.autograd.backward([outputs, last], [torch.ones_like(outputs), torch.ones_like(last)])
    return forward.count, backward.count


def test_the_device_decides() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not blocks.launches_count(cpu)
    assert blocks.launches_count(cuda) and blocks.launches_count(torch.device("mps"))
    assert blocks.blocks_for(cpu, 4096, 2**17) == 1 and blocks.blocks_for(cpu, 4096, 2**10) == 64
    assert blocks.blocks_for(cuda, 4096, 2**17) == blocks.blocks_for(cuda, 4096, 2**10) == 512
    assert blocks.positions_at_once(cpu, 2**17) is None and blocks.positions_at_once(cuda, 2**17) == 512
    assert blocks.slice_for(cpu, 10_000) == 4096 and blocks.slice_for(cuda, 10_000) == 10_000


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "diagonal_invariant"])
def test_a_gpus_form_equals_the_loop_in_values_and_all_gradients(name: str, n: int, gpu: None) -> None:
    inputs = KINDS[name].draw(Draw(), Size(n, 2, 2, 4, 4))
    truth = results(inputs, lambda x: KINDS[name].loop(**x))
    assert_all_near(results(inputs, run_mode(KINDS[name], "chunkwise")), truth, DOUBLE)


@pytest.mark.parametrize("n", [*LENGTHS, 5000])
def test_a_gpus_form_of_s4_equals_the_loop_in_values_and_all_gradients(n: int, gpu: None) -> None:
    # 5,000 positions are 79 chunks, whose states make a tree of their own.
    inputs = KINDS["diagonal_invariant"].draw(Draw(), Size(n, 2, 1, 2, 2))
    truth = results(inputs, lambda x: KINDS["diagonal_invariant"].loop(**x))
    assert_all_near(results(inputs, run_mode(KINDS["diagonal_invariant"], "chunkwise")), truth, DOUBLE)


@pytest.mark.parametrize("n", [5, 64, 300])
def test_states_that_do_not_all_fit_are_computed_a_stretch_at_a_time(
    n: int, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, size = KINDS["selective"], Size(n, 2, 1, 4, 3)
    inputs = kind.draw(Draw(), size)
    truth = results(inputs, lambda x: kind.loop(**x))
    monkeypatch.setattr(blocks, "STATES", 17 * size.b * size.k * size.v)
    assert blocks.positions_at_once(torch.device("cpu"), size.b * size.k * size.v) == 17
    assert_all_near(results(inputs, run_mode(kind, "chunkwise")), truth, DOUBLE)


def test_no_states_but_one_a_stretch_are_kept_for_backward(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, size = KINDS["selective"], Size(256, 1, 1, 16, 8)
    state = size.k * size.v
    monkeypatch.setattr(blocks, "STATES", 64 * state)
    inputs = {name: x.requires_grad_() for name, x in kind.draw(Draw(), size).items()}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // 8
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        outputs, _ = run_mode(kind, "chunkwise")(inputs)
    assert outputs.requires_grad
    # Three inputs of n·v, two of n·k and a handful of single states; all states would be 32,768 numbers.
    assert sum(kept.values()) <= 256 * (3 * size.v + 2 * size.k) + 8 * state


@pytest.mark.parametrize("width", [1, 2**17])
def test_an_elementwise_recurrence_takes_log_n_launches_on_a_gpu_whatever_its_width(width: int) -> None:
    for n in (8, 64, 512, 4096, 4095, 5000, 65_536):
        decay, offset, start = (torch.empty(1, *shape, width, device="meta") for shape in ((n,), (n,), ()))
        with Launches() as counted:
            elementwise_states(decay, offset, start)
        # A level: 3 a position of a block, a few copies, and what fills no block.
        assert counted.count <= 32 * math.log(n, 8)


def test_an_elementwise_recurrence_took_a_launch_a_position_where_a_state_fills_a_lane() -> None:
    decay, offset, start = (torch.empty(1, *shape, 2**17) for shape in ((100,), (100,), ()))
    with Launches() as counted:
        elementwise_states(decay, offset, start)
    assert counted.count == 100


def test_a_selective_state_space_takes_log_n_launches_on_a_gpu(gpu: None) -> None:
    # Forward, forward once more, and backward: three trees.
    for n in (512, 4096, 32_768):
        assert sum(launches("selective", n)) <= 3 * 32 * math.log(n, 8) + 30


def test_a_selective_state_space_takes_31_launches_a_position_on_a_cpu_where_a_state_fills_a_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "LANE", 1)
    short, long = (sum(launches("selective", n)) for n in (320, 640))
    assert 30 <= (long - short) / 320 <= 32


@pytest.mark.parametrize("name", ["identity", "scalar", "diagonal", "diagonal_invariant"])
def test_chunks_whose_states_make_a_tree_take_log_n_launches_on_a_gpu(name: str, gpu: None) -> None:
    # 64 and 512 chunks: one level more in the trees of forward and of backward.
    short, long = (sum(launches(name, 64 * r)) for r in (64, 512))
    assert long - short <= 2 * 35


@pytest.mark.parametrize(("name", "each"), [("delta", 5), ("gated_delta", 7), ("diagonal_plus_rank_one", 8)])
def test_chunks_whose_states_make_a_chain_take_few_launches_each(name: str, each: int) -> None:
    short, long = (sum(launches(name, 64 * r)) for r in (8, 64))
    assert long - short == each * (64 - 8)


def test_a_dense_system_takes_sqrt_n_launches(gpu: None) -> None:
    counts = {n: sum(launches("dense_invariant", n)) for n in (256, 1024, 4096)}
    assert all(counts[n] <= 24 * n**0.5 for n in counts)


def test_a_recurrence_is_cut_by_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(blocks, "launches_count", lambda device: asked.append(device) or True)
    for kind in ("elementwise", "selective", "scalar"):
        recurrence: Recurrence = KINDS[kind].recurrence(
            {n: x.to("meta") for n, x in KINDS[kind].draw(Draw(), Size(70)).items()}
        )
        asked.clear()
        recurrence.run(KINDS[kind].draw(Draw(), Size(70))["start"].to("meta"))
        assert asked and all(device.type == "meta" for device in asked)
