"""Imports point one way, so that each part can be read without those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "scannable"
MAY_IMPORT = {
    "scan": {"scan"},
    "nn": {"nn"},
    "affine": {"scan", "nn", "affine", "state_file", "model_file", "tokens"},
    "psm": {"scan", "nn", "psm", "state_file", "model_file", "tokens"},
    "baselines": {"baselines", "nn", "state_file", "model_file", "tokens"},
    "spd": {"scan", "spd", "protocol"},
    "hf": {"affine", "files", "model_file"},
    "tasks": {"tasks", "checked_folder", "configuration", "files"},
    "training": {"training", "tasks", "nn", "checked_folder", "configuration", "files", "model_file", "protocol"},
    "experiments": {
        "scan",
        "nn",
        "affine",
        "psm",
        "baselines",
        "spd",
        "tasks",
        "training",
        "experiments",
        "files",
        "protocol",
        "configuration",
        "model_file",
        "recipes",
        "zoo",
    },
}


def scannable_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(level=level) if level:
                raise AssertionError(f"{path} imports relatively; write the whole name")
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "scannable":
                parts = module.split(".")
                found |= {parts[1]} if len(parts) > 1 else {name.name for name in names}
            case ast.Import(names=names):
                found |= {name.name.split(".")[1] for name in names if name.name.startswith("scannable.")}
            case _:
                pass
    return found


@pytest.mark.parametrize("folder", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_a_folder_imports_only_what_lies_below_it(folder: str) -> None:
    for path in (SOURCE / folder).rglob("*.py"):
        assert scannable_imports(path) <= MAY_IMPORT[folder], path


def test_the_core_needs_only_torch() -> None:
    code = (
        "import sys; blocked = ('rich', 'tyro', 'matplotlib', 'transformers', 'datasets', 'tokenizers')\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "import scannable; print(scannable.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
