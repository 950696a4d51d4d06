"""What cannot fit is refused before anything of it is allocated."""

from pathlib import Path

import pytest

import scannable as sc
from scannable.storage.configuration import ConfigurationError
from scannable.training import limits
from scannable.training.parallel import Parallel

from rank_pool import run_apart
from training_cases import memory_case


def test_a_model_fits_if_all_copies_of_its_weights_do(monkeypatch: pytest.MonkeyPatch) -> None:
    config = sc.LMConfig(50, ("gla",), width=16, heads=2)
    nbytes = sum(parameter.nbytes for parameter in sc.LM(config).parameters())
    monkeypatch.setattr(limits, "memory_of", lambda device: 4 * nbytes)
    limits.check_model_memory(config, 4)
    with pytest.raises(ConfigurationError, match="5 times with gradient and optimizer"):
        limits.check_model_memory(config, 5)


def test_processes_that_share_the_weights_need_less_each(tmp_path: Path) -> None:
    shared = run_apart(memory_case, 2, str(tmp_path), Parallel(2, 1, shard=True))
    assert shared == ["it fits"] * 2
    for alone in run_apart(memory_case, 2, str(tmp_path), Parallel(2, 1)):
        assert "5 times with gradient and optimizer" in alone
