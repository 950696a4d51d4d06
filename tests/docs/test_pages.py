"""Pages of the site that are not run when it is built."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
SNIPPETS = [
    pytest.param(path, code, id=f"{path.stem}-{i}")
    for path in PAGES
    for i, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_a_snippet_runs(page: Path, code: str) -> None:
    exec(compile(code, str(page), "exec"), {})


def test_every_result_has_its_page() -> None:
    listed = (DOCS / "results" / "index.md").read_text().split()
    for page in (DOCS.parent / "results").glob("*/README.md"):
        assert (DOCS / "results" / f"{page.parent.name}.md").exists() and page.parent.name in listed, page


def test_there_are_snippets_and_pages() -> None:
    assert len(SNIPPETS) >= 2 and len(PAGES) >= 25


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_tutorial_is_run_when_the_site_is_built(path: Path) -> None:
    """A page with cells says so at its top; else they would be shown and not run."""
    text = path.read_text()
    assert ("{code-cell}" in text) == text.startswith("---\nfile_format: mystnb\n")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_file_that_a_page_names_exists(path: Path) -> None:
    root = DOCS.parent
    for name in re.findall(r"`((?:src|tests|docs|examples|results|benchmarks)/[\w/.]+\.\w+)`", path.read_text()):
        assert (root / name).exists(), name
