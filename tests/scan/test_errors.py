"""Bad input is refused with the value, what was expected, and the way out."""

from typing import Any

import pytest
import torch

import scannable as sc

from operators import two_three


def add(older: Any, newer: Any) -> Any:
    return older + newer


X = torch.zeros(3, 6, 2)
E = torch.zeros(2)


def pair_sum(older: Any, newer: Any) -> Any:
    return older[0] + newer[0], older[1] + newer[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sc.scan(add, X, identity=E, dim=-1), "dim=-1 is not an axis counted from the front"),
        (
            lambda: sc.scan(add, X, identity=E, dim=3),
            r"dim=3 is out of range: elements has the shape \(3, 6, 2\), only 3 axes",
        ),
        (
            lambda: sc.scan(pair_sum, (X, torch.zeros(3)), identity=(E, E), dim=1),
            r"dim=1 is out of range: elements\[1\] has the shape \(3,\)",
        ),
        (
            lambda: sc.scan(pair_sum, (X, X[:, :5]), identity=(E, E), dim=1),
            r"elements\[0\] has 6 time steps on axis 1, but elements\[1\] has 5; all leaves .* equally long",
        ),
        (lambda: sc.scan(add, (), identity=()), "hold no tensor at all"),
        (
            lambda: sc.scan(lambda a, b: (a, b), X, identity=E, dim=1),
            r"its result has the structure tuple\(0: Tensor, 1: Tensor\), its input has Tensor; agg\(.*\) must keep",
        ),
        (
            lambda: sc.scan(lambda a, b: torch.cat((a, b), -1), X, identity=E, dim=1),
            r"its result has the shape \(2, 3, 4\), its input has \(2, 3, 2\)",
        ),
        (
            lambda: sc.scan(lambda a, b: (a + b).double(), X, identity=E, dim=1),
            "its result has the dtype torch.float64, its input has torch.float32",
        ),
        (
            lambda: sc.scan(add, X, identity=torch.zeros(7), dim=1),
            r"identity has the shape \(7,\), which does not broadcast to one element, \(3, 2\)",
        ),
        (
            lambda: sc.scan(add, X, identity=(E, E), dim=1),
            r"identity has the structure tuple\(.*\), the elements have Tensor",
        ),
        (
            lambda: sc.scan(add, X, identity=E.double(), dim=1),
            r"identity is torch.float64, the elements are torch.float32; use",
        ),
        (lambda: sc.scan(add, X, identity=E.to("meta"), dim=1), "identity is on meta, the elements on cpu"),
    ],
)
def test_a_scan_names_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_empty_or_single_sequence_is_still_checked() -> None:
    for n in (0, 1):
        with pytest.raises(ValueError, match="does not broadcast"):
            sc.scan(add, X[:, :n], identity=torch.zeros(7), dim=1)


def test_python_objects_are_sent_to_the_counter() -> None:
    with pytest.raises(
        TypeError, match=r"found str 'ab' at \[1\] of an element; .*BinaryCounter takes any Python object"
    ):
        sc.scan(add, (X, "ab"), identity=(E, E))


def test_a_number_is_identity_enough_for_plain_tensors() -> None:
    assert sc.scan(add, torch.arange(5), identity=0).tolist() == [0, 0, 1, 3, 6]


def test_a_state_made_by_another_structure_is_refused() -> None:
    _, state = sc.extend(add, sc.empty(E), X, dim=1)
    with pytest.raises(
        ValueError,
        match=r"does not fit these elements: at level 2 its root has the shape \(3, 2\), an element has \(4, 2\)",
    ):
        sc.extend(add, state, torch.zeros(4, 1, 2), dim=1)
    with pytest.raises(ValueError, match=r"its root has the structure Tensor, an element has tuple\(0: Tensor\)"):
        sc.extend(add, state, (X,), dim=1)
    with pytest.raises(ValueError, match=r"its root has the dtype torch\.float32, an element has torch\.float64"):
        sc.extend(add, state, X.double(), dim=1)


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_literal_cannot_change_after_the_first_element(count: int, literal: bool) -> None:
    one = torch.tensor(1)
    first, state = sc.extend(two_three, sc.empty(one, literal=not literal), torch.arange(count), literal=literal)
    assert first.tolist() == sc.scan(two_three, torch.arange(count), identity=one, literal=literal).tolist()
    assert state.literal is literal and state.position == count
    message = (
        rf"literal={not literal} does not fit a state that took {count} elements with literal={literal}; start from"
    )
    with pytest.raises(ValueError, match=message):
        sc.extend(two_three, state, torch.arange(4), literal=not literal)
    assert sc.extend(two_three, state, torch.arange(4), literal=literal)[1].position == count + 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sc.scan(add, torch.arange(6), identity=0.5),
            "identity = 0.5 is no value of the elements' dtype torch.int64",
        ),
        (
            lambda: sc.scan(add, torch.zeros(3, dtype=torch.uint8), identity=-1),
            "identity = -1 is no value of .* torch.uint8",
        ),
        (lambda: sc.scan(add, torch.arange(6), identity=float("inf")), "identity = inf is no value"),
        (lambda: sc.scan(add, torch.zeros(6), identity=1j), "identity = 1j is no value"),
        (
            lambda: sc.scan(add, {"a": torch.zeros(6)}, identity={"a": torch.tensor(0)}),
            r"use identity\['a'\]\.to\(torch\.float32\)",
        ),
    ],
)
def test_an_identity_that_would_be_changed_by_a_cast_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_may_stand_for_leaves_of_the_identity() -> None:
    gates, values = sc.scan(pair_sum, (torch.ones(4), torch.arange(4)), identity=(0.5, 7))
    assert gates.tolist() == [0.5, 1, 2, 3] and values.tolist() == [7, 0, 1, 3]


def test_an_error_names_the_argument_that_is_wrong() -> None:
    with pytest.raises(TypeError, match=r"found int 0 at \[1\] of agg's result"):
        sc.scan(lambda a, b: (a[0], 0), (X, X), identity=(E, E), dim=1)  # pyright: ignore
    with pytest.raises(TypeError, match=r"found str 'e' at the top of the identity"):
        sc.scan(add, X, identity="e", dim=1)
    with pytest.raises(TypeError, match=r"expected a state, got Tensor; extend\(agg, state, xs\) starts from empty"):
        sc.extend(add, E, X, dim=1)  # pyright: ignore
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        sc.scan(add, X, identity=E, dim=1.0)  # pyright: ignore


def test_a_state_on_another_device_is_refused_with_the_way_to_move_it() -> None:
    _, state = sc.extend(add, sc.empty(E), X, dim=1)
    with pytest.raises(ValueError, match=r"its root has the device cpu, an element has meta; .* state\.to moves it"):
        sc.extend(add, state, X.to("meta"), dim=1)


def test_autocast_excuses_only_changes_between_real_floating_types() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match=r"its result has the dtype torch\.float32, its input has torch\.int64"):
            sc.scan(lambda a, b: (a + b) / 2, torch.arange(6), identity=0)
        with pytest.raises(ValueError, match=r"identity is torch\.int64"):
            sc.scan(add, X, identity=torch.tensor(0), dim=1)
