"""Imports point one way, so that each part can be read without those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "scannable"
CORE = {"scan", "nn", "layers", "models", "spd", "storage"}
LABORATORY = {"tasks", "training", "recipes", "baselines", "experiments"}
MAY_IMPORT = {
    "scan": {"scan"},
    "nn": {"nn"},
    "storage": {"storage"},
    "layers": {"layers", "scan", "nn"},
    "models": {"models", "layers", "scan", "nn", "storage"},
    "distributed": {"distributed", "models", "layers", "scan", "nn"},
    # These know what a model can do, and no model.
    "spd": {"spd", "scan", "models.protocol"},
    "tasks": {"tasks", "storage"},
    "training": {"training", "tasks", "nn", "storage", "models.protocol", "distributed"},
    "baselines": {
        "baselines",
        "layers",
        "scan",
        "models.base",
        "models.config_checks",
        "models.tokens",
        "nn",
        "storage",
    },
    # A shipped model is a run without the run.
    "weights": {"weights", "storage", "training", "tasks.sample"},
    "recipes": {"recipes", "models", "tasks", "training", "storage"},
    # Runs are exported and imported; the models themselves need the core alone.
    "hf": {"hf", "tasks", "training", *CORE},
    "explain": set(),
    "experiments": CORE | LABORATORY | {"weights"},
    "cli": CORE | LABORATORY | {"cli", "distributed", "explain", "hf", "weights"},
    "zoo": {"layers"},
    "__init__": CORE | {"zoo"},
    "__main__": {"cli"},
}
MODULES = sorted(SOURCE.rglob("*.py"))


def scannable_imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, without the package's own name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(level=level) if level:
                raise AssertionError(f"{path} imports relatively; write the whole name")
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "scannable":
                # What stands behind `import` may be a module of a folder, or a name in one.
                found |= {f"{module}.{name.name}" for name in names}
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name.startswith("scannable.")}
            case _:
                pass
    return {name.removeprefix("scannable.") for name in found}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    below = MAY_IMPORT[room]
    wrong = [name for name in scannable_imports(path) if not any(f"{name}.".startswith(f"{one}.") for one in below)]
    assert not wrong, f"{room} may import {sorted(below)}"


def test_a_model_for_transformers_needs_no_laboratory() -> None:
    bridge = [
        path
        for path in (SOURCE / "hf").rglob("*.py")
        if path.name not in ("exchange.py", "run_file.py", "tokenizer.py")
    ]
    wrong = {
        path.name: name for path in bridge for name in scannable_imports(path) if name.startswith(("tasks", "training"))
    }
    assert not wrong


def test_the_core_needs_only_torch() -> None:
    code = (
        "import sys; blocked = ('rich', 'tyro', 'matplotlib', 'transformers', 'datasets', 'tokenizers')\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "import scannable; [getattr(scannable, name) for name in scannable.__all__]; print(scannable.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
