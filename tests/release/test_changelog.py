"""The version and the changelog agree, and what disagrees is said."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))

from changelog import disagreement, version  # noqa: E402  # pyright: ignore[reportMissingImports]
from contents import metadata_faults  # noqa: E402  # pyright: ignore[reportMissingImports]
from lowest import FIRST, TESTS, bounds, tools  # noqa: E402  # pyright: ignore[reportMissingImports]


def test_they_agree_now() -> None:
    import scannable

    assert version() == scannable.__version__
    assert disagreement((ROOT / "CHANGELOG.md").read_text(), version()) == ""


@pytest.mark.parametrize(
    ("changelog", "number", "final", "expected"),
    [
        ("## Unreleased\n", "0.1.0", False, ""),
        ("## Unreleased\n\n## 0.1.0 - 2026-01-02\n", "0.2.0", False, ""),
        ("## 0.1.0 - 2026-01-02\n", "0.1.0", True, ""),
        ("## Unreleased\n", "0.1.0", True, 'a release has "## 0.1.0 - YYYY-MM-DD"'),
        ("## Unreleased\n\n## 0.9.0 - 2026-01-02\n", "0.9.0", False, "must be greater"),
        ("## Unreleased\n\n## 0.9.0 - 2026-01-02\n", "0.10.0", False, ""),
        ("## 0.1.0 - 2026-01-02\n", "0.2.0", False, 'expected "0.2.0 - DATE"'),
        ("## 0.1.0\n", "0.1.0", True, 'expected "0.1.0 - DATE"'),
        ("# Changelog\n", "0.1.0", False, "has no section"),
    ],
)
def test_a_disagreement_is_said(changelog: str, number: str, final: bool, expected: str) -> None:
    found = disagreement(changelog, number, final=final)
    assert expected in found and bool(expected) == bool(found)


def test_a_description_with_a_link_into_the_repository_is_a_fault() -> None:
    from email.message import Message

    about = Message()
    for field, value in (
        ("Name", "scannable"), ("Version", "1.2.3"), ("Requires-Python", ">=3.11"), ("License-Expression", "Apache-2.0"),
        ("Description-Content-Type", "text/markdown"),
    ):  # fmt: skip
        about[field] = value
    for name in ("jaxtyping>=0.3", "numpy", "safetensors>=1", "torch>=2", 'rich; extra == "train"'):
        about["Requires-Dist"] = name
    about.set_payload("words " * 300 + "[there](https://example.org) [below](#here)")
    assert metadata_faults(about, "1.2.3") == []
    about.set_payload("words " * 300 + "[page](results/README.md)")
    assert metadata_faults(about, "1.2.3") == [
        "the description has a link to 'results/README.md', which leads nowhere outside of the repository"
    ]
    about["Requires-Dist"] = "rich>=13"
    assert any("the core needs" in fault for fault in metadata_faults(about, "1.2.4"))
    assert any("Version is '1.2.3'" in fault for fault in metadata_faults(about, "1.2.4"))


def test_the_lowest_versions_are_the_bounds() -> None:
    project = {"dependencies": ["numpy>=1.26", "torch>=2.13"], "optional-dependencies": {"plot": ["matplotlib>=3.8"]}}
    assert bounds(("", "plot"), project) == {"numpy": "1.26", "torch": "2.13", "matplotlib": "3.8"}
    assert {"numpy", "torch", "tyro", "matplotlib"} <= bounds(FIRST).keys()
    assert all("==" in tool for tool in tools())


def test_the_tests_that_run_with_the_lowest_versions_exist() -> None:
    for tests in TESTS.values():
        for name in tests:
            assert (ROOT / name).exists(), name
