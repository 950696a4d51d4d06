"""`scannable doctor` finds what is missing, and works where little else does."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scannable.cli.commands.doctor import doctor
from scannable.cli.health import CORE, EXTRAS, Needed, examined, requirements

REQUIRES = [
    "numpy>=1.26",
    "torch>=2.6",
    'absent-package>=3; extra == "train"',
    'numpy>=99; extra == "plot"',
    'pytest>=8; extra == "data"',
    'scannable[train]; extra == "all"',
    "absent-package>=1; sys_platform == 'nowhere' and extra == 'data'",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with few requirements, some of which do not hold."""
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)


@pytest.mark.usefixtures("small")
def test_what_is_missing_or_too_old_is_named_with_the_way_to_get_it() -> None:
    extras = {finding.name: finding for finding in examined()[EXTRAS]}
    assert list(extras) == ["train", "plot", "data"]
    assert "absent-package is not installed" in extras["train"].says and not extras["train"].fine
    assert extras["train"].remedy == "pip install 'scannable[train]'"
    assert "is older than 99" in extras["plot"].says
    assert extras["data"].fine and f"pytest {metadata.version('pytest')}" in extras["data"].says


@pytest.mark.usefixtures("small")
def test_a_machine_that_has_what_everything_needs_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    doctor()
    said = capsys.readouterr().out
    assert "ok  torch" in said and "--  train" in said and "threads of torch" in said and "cache" in said


def test_a_machine_without_what_everything_needs_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["absent-package>=2"])
    with pytest.raises(SystemExit) as end:
        doctor()
    assert end.value.code == 1
    assert "pip install 'absent-package>=2'" in capsys.readouterr().out


def test_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    first = examined()[CORE][0]
    assert not first.fine and first.remedy.startswith("pip install -e ")


@pytest.mark.parametrize(
    ("bound", "fine"), [(">=2.6", True), (">=2.6.1", True), (">=3", False), (">=2.10", False), ("", True)]
)
def test_bounds_compare_numbers_and_not_letters(bound: str, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.9.0+cpu")
    assert Needed("torch", bound, "").finding().fine is fine


def test_the_requirements_are_those_of_the_project() -> None:
    names = {need.name for need in requirements()[""]}
    assert {"torch", "numpy", "jaxtyping", "safetensors"} == names


def test_it_works_without_the_packages_of_the_command_line(tmp_path: Path) -> None:
    blocked = ("tyro", "rich", "tokenizers", "matplotlib", "packaging")
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, package=None: None if name in {blocked} else real(name, package)\n"
        f"sys.modules.update(dict.fromkeys({blocked}))\n"
        "sys.argv[1:] = ['doctor']; from scannable.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "This machine" in done.stdout
