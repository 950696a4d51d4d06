"""What is in a wheel and a source distribution, and whether it is what it should be."""

import re
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
IN_SOURCE_DISTRIBUTION = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "PAPER.md",
    "Makefile",
    "constraints.txt",
    "tests",
    "docs",
)


def wheel_faults(path: Path, version: str) -> list[str]:
    """What is wrong with a wheel: a file of the package that is missing, one that does not belong, wrong metadata."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (described,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(archive.read(described).decode())
    expected = {
        file.relative_to(SOURCE).as_posix()
        for file in (SOURCE / "scannable").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    inside = {name for name in names if ".dist-info/" not in name}
    faults = [f"the wheel lacks {name}" for name in sorted(expected - inside)]
    faults += [f"the wheel holds {name}, which is no file of the package" for name in sorted(inside - expected)]
    if "scannable/py.typed" not in inside:
        faults.append("the wheel lacks py.typed, so its types would be ignored")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        faults.append("the wheel lacks the license")
    return [*faults, *metadata_faults(about, version)]


def metadata_faults(about: Message, version: str) -> list[str]:
    """What is wrong with the description of the package."""
    faults: list[str] = []
    for field, expected in (
        ("Name", "scannable"),
        ("Version", version),
        ("Requires-Python", ">=3.11"),
        ("License-Expression", "Apache-2.0"),
        ("Description-Content-Type", "text/markdown"),
    ):
        if about[field] != expected:
            faults.append(f"{field} is {about[field]!r}, expected {expected!r}")
    core = {re.split(r"[ ><=;\[]", line)[0] for line in about.get_all("Requires-Dist", []) if "extra ==" not in line}
    if core != {"jaxtyping", "numpy", "safetensors", "torch"}:
        faults.append(
            f"the core needs {', '.join(sorted(core))}; only torch, numpy, jaxtyping and safetensors should be"
        )
    text = str(about.get_payload())
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith(("https://", "#")):
            faults.append(f"the description has a link to {target!r}, which leads nowhere outside of the repository")
    if len(text) < 1000:
        faults.append("the description is not the README")
    return faults


def source_faults(path: Path) -> list[str]:
    """What a source distribution lacks."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}
    wrong = [f"the source distribution lacks {name}" for name in IN_SOURCE_DISTRIBUTION if name not in tops]
    built = [name for name in names if "/_build/" in name or "__pycache__" in name or name.startswith(".venv")]
    return [*wrong, *(f"the source distribution holds {name}" for name in built[:5])]
