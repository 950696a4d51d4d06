"""What a state keeps is contiguous, as files need it, however the elements lie in memory."""

import pytest
import torch

import scannable as sc

from operators import two_three


@pytest.mark.parametrize("n", [1, 6, 7])
def test_roots_and_folds_are_contiguous_whatever_the_layout_of_the_elements(n: int) -> None:
    xs = torch.arange(n * 6).view(n, 2, 3).transpose(1, 2)
    assert not xs[0].is_contiguous()
    prefixes, state = sc.extend(two_three, sc.empty(torch.tensor(0)), xs)
    assert all(x.is_contiguous() for x in [*state.roots.values(), *state.folds.values()])
    plain, truth = sc.extend(two_three, sc.empty(torch.tensor(0)), xs.contiguous())
    assert torch.equal(prefixes, plain) and torch.equal(state.prefix(), truth.prefix())
