"""A recurrence is one function, however it is run: by chunks, by the scan, by steps, and by the plain loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recurrences import (
    DOUBLE,
    KINDS,
    SINGLE,
    Draw,
    Inputs,
    Kind,
    Size,
    assert_all_near,
    assert_near,
    draw_elementwise,
    draw_selective,
    leaves,
    results,
    run_mode,
    to_single,
)
from scannable.layers.affine import blocks, chunkwise
from scannable.layers.affine.actions import Dense, Diagonal, DiagonalPlusRankOne, Identity, RankOne, Scalar
from scannable.layers.affine.elementwise import elementwise_states
from scannable.layers.affine.monoid import Affine, compose, states
from scannable.layers.affine.recurrence import Mode, Recurrence
from scannable.scan.tree import tree_map
from scannable.spd.counters import CountedWork

MODES: list[Mode] = ["chunkwise", "scan", "step"]
MEMORIES = [
    *("identity", "scalar", "diagonal", "diagonal_plus_rank_one"),
    *("delta", "gated_delta", "negative_delta", "delta_product", "gated_delta_product"),
]
TIME_VARYING = [name for name in KINDS if not name.endswith("invariant")]

# Every length, both batches, heads from 8 to 64, with and without a state to start from.
SIZES = [
    Size(1, 3, 2, 8, 16),
    Size(1, 1, 1, 16, 8, start=False),
    Size(7, 1, 2, 16, 8, start=False),
    Size(63, 3, 1, 24, 8),
    Size(64, 1, 1, 64, 32, start=False),
    Size(65, 3, 1, 8, 64),
    Size(65, 1, 1, 32, 32),
    Size(200, 1, 2, 16, 24),
    Size(200, 3, 1, 8, 8, start=False),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_all_modes_equal_the_loop_in_values_and_all_gradients(name: str, size: Size) -> None:
    kind = KINDS[name]
    inputs = kind.draw(Draw(), size)
    truth = results(inputs, lambda x: kind.loop(**x))
    for mode in MODES:
        assert_all_near(results(inputs, run_mode(kind, mode)), truth, DOUBLE)
        single = results(to_single(inputs), run_mode(kind, mode))
        assert all(x.dtype in (torch.float32, torch.complex64) for x in single.values())
        assert_all_near(single, truth, SINGLE)


@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_in_two_parts_is_the_sequence(name: str) -> None:
    kind, n = KINDS[name], 150
    inputs = kind.draw(Draw(), Size(n, 2))

    def part(x: Inputs, where: slice) -> Recurrence:
        return kind.recurrence({name: v if name in kind.shared else v[:, where] for name, v in x.items()})

    for mode in MODES:

        def in_parts(x: Inputs, mode: Mode = mode) -> tuple[Tensor, Tensor]:
            first, state = part(x, slice(0, 70)).run(x["start"], mode)
            second, state = part(x, slice(70, n)).run(state, mode)
            return torch.cat((first, second), 1), state

        assert_all_near(results(inputs, in_parts), results(inputs, run_mode(kind, mode)), DOUBLE)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_loss_of_the_outputs_alone_or_of_the_last_state_alone_has_its_gradient(name: str, wanted: int) -> None:
    kind = KINDS[name]
    inputs = kind.draw(Draw(), Size(70, 2))

    def gradients(run: Callable[[Inputs], tuple[Tensor, Tensor]]) -> list[Tensor]:
        x = leaves(inputs)
        found = run(x)[wanted]
        return list(torch.autograd.grad(found.abs().square().sum(), list(x.values()), materialize_grads=True))

    truth = gradients(lambda x: kind.loop(**x))
    for mode in MODES:
        for what, found, expected in zip(inputs, gradients(run_mode(kind, mode)), truth, strict=True):
            assert_near(found, expected, DOUBLE, what)


@pytest.mark.parametrize("lane", [1, 100, 1000])
@pytest.mark.parametrize("name", ["scalar", "diagonal", "elementwise", "selective", "diagonal_invariant"])
def test_how_much_is_done_side_by_side_does_not_matter(name: str, lane: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    inputs = kind.draw(Draw(), Size(330, 2, 1, 8, 2))
    truth = results(inputs, lambda x: kind.loop(**x))
    monkeypatch.setattr(blocks, "LANE", lane)
    assert_all_near(results(inputs, run_mode(kind, "chunkwise")), truth, DOUBLE)


@pytest.mark.parametrize("chunk", [1, 2, 16, 128])
@pytest.mark.parametrize("name", MEMORIES)
def test_how_long_a_chunk_is_does_not_matter(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some of these make few chunks, which are added up in one product, and others many.
    kind = KINDS[name]
    inputs = kind.draw(Draw(), Size(150, 2))
    monkeypatch.setattr(chunkwise, "CHUNK", chunk)
    assert_all_near(results(inputs, run_mode(kind, "chunkwise")), results(inputs, lambda x: kind.loop(**x)), DOUBLE)


@pytest.mark.parametrize("name", ["identity", "scalar", "delta", "gated_delta", "delta_product"])
def test_a_position_more_than_whole_chunks_costs_little(name: str) -> None:
    # Not a whole chunk more, filled up with zeros.
    kind, operations = KINDS[name], dict[int, int]()
    for n in (64, 65, 128):
        with CountedWork() as work:
            run_mode(kind, "chunkwise")(kind.draw(Draw(), Size(n, 2)))
        operations[n] = work.operations
    assert operations[65] < 1.1 * operations[64] < operations[128]


@pytest.mark.parametrize("name", MEMORIES)
def test_slices_on_a_cpu_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    inputs = kind.draw(Draw(), Size(150, 2))
    monkeypatch.setattr(blocks, "SLICE", 64)
    assert_all_near(results(inputs, run_mode(kind, "chunkwise")), results(inputs, lambda x: kind.loop(**x)), DOUBLE)


# Ragged batches.

LENGTHS = [130, 1, 0, 64, 77]


def spoiled(kind: Kind, inputs: Inputs, keep: Tensor, seed: int) -> Inputs:
    """The same with large random numbers, of the sign they had, where `keep` is false."""
    draw = Draw(seed)

    def spoil(x: Tensor) -> Tensor:
        where = keep.reshape(keep.shape + (1,) * (x.ndim - 2))
        return x.where(where, x * draw.between(1e6, 1e12, *x.shape))

    return {name: x if name in kind.shared or name == "start" else spoil(x) for name, x in inputs.items()}


def run_kept(kind: Kind, inputs: Inputs, keep: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
    outputs, last = kind.recurrence(inputs).padded(keep).run(inputs["start"], mode)
    return outputs.where(keep.reshape(keep.shape + (1,) * (outputs.ndim - 2)), 0), last


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_a_row_of_a_ragged_batch_is_the_row_alone(name: str, mode: Mode) -> None:
    kind, lengths = KINDS[name], torch.tensor(LENGTHS)
    inputs = kind.draw(Draw(), Size(max(LENGTHS), len(LENGTHS), 2))
    keep = torch.arange(max(LENGTHS)) < lengths[:, None]
    inputs = spoiled(kind, inputs, keep, 0)
    outputs, last = run_kept(kind, inputs, keep, mode)
    for row, length in enumerate(LENGTHS):
        if length == 0:
            assert torch.equal(last[row], inputs["start"][row])
            continue
        alone = {name: x if name in kind.shared else x[row : row + 1, :length] for name, x in inputs.items()}
        alone["start"] = inputs["start"][row : row + 1]
        for what, found, truth in zip(
            ("outputs", "last"), (outputs[row, :length], last[row]), run_mode(kind, mode)(alone), strict=True
        ):
            assert_near(found, truth[0], 1e-12, f"{what} of row {row}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_what_stands_in_the_padding_cannot_be_noticed(name: str, mode: Mode) -> None:
    kind, lengths = KINDS[name], torch.tensor(LENGTHS)
    inputs = kind.draw(Draw(), Size(max(LENGTHS), len(LENGTHS), 2))
    keep = torch.arange(max(LENGTHS)) < lengths[:, None]
    for dtype in (torch.float64, torch.float32):
        first, second, third = (
            results(x if dtype == torch.float64 else to_single(x), lambda x: run_kept(kind, x, keep, mode))
            for x in (inputs, spoiled(kind, inputs, keep, 1), spoiled(kind, inputs, keep, 2))
        )
        for what in first:
            assert bool(second[what].isfinite().all())
            assert torch.equal(first[what], second[what]), what
            assert torch.equal(second[what], third[what]), what
            input_name = what.removeprefix("gradient of ")
            if input_name in inputs and input_name not in (*kind.shared, "start"):
                assert not second[what][~keep].any(), what


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TIME_VARYING)
def test_padding_anywhere_is_passed_over(name: str, mode: Mode) -> None:
    kind, n = KINDS[name], 140
    inputs = kind.draw(Draw(), Size(n, 1, 2))
    keep = torch.rand(1, n, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[:, :3] = False
    short = {name: x if name in kind.shared or name == "start" else x[:, keep[0]] for name, x in inputs.items()}
    outputs, last = run_kept(kind, spoiled(kind, inputs, keep, 0), keep, mode)
    truth, last_truth = kind.loop(**short)
    assert_near(outputs[:, keep[0]], truth, DOUBLE, "outputs")
    assert_near(last, last_truth, DOUBLE, "last")


# Precision.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_inputs_in_bfloat16_are_computed_with_in_the_precision_of_the_start(name: str, mode: Mode) -> None:
    kind = KINDS[name]
    drawn = kind.draw(Draw(), Size(130, 2, 1, 16, 8))
    rounded = {n: x if x.is_complex() or n == "start" else x.bfloat16().double() for n, x in drawn.items()}
    truth = results(rounded, lambda x: kind.loop(**x))
    half = {n: x if x.is_complex() or n == "start" else x.bfloat16() for n, x in to_single(rounded).items()}
    found = results(half, run_mode(kind, mode))
    assert found["last"].dtype == half["start"].dtype and found["outputs"].dtype == torch.float32
    for what, x in found.items():
        if x.dtype == torch.bfloat16:  # the gradients, each rounded once at the end
            scale = SINGLE * truth[what].square().mean().sqrt()
            assert bool(((x - truth[what]).abs() <= 2**-8 * truth[what].abs() + scale).all()), what
        else:
            assert_near(x, truth[what], SINGLE, what)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_autocast_changes_nothing(name: str, mode: Mode) -> None:
    kind = KINDS[name]
    inputs = to_single(kind.draw(Draw(), Size(70, 2)))
    plain = run_mode(kind, mode)(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run_mode(kind, mode)(inputs)
    for a, b in zip(plain, mixed, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


# Extreme gates: rows of a batch with log decays of -50, of -inf, of 0, and of all of them among mild ones.

STEPS = 4096
GATES = torch.tensor([-50.0, -torch.inf, 0.0, -0.01], dtype=torch.float64)


def extreme_gates(draw: Draw, *last: int) -> Tensor:
    """Log decays (4, STEPS, ...)."""
    mixture = GATES[torch.randint(0, 4, (1, STEPS, *last), generator=draw.generator)]
    return torch.cat([*(gate.expand(1, STEPS, *last) for gate in GATES[:3]), mixture])


def extreme_inputs(name: str) -> Inputs:
    draw, size = Draw(2), Size(STEPS, 4)
    inputs = KINDS[name].draw(draw, size)
    if name == "selective":
        # A decay of 0 is here a step so long that nothing is left: exp(-1e4) is 0 in every dtype.
        step_size = -extreme_gates(draw, size.v).clamp(min=-1e4)
        x = inputs["x"] / step_size.clamp(min=0.01)
        rate = draw.between(-1.5, -1, size.k, size.v)
        return to_double(to_single({**inputs, "step_size": step_size, "x": x, "rate": rate}))
    inputs["log_decay"] = extreme_gates(draw, *inputs["log_decay"].shape[2:])
    if name == "diagonal_plus_rank_one":
        # diag(d) - β k kᵀ with d and β between 0 and 1 makes no state longer.
        strength = draw.between(0, 1, 4, STEPS, 1, 1)
        inputs |= {"left": -strength * inputs["right"]}
    return to_double(to_single(inputs))


def to_double(inputs: Inputs) -> Inputs:
    return {name: x.double() for name, x in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["scalar", "diagonal", "diagonal_plus_rank_one", "gated_delta", "elementwise", "selective"]
)
def test_extreme_gates_over_4096_steps_equal_the_loop(name: str) -> None:
    kind, inputs = KINDS[name], extreme_inputs(name)
    truth = results(inputs, lambda x: kind.loop(**x))
    for dtype, tolerance in ((torch.float64, DOUBLE), (torch.float32, SINGLE)):
        found = results({n: x.to(dtype) for n, x in inputs.items()}, run_mode(kind, "chunkwise"))
        for what, x in found.items():
            if what.removeprefix("gradient of ") in kind.shared:
                assert_near(x, truth[what], tolerance, what)
                continue
            for row, gate in enumerate(("-50", "-inf", "0", "mixture")):
                assert_near(x[row], truth[what][row], tolerance, f"{what} at {gate} in {dtype}")


# Gradients against finite differences.


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("n", "last"), [(1, ()), (5, (2,)), (11, ())])
def test_gradcheck_of_elementwise_states(n: int, last: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    decay = torch.randn(2, n, 1, dtype=dtype, requires_grad=True)
    offset = torch.randn(2, n, 1, *last, dtype=dtype, requires_grad=True)
    start = torch.randn(2, 1, *last, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(elementwise_states, (decay, offset, start))


@pytest.mark.parametrize("n", [1, 5, 66])
def test_gradcheck_of_selective_chunks(n: int) -> None:
    drawn = draw_selective(Draw(), Size(n, 1, 1, 2, 2))
    names = list(drawn)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return run_mode(KINDS["selective"], "chunkwise")(dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(function, tuple(leaves(drawn).values()), fast_mode=n > 5)


# The monoid.

B, N, H, K, V = 2, 3, 2, 3, 2


def closed_action(name: str, draw: Draw) -> Any:
    if name == "identity":
        return Identity()
    if name == "scalar":
        return Scalar(draw.log_decay(B, N, H))
    if name == "diagonal":
        return Diagonal(draw.log_decay(B, N, H, K))
    if name == "dense":
        return Dense(draw.normal(B, N, H, K, K))
    if name == "diagonal_plus_rank_one":
        return open_action(name, draw).closed()
    return open_action("rank_one", draw).closed()


def open_action(name: str, draw: Draw) -> DiagonalPlusRankOne | RankOne:
    if name == "diagonal_plus_rank_one":
        return DiagonalPlusRankOne(draw.log_decay(B, N, H, K), draw.normal(B, N, H, K), draw.normal(B, N, H, K))
    log_scale = draw.log_decay(B, N, H) if name == "scaled_rank_one" else None
    return RankOne(draw.unit(B, N, H, K), draw.between(0, 1, B, N, H), log_scale)


ACTIONS = ["identity", "scalar", "diagonal", "dense", "diagonal_plus_rank_one", "rank_one"]


def assert_same_map(a: Affine, b: Affine, draw: Draw) -> None:
    assert type(a.action) is type(b.action)
    zero, state = torch.zeros(B, N, H, K, V, dtype=torch.float64), draw.normal(B, N, H, K, V)
    for s in (zero, state):
        torch.testing.assert_close(a(s), b(s), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ACTIONS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_composition_is_associative_and_has_a_unit(name: str, seed: int) -> None:
    draw = Draw(seed)
    a, b, c = (Affine(closed_action(name, draw), draw.normal(B, N, H, K, V)) for _ in range(3))
    assert_same_map(compose(compose(a, b), c), compose(a, compose(b, c)), draw)
    unit = tree_map(lambda x: x.expand(B, N, *x.shape), Affine(a.action.unit(), torch.zeros_like(a.offset[0, 0])))
    assert_same_map(compose(a, unit), a, draw)
    assert_same_map(compose(unit, a), a, draw)


@pytest.mark.parametrize("name", ACTIONS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_a_composition_applies_the_older_and_then_the_newer(name: str, seed: int) -> None:
    draw = Draw(seed)
    older, newer = (Affine(closed_action(name, draw), draw.normal(B, N, H, K, V)) for _ in range(2))
    state = draw.normal(B, N, H, K, V)
    torch.testing.assert_close(compose(older, newer)(state), newer(older(state)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["diagonal_plus_rank_one", "rank_one", "scaled_rank_one"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_an_action_and_its_closed_form_act_alike(name: str, seed: int) -> None:
    draw = Draw(seed)
    action, state = open_action(name, draw), draw.normal(B, N, H, K, V)
    torch.testing.assert_close(action.act(state), action.closed().act(state), rtol=1e-12, atol=1e-12)
    assert torch.equal(action.unit().act(state), state)


@pytest.mark.parametrize("name", ["diagonal_plus_rank_one", "rank_one", "scaled_rank_one"])
def test_actions_that_do_not_compose_say_what_does(name: str) -> None:
    action = open_action(name, Draw())
    message = f"two {type(action).__name__} actions do not compose to a third; compose their closed() forms"
    with pytest.raises(TypeError) as error:
        action.after(action)
    assert str(error.value) == message


@pytest.mark.parametrize("name", ["scalar", "gated_delta", "selective"])
def test_states_can_be_had_after_or_before_each_position(name: str) -> None:
    kind = KINDS[name]
    inputs = kind.draw(Draw(), Size(13, 2))
    updates, start = kind.recurrence(inputs).updates(), inputs["start"]
    after, before = states(updates, start), states(updates, start, inclusive=False)
    assert_near(before, torch.cat((start[:, None], after[:, :-1]), 1), 1e-12, "before")
    last = run_mode(kind, "step")(inputs)[1]
    assert_near(after[:, -1], last, 1e-12, "after")


def test_a_mode_that_does_not_exist_is_named(shapes_unchecked: None) -> None:
    inputs = draw_elementwise(Draw(), Size(3))
    mode: Any = "parallel"
    with pytest.raises(ValueError, match=r"^mode='parallel' is none of .*chunkwise.*scan.*step"):
        KINDS["elementwise"].recurrence(inputs).run(inputs["start"], mode)
