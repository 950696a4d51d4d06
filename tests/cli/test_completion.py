"""What Tab offers in a real shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from scannable.cli.commands.completion import script
from scannable.cli.main import GROUPS

ASK = """
source "$1"; shift
function=$(complete -p scannable | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$function
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    path = tmp_path_factory.mktemp("completion") / "scannable.bash"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("tr",), {"train"}),
        (("train", "s5"), {"s5", "s5-plain"}),
        (("train", "s5", "--model.wi"), {"--model.width"}),
        (("reproduce", "--prof"), {"--profile"}),
        (("eval", "--split", ""), {"train", "validation", "test"}),
        (("d",), {"demo", "doctor"}),
    ],
    ids=lambda words: " ".join(sorted(words)) if isinstance(words, set) else " ".join(words),
)
def test_bash_offers(typed: tuple[str, ...], offered: set[str], bash: Path) -> None:
    command = ["bash", "-c", ASK, "bash", str(bash), "scannable", *typed]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split("\n")) - {""} == offered, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command(shell: str) -> None:
    text = script(shell)  # pyright: ignore[reportArgumentType]
    assert all(f"'{name}'" in text or f" {name}" in text for group in GROUPS.values() for name in group)
