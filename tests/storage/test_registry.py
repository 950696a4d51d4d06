"""A file may name what is registered, wherever it is defined and whatever happens to be imported."""

import doctest
import importlib
import json
import subprocess
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.storage import registry
from scannable.storage.configuration import from_plain, to_plain
from scannable.storage.registry import find, name_of
from scannable.tasks import GroupTask


def run(code: str, *args: object, path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, with `path` in front of what can be imported."""
    begin = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, "-c", begin + textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def printed(code: str, *args: object, path: Path | None = None) -> str:
    done = run(code, *args, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["configurable", "storable", "register_model"])
def test_the_example_of_a_docstring_runs(tmp_path: Path, name: str) -> None:
    place = types.ModuleType(f"example_{name}")
    place.__dict__.update(
        sc=sc, dataclass=dataclass, nn=nn, torch=torch, Tensor=Tensor, NamedTuple=NamedTuple, folder=tmp_path
    )
    function = getattr(sc, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=place.__dict__)
    assert len(test.examples) > 0
    assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0


@pytest.mark.slow
def test_built_in_kinds_are_found_in_a_fresh_process(tmp_path: Path) -> None:
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2))
    sc.save_model(model, tmp_path / "model")
    _, state = sc.extend(lambda a, b: a + b, sc.empty(torch.tensor(0)), torch.arange(5))
    sc.save_state(state, tmp_path / "scan")
    sc.save_state(sc.join([model.initial_state(2)]), tmp_path / "batch")
    (tmp_path / "task").write_text(json.dumps(to_plain(GroupTask("Z7"))))
    for name, code in (
        ("model", "from scannable.storage.model_file import load_model as load"),
        ("scan", "from scannable.storage.state_file import load_state as load"),
        ("batch", "from scannable.storage.state_file import load_state as load"),
        ("task", "import json, pathlib; from scannable.storage.configuration import from_plain\n"
                 "load = lambda path: from_plain(json.loads(pathlib.Path(path).read_text()))"),
    ):  # fmt: skip
        kind = {"model": "TransformerPSM", "scan": "ScanState", "batch": "PSMState", "task": "GroupTask"}[name]
        assert printed(code + "\nimport sys; print(type(load(sys.argv[1])).__name__)", tmp_path / name) == kind


def test_finding_needs_nothing_but_the_core() -> None:
    """Everything that is registered is looked through before a name is called unknown."""
    code = """
    import sys
    sys.modules.update(dict.fromkeys(("rich", "tyro", "matplotlib", "transformers", "datasets", "tokenizers")))
    from scannable.storage.registry import find, known
    print(find("no:Such"), len(known()) > 15)
    """
    assert printed(code) == "None True"


def test_a_kind_is_found_in_its_own_module_before_others_are_imported() -> None:
    code = """
    import sys
    from scannable.storage.registry import find
    print(find("scannable.tasks.groups:GroupTask").__name__, "scannable.models" in sys.modules)
    """
    assert printed(code) == "GroupTask False"


# A user's own package.

BAGS = """
from dataclasses import dataclass
from typing import NamedTuple
import torch
from torch import Tensor, nn
import scannable as sc
from scannable.recipes import recipe
from scannable.training.recipe import Recipe


@dataclass(frozen=True)
class BagConfig:
    vocab_size: int
    sizes: tuple[int, ...] = (8,)


class Bag(nn.Module):
    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.sizes[0])


sc.register_model("bags.models:Bag", BagConfig)


@sc.configurable
@dataclass(frozen=True)
class Repeat:
    delay: int = 2

    def batch(self, split, indices, length):
        raise NotImplementedError


@sc.storable
class Sum(NamedTuple):
    total: Tensor


