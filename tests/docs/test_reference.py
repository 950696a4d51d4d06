"""The reference has every public name, and every name in it has an example, which is run here."""

import doctest
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import scannable

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
LISTED = {
    name: (kind, page)
    for page in PAGES
    for kind, name in re.findall(
        r"^\.\. auto(function|class|exception|data):: (scannable[\w.]+)$", page.read_text(), re.M
    )
}
PUBLIC = tuple(
    f"scannable{name}" for name in ("", ".zoo", ".scan", ".spd", ".tasks", ".distributed", ".hf", ".weights")
)
START = """
from dataclasses import dataclass
from typing import NamedTuple
import torch
from torch import Tensor, nn
import scannable as sc
"""


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def run(test: doctest.DocTest) -> None:
    torch.manual_seed(0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where examples run: the names that a reader has imported, and an empty folder."""
    module = ModuleType("reference_examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(START, module.__dict__)
    module.__dict__["folder"] = tmp_path
    return module.__dict__


@pytest.mark.parametrize("name", [name for name, (kind, _) in LISTED.items() if kind != "data"])
def test_a_listed_name_has_an_example_that_runs(name: str, place: dict[str, Any]) -> None:
    doc = found(name).__doc__ or ""
    test = doctest.DocTestParser().get_doctest(doc, place, name, None, None)
    assert test.examples, f"{name} has no example in its docstring"
    run(test)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, place: dict[str, Any]) -> None:
    blocks = re.findall(r"^```pycon\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    run(doctest.DocTestParser().get_doctest("\n".join(blocks), place, page.name, None, None))
    for name, (kind, where) in LISTED.items():
        if kind == "data" and where == page:
            assert any(name.rpartition(".")[2] in block for block in blocks), f"{name} has no example on its page"


def test_the_reference_has_every_public_name() -> None:
    objects = [found(name) for name in LISTED]
    for module in PUBLIC:
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            assert isinstance(value, ModuleType) or any(value is one for one in objects), f"{module}.{name}"
    assert len(LISTED) > 60 and len(scannable.__all__) > 30
