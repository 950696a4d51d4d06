"""What the tests notice: small changes are planted in the source, and each is run against the tests nearest to it.

A change that no test notices shows what no test checks. Those that cannot be noticed are explained in `mutants.toml`.
Everything happens in copies of the project: the checkout is never touched.

Why not a tool: mutmut leaves decorated functions and all that is outside functions alone, and wraps functions whose
signatures are read here when they run; cosmic-ray starts a process for each change and works in the checkout.
"""

import argparse
import csv
import json
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forked_tests import CANNOT_RUN, Copy, Job, Tests, import_what_others_wrote, run
from planting import Mutant, mutants_of, sample

GOAL = 0.95
"""The share of changes that must be noticed in every package, of those not explained."""
BUDGET = 60.0
"""Seconds of a core for the tests that one change is run against, as they take without it: the nearest, then the
fastest."""
FURTHER = {"nn": ("models",)}
"""Whose tests come after a package's own."""


def folders_of(package: str) -> list[str]:
    """Where the tests of a package are, the nearest first."""
    return [f"tests/{name}/" for name in (package, *FURTHER.get(package, ()))]


@dataclass
class Project:
    """Source below `src/NAME` and tests below `tests`, a folder for each package in both."""

    root: Path
    seconds: dict[str, float] = field(default_factory=dict)
    """What each test takes."""

    @property
    def source(self) -> Path:
        return next(path.parent for path in (self.root / "src").glob("*/__init__.py"))

    def packages(self) -> list[str]:
        return sorted(path.parent.name for path in self.source.glob("*/__init__.py"))

    def mutants(self, package: str, only: str | None) -> list[Mutant]:
        files = sorted((self.source / package).rglob("*.py"))
        names = [file.relative_to(self.root) for file in files if file.as_posix().endswith(only or "")]
        return [mutant for name in names for mutant in mutants_of(name, (self.root / name).read_bytes())]

    def explained(self) -> set[tuple[str, str, str]]:
        path = self.root / "benchmarks" / "mutants.toml"
        entries = tomllib.loads(path.read_text())["explained"] if path.exists() else []
        return {(entry["file"], entry["old"], entry["new"]) for entry in entries}

    def tests(self, folder: str) -> list[str]:
        return [path.relative_to(self.root).as_posix() for path in sorted((self.root / folder).rglob("test_*.py"))]

    def files(self, folders: Iterable[str]) -> list[Path]:
        """All that is read by the forks that run the tests of these folders."""
        tests = [self.root / test for folder in folders for test in self.tests(folder)]
        return [*self.source.rglob("*.py"), *(self.root / "tests").glob("*.py"), *tests]

    def own_modules(self) -> set[str]:
        return {self.source.name, *(path.stem for path in (self.root / "tests").rglob("*.py"))}

    def nearest(self, mutant: Mutant, package: str) -> tuple[list[str], float]:
        """Tests in the order in which a change is to meet them, and their seconds."""
        first, *others = folders_of(package)
        own = f"{first}test_{mutant.file.stem}.py"

        def distance(test: str) -> tuple[bool, bool, float]:
            return not test.startswith(own), not test.startswith(first), self.seconds[test]

        near = [test for test in self.seconds if test.startswith((first, *others))]
        chosen, total = list[str](), 0.0
        for test in sorted(near, key=distance):
            if total + self.seconds[test] <= BUDGET:
                chosen.append(test)
                total += self.seconds[test]
        return chosen, total


def time_tests(project: Project, folders: Iterable[str], copies: list[Copy]) -> None:
    """Run the tests of each folder without a change: they must pass, and their seconds are noted."""

    def job(folder: str) -> Job:
        report = Path(tempfile.mkstemp(suffix=".json", dir=copies[0].place)[1])

        def body() -> int:
            tests = Tests()
            code = tests.run(project.tests(folder))
            report.write_text(json.dumps(tests.seconds))
            return code

        def done(code: int | None, log: str, took: float) -> None:
            if code:
                sys.exit(f"the tests in {folder} fail without any change:\n{log[-3000:]}")
            seconds: dict[str, float] = json.loads(report.read_text())
            project.seconds |= seconds
            print(f"{folder}: {len(seconds)} tests pass in {took:.0f} s", flush=True)

        return Job(body, float("inf"), done)

    run((job(folder) for folder in folders), copies)