@recipe
def bag_of_words():
    return Recipe(BagConfig(5), Repeat(3), steps=7)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages, of which `bags` is a plug-in."""
    place = tmp_path / "site"
    (place / "bags").mkdir(parents=True)
    (place / "bags" / "__init__.py").write_text("")
    (place / "bags" / "models.py").write_text(BAGS)
    install(place, "bags", "bags = bags.models")
    return place


def install(site: Path, name: str, entry: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[scannable.plugins]\n{entry}\n")


SAVE = """
import json, sys, torch
from pathlib import Path
import scannable as sc
from bags.models import Bag, BagConfig, Repeat, Sum
from scannable.storage.configuration import to_plain
folder = Path(sys.argv[1])
sc.save_model(Bag(BagConfig(5, (4, 2))), folder / "model")
add = lambda a, b: Sum(a.total + b.total)
sc.save_state(sc.extend(add, sc.empty(Sum(0)), Sum(torch.arange(5)))[1], folder / "state")
(folder / "task").write_text(json.dumps(to_plain(Repeat(9))))
"""

LOAD = """
import json, sys
from pathlib import Path
import scannable as sc
from scannable.storage.configuration import from_plain
from scannable.storage.registry import load_plugins
folder = Path(sys.argv[1])
print(sc.load_model(folder / "model").config)
print(sc.load_state(folder / "state").prefix())
print(from_plain(json.loads((folder / "task").read_text())))
load_plugins()
from scannable.recipes import recipe_named
print(recipe_named("bag-of-words").task)
"""


def test_a_package_brings_models_tasks_states_and_recipes(tmp_path: Path, site: Path) -> None:
    printed(SAVE, tmp_path, path=site)
    assert printed(LOAD, tmp_path, path=site).splitlines() == [
        "BagConfig(vocab_size=5, sizes=(4, 2))",
        "Sum(total=tensor(10))",
        "Repeat(delay=9)",
        "Repeat(delay=3)",
    ]


def test_what_an_uninstalled_package_brought_is_named(tmp_path: Path, site: Path) -> None:
    printed(SAVE, tmp_path, path=site)
    with pytest.raises(
        sc.ModelFileError, match=r"cannot be of the kind 'bags\.models:BagConfig'; .*known: .*TransformerPSMConfig"
    ):
        sc.load_model(tmp_path / "model")
    with pytest.raises(sc.StateFileError, match=r"cannot be of the kind 'bags\.models:Sum'"):
        sc.load_state(tmp_path / "state")


@pytest.mark.slow
def test_a_broken_plug_in_is_named_and_the_others_still_work(tmp_path: Path, site: Path) -> None:
    printed(SAVE, tmp_path, path=site)
    for i, wrong in enumerate(("raise ValueError('oh')", "import nonesuch", "raise SystemExit(3)", "def (")):
        (site / f"broken{i}.py").write_text(wrong)
        install(site, f"broken{i}", f"plug{i} = broken{i}")
    done = run(LOAD, tmp_path, path=site)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "Repeat(delay=3)"
    for i in range(4):
        message = f"the plug-in 'plug{i}' (broken{i} of the package broken{i}) could not be imported"
        assert done.stderr.count(message) == 1
    # What needs no plug-in says nothing.
    quiet = run(
        "from scannable.storage.registry import find; print(find('scannable.tasks.groups:GroupTask'))", path=site
    )
    assert quiet.returncode == 0 and "GroupTask" in quiet.stdout and not quiet.stderr


# Names that mean more than one class.


def test_a_class_that_no_file_could_find_is_refused() -> None:
    @dataclass(frozen=True)
    class Inside:
        x: int = 1

    for register in (sc.configurable, sc.storable, lambda kind: sc.register_model("a:B", kind)):
        with pytest.raises(
            TypeError, match=r"<locals>\.Inside is defined inside a function, .*define it at the top level"
        ):
            register(Inside)
    assert find(name_of(Inside)) is None


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="int cannot be part of a state: it is neither a dataclass nor a NamedTuple"):
        sc.storable(int)
    with pytest.raises(TypeError, match="int cannot be part of a configuration: it is no frozen dataclass"):
        sc.configurable(int)
    kind = dataclass(frozen=True)(type("WithKind", (), {"__annotations__": {"kind": str}, "__module__": __name__}))
    with pytest.raises(TypeError, match="WithKind has a field 'kind', under which files keep its class; rename it"):
        sc.storable(kind)


NOTEBOOK = """
@dataclass(frozen=True)
class Config:
    width: int = {width}


class Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, 1)


register_model(Model, Config)
"""


def test_a_class_defined_anew_takes_the_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cell of a notebook does that is run again."""
    cell: Any = types.ModuleType("notebook_of_this_test")
    monkeypatch.setitem(sys.modules, cell.__name__, cell)
    cell.__dict__.update(dataclass=dataclass, nn=nn, register_model=sc.register_model)
    exec(NOTEBOOK.format(width=3), cell.__dict__)
    old = cell.Model(cell.Config())
    sc.save_model(old, tmp_path / "old")
    exec(NOTEBOOK.format(width=4), cell.__dict__)
    loaded = sc.load_model(tmp_path / "old")
    assert type(loaded) is cell.Model is not type(old) and loaded.config == cell.Config(3)
    with pytest.raises(
        TypeError,
        match=r"Model cannot be saved: .*notebook_of_this_test:Config was defined anew after this one was made",
    ):
        sc.save_model(old, tmp_path / "older")
    exec("class Other(Model): pass", cell.__dict__)
    with pytest.raises(
        ValueError, match=r"notebook_of_this_test:Config stands for .* already; give .*:Other a configuration"
    ):
        sc.register_model(cell.Other, cell.Config)
    # A new class of the old name may stand for another model.
    exec(NOTEBOOK.replace("Model", "Another").format(width=5), cell.__dict__)
    assert type(sc.load_model(tmp_path / "old")) is cell.Another


SCRIPT = """
import sys
from dataclasses import dataclass
from torch import nn
import scannable as sc
from scannable.storage.registry import name_of


@dataclass(frozen=True)
class Config:
    width: int = 3


class Model(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, 1)


sc.register_model(Model, Config)
if __name__ == "__main__":
    if sys.argv[2] == "save":
        sc.save_model(Model(Config(7)), sys.argv[1])
    print(name_of(Config), type(sc.load_model(sys.argv[1])) is Model)
"""


def test_a_script_finds_its_own_classes_and_others_are_told_where_they_were(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for way in ("save", "load"):
        done = subprocess.run([sys.executable, script, tmp_path / "m", way], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "__main__:Config True"
    with pytest.raises(
        sc.ModelFileError, match="'__main__:Config'; it was defined in a script or notebook: run its definition"
    ):
        sc.load_model(tmp_path / "m")


def test_a_module_that_is_run_has_the_name_that_others_import_it_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run_and_imported.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "run_and_imported", tmp_path / "m", "save"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "run_and_imported:Config True"
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("run_and_imported")
    assert type(sc.load_model(tmp_path / "m")) is module.Model


def test_two_classes_of_one_name_in_two_modules_do_not_meet() -> None:
    one, two = (
        sc.configurable(
            dataclass(frozen=True)(
                type("Twin", (), {"__module__": f"{__name__}.{place}", "__annotations__": {"x": int}})
            )
        )
        for place in ("one", "two")
    )
    for kind in (one, two):
        assert type(from_plain(to_plain(kind(3)))) is kind


def test_every_module_that_registers_something_is_listed() -> None:
    """Else what it registers would be found only where it happens to be imported."""
    source = Path(sc.__file__).parent
    registering = {
        ".".join(("scannable", *path.relative_to(source).with_suffix("").parts))
        for path in source.rglob("*.py")
        if any(
            line.lstrip().startswith(("@storable", "@configurable", "register_model(", "storable("))
            for line in path.read_text().splitlines()
        )
    }
    assert registering - {"scannable.storage.registry"} == set(registry.BUILT_IN)
