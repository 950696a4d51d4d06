"""Help and mistakes are answered before torch is imported, which takes longer than all the rest together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scannable.cli.main import GROUPS

SLOW = {"torch", "matplotlib", "transformers", "tokenizers", "scipy", "sympy"}

ANSWERED: list[tuple[list[str], int, str]] = [
    (["--help"], 0, "usage: scannable COMMAND"),
    ([], 2, "usage: scannable COMMAND"),
    (["--version"], 0, "scannable "),
    *(
        ([command, "--help"], 0, f"usage: scannable {command}")
        for command in (name for group in GROUPS.values() for name in group)
    ),
    *(
        (["train", recipe, "--help"], 0, f"usage: scannable train {recipe}")
        for recipe in ("demo", "s5", "s5-plain", "mqar", "stdlib", "stdlib-mamba", "stdlib-hybrid")
    ),
    (["recipes"], 0, "s5-plain"),
    (["models", "--help"], 0, "usage: scannable models"),
    (["models"], 0, "413,056 parameters, 1.7 MB"),
    (["explain", "--no-browser"], 0, "index.html"),
    (["completion", "bash"], 0, "complete -F"),
    (["completion", "csh"], 2, "invalid choice 'csh'"),
    (["doctor", "now"], 2, "Unrecognized options: now"),
    (["dmeo"], 2, "there is no command 'dmeo'"),
    (["train", "s55"], 1, "there is no recipe 's55'"),
    (["train", "s5", "--model.widht", "3"], 2, "Unrecognized options: --model.widht"),
    (["train", "s5", "--steps", "many"], 2, "Error parsing --steps"),
    (["train", "s5", "--model.width", "0"], 2, "width=0 must be a whole number of at least 1"),
    (["train", "s5", "--task.group", "S77"], 2, "has more than 2,048 elements"),
    (["train", "stdlib-mamba", "--model.layers", "gla", "mamab"], 2, "layers[1]='mamab' is none of"),
    (["train", "stdlib-mamba", "--model.layers", "mamba:state=3"], 2, "mamba has no option 'state'; did you mean"),
    (["eval"], 2, "RUN"),
    (["eval", "nowhere"], 1, "such as runs/s5, or a shipped model: s5"),
    (["eval", "nowhere", "--lengths", "-3"], 1, "lengths=-3 must be above 0"),
    (["eval", "nowhere", "--split", "tset"], 2, "invalid choice 'tset'"),
    (["generate", "nowhere"], 1, "there is no folder nowhere"),
    (["generate", "nowhere", "--tokens", "-1"], 1, "tokens=-1 must be 0 or above"),
    (["verify", "nowhere"], 1, "there is no folder nowhere"),
    (["hf", "export", "nowhere", "out"], 1, "there is no folder nowhere"),
    (["hf", "import", "nowhere", "out"], 1, "there is no folder nowhere"),
    (["hf", "exprot", "nowhere", "out"], 2, "invalid choice 'exprot'"),
    (["plot", "nowhere"], 1, "there is no folder nowhere"),
    (["plot"], 1, "no run to draw"),
    (["zoo", "--width", "0"], 1, "width=0 must be above 0"),
    (["reproduce", "s55"], 1, "there is no experiment 's55'"),
    (["reproduce", "s5", "--profile", "smok"], 1, "there is no profile 'smok'"),
    (["reproduce", "s5", "--workers", "0"], 1, "workers=0 must be above 0"),
    (["reproduce", "latency", "--recorded"], 1, "latency has no runs that records stand for; leave --recorded out"),
    (["reproduce", "all", "--data", "nowhere"], 1, "nowhere' is neither a file nor a folder"),
]


@pytest.mark.parametrize(("arguments", "code", "expected"), ANSWERED, ids=[" ".join(a) or "-" for a, _, _ in ANSWERED])
def test_help_and_mistakes_do_not_wait_for_torch(
    arguments: list[str], code: int, expected: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "scannable", *arguments]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    said = " ".join([done.stdout, *(line for line in lines if not line.startswith("import time:"))])
    assert done.returncode == code and expected in " ".join(said.replace("│", " ").split())
    assert "scannable.cli.main" in imported
    assert not {name.partition(".")[0] for name in imported} & SLOW
    assert not list(tmp_path.iterdir())