@dataclass
class Tally:
    """What became of the changes planted in a package."""

    noticed: int = 0
    explained: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def planted(self) -> int:
        return self.noticed + self.explained + len(self.survivors)

    @property
    def enough(self) -> bool:
        return self.noticed >= GOAL * (self.noticed + len(self.survivors))


def try_mutants(
    project: Project,
    chosen: dict[str, list[Mutant]],
    explained: set[tuple[str, str, str]],
    copies: list[Copy],
    patience: float,
) -> dict[str, Tally]:
    tallies = {package: Tally() for package in chosen}

    def jobs() -> Iterator[Job]:
        for package, mutants in chosen.items():
            for mutant in mutants:
                if mutant.name in explained:
                    tallies[package].explained += 1
                else:
                    yield job(package, mutant)

    def job(package: str, mutant: Mutant) -> Job:
        tests, seconds = project.nearest(mutant, package)

        def done(code: int | None, log: str, took: float) -> None:
            if code in CANNOT_RUN:
                sys.exit(f"no tests could be run with {mutant.name}:\n{log[-3000:]}")
            if code == 0:
                tallies[package].survivors.append(mutant)
            else:
                tallies[package].noticed += 1
            outcome = "SURVIVED" if code == 0 else "noticed" if code is not None else "noticed (took too long)"
            print(f"{outcome} {mutant.file}:{mutant.line} {mutant.kind}, {took:.0f} s", flush=True)

        files = dict.fromkeys(test.split("::")[0] for test in tests)
        return Job(
            lambda: Tests(tests).run(files), 2 * seconds + patience, done, (mutant.file, mutant.mutated, mutant.source)
        )

    run(jobs(), copies)
    return tallies


def report(tallies: dict[str, Tally], out: Path | None) -> bool:
    """Print what survived and a table; whether enough was noticed everywhere."""
    for mutant in (mutant for tally in tallies.values() for mutant in tally.survivors):
        print(f"\n{mutant.file}:{mutant.line} {mutant.kind}\n{mutant.diff()}", end="")
    header = ["package", "planted", "noticed", "explained", "unexplained"]
    rows = [[name, t.planted, t.noticed, t.explained, len(t.survivors)] for name, t in tallies.items()]
    print("\n" + "\n".join(f"{name:<14}" + "".join(f"{x:>12}" for x in rest) for name, *rest in [header, *rows]))
    if out:
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return all(tally.enough for tally in tallies.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="of the project")
    parser.add_argument("--package", action="append", help="only this one; may be given more than once")
    parser.add_argument("--file", help="only files that end with this, such as scan/tree.py")
    parser.add_argument("--count", type=int, default=24, help="changes planted in each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=float, default=30, help="seconds beyond twice those of the tests")
    parser.add_argument("--list", action="store_true", help="show the changes without running any test")
    parser.add_argument("--out", type=Path, help="where the CSV goes")
    given = parser.parse_args()
    project = Project(given.root.resolve())
    found = {package: project.mutants(package, given.file) for package in given.package or project.packages()}
    chosen = {package: sample(mutants, given.count, given.seed) for package, mutants in found.items() if mutants}
    explained = project.explained()
    known = {mutant.name for mutants in found.values() for mutant in mutants}
    for file, old, new in sorted(explained - known) if not given.package and not given.file else ():
        print(f"explained, but no longer there: {file}: {old} -> {new}")
    if given.list:
        for mutant in (mutant for mutants in chosen.values() for mutant in mutants):
            print(f"{mutant.file}:{mutant.line} {mutant.kind}\n{mutant.diff()}")
        return
    began = time.monotonic()
    # So that forks and copies go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies = [Copy(project.root, Path(place) / str(i)) for i in range(given.workers)]
        folders = sorted({folder for package in chosen for folder in folders_of(package)})
        import_what_others_wrote(project.files(folders), project.own_modules())
        time_tests(project, folders, copies)
        tallies = try_mutants(project, chosen, explained, copies, given.patience)
    enough = report(tallies, given.out)
    print(f"{time.monotonic() - began:.0f} s; seed {given.seed}")
    sys.exit(not enough)


if __name__ == "__main__":
    main()
