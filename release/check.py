"""Build what would be uploaded, look into it, install it where nothing else is, and use it: `make release`.

    python release/check.py [--final] [--quick]

`--final` asks for a changelog that names the version and its date. `--quick` leaves out the extras.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from changelog import disagreement, version
from contents import source_faults, wheel_faults
from smoke import EXTRAS

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("python3.11", "python3.12", "python3.13")
RESOLVED = ("dev", "docs", "release", "oracles")
"""Extras of this repository's own tools: only whether they can be installed together is looked at."""


def run(*command: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution; the wheel is built from the latter, as anybody else would."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (source,) = list(DIST.glob("*.whl")), list(DIST.glob("*.tar.gz"))
    return wheel, source


def look(wheel: Path, source: Path) -> None:
    """Metadata, contents, and whether the description can be rendered."""
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    run(Path(sys.executable).with_name("check-wheel-contents"), wheel)
    faults = [*wheel_faults(wheel, version()), *source_faults(source)]
    if faults:
        sys.exit("\n".join(faults))


def pip(python: Path, *arguments: object) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *quiet, *arguments)


def install(wheel: Path, place: Path, interpreter: str) -> Path:
    """An environment with the wheel and what the core needs."""
    run(interpreter, "-m", "venv", place)
    python = place / "bin" / "python"
    pip(python, wheel)
    run(python, "-I", ROOT / "release" / "smoke.py")
    return python


def install_extra(wheel: Path, place: Path, core: Path, extra: str) -> None:
    """An environment of its own for an extra, which sees the core's instead of installing torch again."""
    run(core, "-m", "venv", place)
    python = place / "bin" / "python"
    packages = Path("lib") / Path(sysconfig.get_path("purelib")).relative_to(Path(sys.prefix) / "lib")
    # Its own packages come first, the core's behind them.
    (place / packages / "core.pth").write_text(f"{core.parents[1] / packages}\n")
    pip(python, f"{wheel}[{extra}]")
    if not (place / "bin" / "scannable").exists():
        pip(python, "--no-deps", "--force-reinstall", wheel)
    run(python, "-I", ROOT / "release" / "smoke.py", extra)


def interpreter(name: str) -> str | None:
    """A Python of that name that runs, on the path or where pyenv keeps its own."""
    places = [name, *map(str, sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}")))]
    for place in places:
        if shutil.which(place) and subprocess.run([place, "-V"], capture_output=True, check=False).returncode == 0:
            return place
    return None


def without_torch(wheel: Path, place: Path, python: str) -> None:
    """On another Python: everything compiles, and what the command line answers without torch, it answers. torch itself
    may be gigabytes of GPU libraries there; the whole is tested where `make test` runs with that Python.
    """
    run(python, "-m", "venv", place)
    own = place / "bin" / "python"
    pip(own, "--no-deps", wheel)
    pip(own, "jaxtyping", "matplotlib", "numpy", "rich", "safetensors", "tokenizers", "tyro")
    (package,) = (place / "lib").glob("python*/site-packages/scannable")
    run(own, "-W", "error", "-m", "compileall", "-q", "-f", package)
    for arguments in (("--help",), ("recipes",), ("train", "s5", "--help"), ("completion", "bash")):
        subprocess.run([str(place / "bin" / "scannable"), *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    wrong = disagreement((ROOT / "CHANGELOG.md").read_text(), version(), final=chosen.final)
    if wrong:
        sys.exit(wrong)
    wheel, source = build()
    look(wheel, source)
    with tempfile.TemporaryDirectory() as folder:
        core = install(wheel, Path(folder) / "core", sys.executable)
        for extra in () if chosen.quick else [one for one in EXTRAS if one]:
            install_extra(wheel, Path(folder) / extra.replace(",", "-"), core, extra)
        if not chosen.quick:
            pip(core, "--dry-run", f"{wheel}[{','.join(RESOLVED)}]")
        here = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for name in PYTHONS:
            python = here if name == here else interpreter(name)
            if python is None:
                print(f"{name} is not on this machine: not tried")
            elif name != here:
                without_torch(wheel, Path(folder) / name, python)
    print(f"{wheel.name} and {source.name} in {DIST} can be uploaded")


if __name__ == "__main__":
    main()
