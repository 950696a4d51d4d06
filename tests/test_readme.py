"""What the README promises runs as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs(snippet: str) -> None:
    exec(compile(snippet, "README.md", "exec"), {})


def test_there_is_a_snippet() -> None:
    assert SNIPPETS


@pytest.mark.parametrize("page", ["README.md", "PAPER.md", "CONTRIBUTING.md"])
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / link).exists(), link
    for path in re.findall(
        r"`((?:scan|nn|layers|models|storage|spd|hf|tasks|training|recipes|baselines|experiments|cli)/[\w/]+\.py)`",
        text,
    ):
        assert (ROOT / "src/scannable" / path).exists() or (ROOT / "tests" / path).exists(), path


def test_the_tests_that_the_paper_map_names_exist() -> None:
    """Each in the file that stands before it in its cell."""
    found = 0
    for cell in (ROOT / "PAPER.md").read_text().split("|"):
        code = ""
        for file, name in re.findall(r"`([\w/]*test_\w+\.py)`|`(test_\w+)`", cell):
            if file:
                code = (ROOT / "tests" / file).read_text()
            else:
                found += 1
                assert f"def {name}(" in code, name
    assert found > 20
