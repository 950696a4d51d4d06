"""Every example runs, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SAYS = {
    "finetune_with_trainer.py": "the stream behind 203 tokens holds",
    "own_model.py": "PASSED: PrefixScannableModel",
    "streams.py": "agree bit for bit",
    "truncated_backpropagation.py": "gradients through four pieces are those of one pass",
}

SLOW = ("finetune_with_trainer.py", "own_model.py", "truncated_backpropagation.py")
QUICK = {"finetune_with_trainer.py": ["--steps", "2"]}
"""What makes a long one short."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name in SLOW), id=path.name) for path in EXAMPLES],
)
def test_an_example_runs(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example), *QUICK.get(example.name, [])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[example.name] in done.stdout
