"""Whether the version of the package and the newest section of the changelog agree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version() -> str:
    """What `scannable.__version__` says, without importing anything."""
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "src/scannable/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def disagreement(changelog: str, version: str, *, final: bool = False) -> str:
    """What is wrong, or "". Before a release the newest section is "Unreleased", and the version a greater one than the
    last that was released; for a release (`final`) it is the version with its date.
    """
    sections = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    if not sections:
        return "CHANGELOG.md has no section"
    newest, released = sections[0], [one.split()[0] for one in sections if one[0].isdigit()]
    if newest == "Unreleased":
        if final:
            return f'the newest section of CHANGELOG.md is "Unreleased"; a release has "## {version} - YYYY-MM-DD"'
        if released and _numbers(version) <= _numbers(released[0]):
            return f"{released[0]} was released and there are changes since; __version__ = {version!r} must be greater"
        return ""
    if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d{{2}}-\d{{2}}", newest):
        return (
            f'the newest section of CHANGELOG.md is "{newest}", the version is {version}; expected "{version} - DATE"'
        )
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
