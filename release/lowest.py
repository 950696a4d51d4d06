"""Run the tests with the lowest versions that pyproject.toml allows: `make test-lowest`.

The core, the command line and figures first; then the models of Hugging Face, which ask for newer versions of some of
the same packages. Tools for testing are those of constraints.txt.
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = ("", "train", "plot")
THEN = ("hf",)
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "beartype")
TESTS = {
    FIRST: [
        "tests/scan", "tests/nn", "tests/models", "tests/storage", "tests/spd", "tests/tasks", "tests/recipes",
        "tests/layers/test_protocol.py", "tests/layers/test_rows.py", "tests/layers/test_states.py",
        "tests/cli/test_quick.py", "tests/cli/test_doctor.py", "tests/cli/test_completion.py",
        "tests/docs/test_reference.py", "tests/test_examples.py",
    ],
    THEN: ["tests/hf", "tests/baselines"],
}  # fmt: skip
"""What runs with each set; tests that compare with the code of others need newer versions of everything."""


def bounds(extras: tuple[str, ...], project: dict[str, object] | None = None) -> dict[str, str]:
    """The lower bound of each package that these extras name; "" is the core."""
    found = project or tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(found, dict)
    lines: list[str] = []
    for extra in extras:
        lines += found["optional-dependencies"][extra] if extra else found["dependencies"]
    pairs = (re.match(r"([\w.-]+)>=([\w.]+)", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def tools() -> list[str]:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    return [f"{name}=={pins[name]}" for name in TOOLS]


def run(*command: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def main() -> None:
    place = Path(sys.argv[1]).absolute()
    python = place / "bin" / "python"
    venv.create(place, with_pip=True, clear=True)
    for extras, tests in TESTS.items():
        chosen = [f"{name}=={version}" for name, version in bounds(extras).items()]
        names = ",".join(extra for extra in extras if extra)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *chosen, *tools(), f".[{names}]")
        run(python, "-m", "pip", "list", "--disable-pip-version-check", "--format", "freeze")
        run(python, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *tests)
    print("the lowest versions that pyproject.toml allows work")


if __name__ == "__main__":
    main()
