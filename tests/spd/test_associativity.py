"""Zero for what is associative, of order one for what is not."""

import torch

import scannable as sc

from operators import TanhMLP


def test_the_affine_aggregator_is_associative() -> None:
    def compose(older: tuple[torch.Tensor, torch.Tensor], newer: tuple[torch.Tensor, torch.Tensor]) -> object:
        return newer[0] @ older[0], newer[0] @ older[1] + newer[1]

    elements = [(torch.randn(6, 3, 3).double(), torch.randn(6, 3, 2).double()) for _ in range(3)]
    assert sc.associativity_defect(compose, *elements) < 1e-14


def test_others_are_not() -> None:
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 100, 8).double()
    assert 0.1 < sc.associativity_defect(TanhMLP(8), a, b, c) < 3
    # (a - b) - c against a - (b - c): they differ by 2c.
    expected = 2 * c.norm() / ((a - b - c).norm() * (a - b + c).norm()).sqrt()
    assert abs(sc.associativity_defect(torch.sub, a, b, c) - float(expected)) < 1e-12


def test_nothing_at_all_has_no_defect() -> None:
    zero = torch.zeros(3)
    assert sc.associativity_defect(torch.add, zero, zero, zero) == 0
