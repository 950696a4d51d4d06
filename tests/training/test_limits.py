"""What cannot fit is refused before anything of it is allocated."""

import pytest

import scannable as sc
from scannable.storage.configuration import ConfigurationError
from scannable.training import limits


def test_a_model_fits_if_all_copies_of_its_weights_do(monkeypatch: pytest.MonkeyPatch) -> None:
    config = sc.LMConfig(50, ("gla",), width=16, heads=2)
    nbytes = sum(parameter.nbytes for parameter in sc.LM(config).parameters())
    monkeypatch.setattr(limits, "memory_of", lambda device: 4 * nbytes)
    limits.check_model_memory(config, 4)
    with pytest.raises(ConfigurationError, match="5 times with gradient and optimizer"):
        limits.check_model_memory(config, 5)
