"""Where the tests of this folder run: on a CUDA GPU, or where SCANNABLE_GPU_TESTS_ON says, to try the tests themselves."""

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    chosen = os.environ.get("SCANNABLE_GPU_TESTS_ON", "cuda")
    if chosen == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU; torch.cuda.is_available() is False")
    return torch.device(chosen)
