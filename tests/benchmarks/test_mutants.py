"""A planted change that a test checks is noticed, one that none checks is not, and the checkout stays as it was."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for the module that they are in.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


planting = load("planting")

SOURCE = '''"""Doubts."""

def within(value: int, limit: int) -> bool:
    """At most 5."""
    return value <= limit

def doubled(value):
    return value * value

def halved(value):
    return value / value
'''
TESTS = """
from toy.counting.adder import within

def test_the_limit_is_within():
    assert within(3, 3)
"""
EXPLAINED = """
[[explained]]
file = "src/toy/counting/adder.py"
old = "return value * value"
new = "return value / value"
reason = "a toy"
"""


def changes(source: str) -> list[tuple[str, str, str]]:
    return [(m.kind, m.old, m.new) for m in planting.mutants_of(Path("toy.py"), source.encode())]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for name, content in {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n',
        "src/toy/__init__.py": "",
        "src/toy/counting/__init__.py": "",
        "src/toy/counting/adder.py": SOURCE,
        "tests/counting/test_adder.py": TESTS,
        "benchmarks/mutants.toml": EXPLAINED,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def plant(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "mutants.py"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_changes_are_noticed_survive_or_are_explained_and_the_checkout_is_untouched(toy: Path) -> None:
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    out = toy.parent / f"{toy.name}.csv"
    done = plant(toy, "--out", str(out))
    assert {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()} == before
    said = done.stdout
    assert "noticed src/toy/counting/adder.py:5 comparison" in said
    assert "SURVIVED src/toy/counting/adder.py:11 arithmetic" in said
    assert "-    return value / value\n+    return value * value" in said
    assert "adder.py:8" not in said
    assert out.read_text().splitlines() == ["package,planted,noticed,explained,unexplained", "counting,3,1,1,1"]
    assert done.returncode == 1, "one of two is below the goal"


def test_all_noticed_or_explained_is_success(toy: Path) -> None:
    (toy / "src/toy/counting/adder.py").write_text(SOURCE[: SOURCE.index("def halved")])
    done = plant(toy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counting                 2           1           1           0" in done.stdout


@pytest.mark.slow
def test_what_never_comes_to_an_end_is_noticed(toy: Path) -> None:
    down = "def down(left, step):\n    while left:\n        left -= step\n    return left\n"
    (toy / "src/toy/counting/adder.py").write_text(down)
    test = "from toy.counting.adder import down\n\ndef test_down():\n    assert down(9, 3) == 0\n"
    (toy / "tests/counting/test_adder.py").write_text(test)
    done = plant(toy, "--patience", "10")
    assert "noticed (took too long) src/toy/counting/adder.py:3 arithmetic" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_that_is_stopped_leaves_neither_copies_nor_forks(
    toy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("place")
    waits = f"import os, time; open({str(place / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(99)\n"
    (toy / "tests/counting/test_adder.py").write_text(waits)
    command = [sys.executable, str(BENCHMARKS / "mutants.py"), "--root", str(toy)]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(place)}, stdout=subprocess.DEVNULL) as tool:
        while not (place / "pid").exists() or not (place / "pid").read_text():
            assert tool.poll() is None
            time.sleep(0.05)
        tool.terminate()
        assert tool.wait(60) == 143
    fork = int((place / "pid").read_text())
    assert [path.name for path in place.iterdir()] == ["pid"]
    # Killed, it may take a moment to go.
    assert any(gone(fork) or time.sleep(0.05) for _ in range(400))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_tests_that_fail_without_any_change_are_said_to(toy: Path) -> None:
    (toy / "tests/counting/test_adder.py").write_text("def test_nothing():\n    assert False\n")
    done = plant(toy)
    assert done.returncode == 1
    assert "the tests in tests/counting/ fail without any change" in done.stderr


def test_an_explanation_of_what_is_no_longer_there_is_named(toy: Path) -> None:
    (toy / "benchmarks/mutants.toml").write_text(EXPLAINED.replace("value * value", "value ** value"))
    said = plant(toy, "--list").stdout
    assert (
        "explained, but no longer there: src/toy/counting/adder.py: return value ** value -> return value / value"
        in said
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b <= c\n", ["a <= b <= c", "a < b < c"]),
        ("a is not b\n", ["a is b"]),
        ("x = (é + b) * c\n", ["x = (é - b) * c", "x = (é + b) / c"]),
        ("x //= 3\n", ["x *= 3", "x //= 2", "x //= 4"]),
        ("x = -0.5\n", ["x = -1.0", "x = (0.5)"]),
        ("def f(a=0, *, b=True): ...\n", ["def f(a=(-1), *, b=True): ...", "def f(a=0, *, b=False): ...", "def f(a=1, *, b=True): ..."]),
        ("x = a and b and c\n", ["x = a and b or c", "x = a or b and c"]),
        ("x = max(a, b.amin())\n", ["x = max(a, b.amax())", "x = min(a, b.amin())"]),
        ("x = f(a, b=c, **d)\n", ["x = f(a, **d)", "x = f(a, b=c)"]),
        ("x = zip(a, b, strict=False)\n", ["x = zip(a, b, strict=True)"]),
        ("f(a)\n", ["pass"]),
        ("raise E\n", ["pass"]),
        ("x = a if not b else c\n", ["x = a if (b) else c", "x = a if (not (not b)) else c"]),
        ("x = [a for a in b if a]\n", ["x = [a for a in b if (not (a))]"]),
    ],
)  # fmt: skip
def test_what_is_planted(source: str, expected: list[str]) -> None:
    assert sorted(new for _, _, new in changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of 3."""\n',
        "x: Literal[1]\n",
        "def f(a: Literal[1]) -> Literal[2]: ...\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
        'x = f"{a + 1}"\n',
        "if TYPE_CHECKING:\n    import a\n",
    ],
)
def test_what_no_test_could_notice_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_a_sample_is_the_same_each_time_and_of_every_kind() -> None:
    mutants = planting.mutants_of(Path("toy.py"), SOURCE.encode())
    kinds = {mutant.kind for mutant in mutants}
    chosen = planting.sample(mutants, len(kinds), seed=1)
    assert {mutant.kind for mutant in chosen} == kinds
    assert chosen == planting.sample(mutants[::-1], len(kinds), seed=1)
    assert len({tuple(m.line for m in planting.sample(mutants, 3, seed=seed)) for seed in range(9)}) > 1


def test_a_sample_does_not_change_with_lines_elsewhere() -> None:
    before = planting.sample(planting.mutants_of(Path("toy.py"), SOURCE.encode()), 99, seed=1)
    after = planting.sample(planting.mutants_of(Path("toy.py"), b"import os\n\n" + SOURCE.encode()), 99, seed=1)
    assert [mutant.name for mutant in after] == [mutant.name for mutant in before]
    assert all(b.line == a.line + 2 for a, b in zip(before, after, strict=True))
