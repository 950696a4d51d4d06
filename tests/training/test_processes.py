"""Processes under torchrun: what they sum, and how they end."""

import sys
from collections.abc import Iterator

import pytest
from torch import distributed

from scannable.training.processes import Processes, leave_processes


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    leave_processes()


@pytest.mark.usefixtures("group")
def test_no_thread_of_gloo_holds_a_sum_any_longer() -> None:
    # A thread that still did would need the interpreter to let go, and abort a process that has begun to end.
    alone = sys.getrefcount(Processes().total(1.0))
    assert {sys.getrefcount(Processes(0, 2).total(1.0, 2.0)) for _ in range(2000)} == {alone}


def test_sums_and_greatest_values_are_of_64_bits() -> None:
    beyond_32_bits = 2.0**24 + 1
    assert Processes().greatest(beyond_32_bits) == Processes().total(beyond_32_bits).item() == beyond_32_bits
