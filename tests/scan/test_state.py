"""A state can be moved, cut from its history and copied, and stays one tensor where it was one."""

import copy
from dataclasses import FrozenInstanceError

import pytest
import torch

import scannable as sc

from operators import two_three


def state(n: int = 5) -> sc.ScanState[torch.Tensor]:
    e = torch.nn.Parameter(torch.zeros(2))
    return sc.extend(two_three, sc.empty(e), torch.randn(n, 2, requires_grad=True))[1]


def test_to_moves_roots_folds_and_identity_and_keeps_sharing() -> None:
    before = state()
    assert before.map(lambda x: x.double()).identity is before.identity
    after = before.to(torch.float64)
    assert after.identity.dtype == torch.float64
    assert all(x.dtype == torch.float64 for x in [*after.roots.values(), *after.folds.values()])
    assert after.nbytes == 2 * before.nbytes and after.roots[2] is after.folds[2]


def test_detach_cuts_roots_and_folds_and_keeps_the_identity() -> None:
    before = state()
    after = before.detach()
    assert after.identity is before.identity and after.nbytes == before.nbytes
    assert not any(x.requires_grad for x in [*after.roots.values(), *after.folds.values()])


def test_a_number_as_identity_survives_both() -> None:
    _, after = sc.extend(two_three, sc.empty(0), torch.arange(5))
    assert after.detach().map(lambda x: x + 1).to(torch.float64).identity == 0


def test_states_are_frozen_compared_by_identity_and_can_be_copied() -> None:
    one = state().detach()
    other = copy.deepcopy(one)
    assert one == one and one != other and len({one, other}) == 2
    assert torch.equal(one.prefix(), other.prefix())
    with pytest.raises(FrozenInstanceError):
        one.position = 3  # pyright: ignore


def test_a_state_has_a_root_and_a_fold_for_each_set_bit() -> None:
    x = torch.zeros(2)
    assert sc.ScanState(x, position=5, roots={0: x, 2: x}, folds={0: x, 2: x}).prefix() is x
    with pytest.raises(ValueError, match=r"after 5 elements there are roots at the levels \[0, 2\], not at \[0\]"):
        sc.ScanState(x, position=5, roots={0: x}, folds={0: x, 2: x})
    with pytest.raises(ValueError, match=r"after 4 elements there are folds at the levels \[2\], not at \[2, 60\]"):
        sc.ScanState(x, position=4, roots={2: x}, folds={2: x, 60: x})
