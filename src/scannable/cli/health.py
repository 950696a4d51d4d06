"""What a machine has of what this package can use: `scannable doctor` prints it."""

import os
import platform
import re
import shutil
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import scannable

CORE = "Needed"
EXTRAS = "Extras"

USES = {
    "train": "training and the command line",
    "plot": "figures, and the command line",
    "hf": "the models of Hugging Face",
    "data": "WikiText from the hub",
    "serve": "a server for streams",
    "tensorboard": "TensorBoard logs",
    "wandb": "Weights & Biases logs",
    "docs": "building the site",
    "release": "building and checking a release",
    "oracles": "code of others that tests compare with",
    "dev": "tests, style and types",
}
"""What each extra is for, in the order in which people want them."""

SHOWN = 4
"""Packages of an extra that are listed one by one, at most."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    says: str
    fine: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Needed:
    """A package that an extra, or with no extra everything, asks for."""

    name: str
    bound: str
    extra: str

    def finding(self) -> Finding:
        how = f"pip install 'scannable[{self.extra}]'" if self.extra else f"pip install '{self.name}{self.bound}'"
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return Finding(self.name, "is not installed", False, how)
        if self.bound.startswith(">=") and _numbers(version) < _numbers(self.bound):
            return Finding(self.name, f"{version} is older than {self.bound[2:]}", False, how)
        return Finding(self.name, version)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[><=]*(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def requirements() -> dict[str, list[Needed]]:
    """What each extra asks for, as the installed package says; what everything needs is under ""."""
    grouped: dict[str, list[Needed]] = defaultdict(list)
    for line in metadata.requires("scannable") or []:
        words, _, marker = line.partition(";")
        found = re.match(r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*([><=!~]=?[^,\s]+)?", words.strip())
        platforms = re.search(r"sys_platform == ['\"](\w+)['\"]", marker)
        if found is None or found[1] == "scannable" or (platforms and platforms[1] != sys.platform):
            continue
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        grouped[extra[1] if extra else ""].append(Needed(found[1], found[2] or "", extra[1] if extra else ""))
    return dict(grouped)


def examined() -> dict[str, list[Finding]]:
    """Everything that was looked at, by kind."""
    try:
        wanted = requirements()
    except metadata.PackageNotFoundError:
        here = Path(scannable.__file__).parents[2]
        missing = Finding("scannable", f"{scannable.__version__} is not installed", False, f"pip install -e {here}")
        return {CORE: [missing, *_torch()[:1]], "This machine": _machine()}
    torch = _torch()
    return {
        CORE: [
            Finding("scannable", f"{scannable.__version__}  {Path(scannable.__file__).parent}"),
            Finding("Python", platform.python_version()),
            *(need.finding() for need in wanted.get("", [])),
        ],
        EXTRAS: [_extra(name, wanted[name]) for name in _in_order(wanted)],
        "Devices": torch,
        "This machine": _machine(),
    }


def _extra(name: str, wanted: list[Needed]) -> Finding:
    findings = [need.finding() for need in wanted]
    wrong = [f"{one.name} {one.says}" for one in findings if not one.fine]
    use = USES.get(name, "")
    if wrong:
        return Finding(name, f"{use}: {', '.join(wrong)}", False, f"pip install 'scannable[{name}]'")
    if len(findings) > SHOWN:
        return Finding(name, f"{use}: all {len(findings)} packages")
    return Finding(name, f"{use}: {', '.join(f'{one.name} {one.says}' for one in findings)}")


def _in_order(wanted: dict[str, list[Needed]]) -> list[str]:
    """The extras, without the one that is all of them."""
    others = sorted(wanted.keys() - USES.keys() - {"", "all"})
    return [name for name in (*USES, *others) if name in wanted]


def _torch() -> list[Finding]:
    """What torch can compute on. Importing it is the slow part."""
    try:
        import torch
    except Exception as error:
        return [Finding("torch", f"cannot be imported: {' '.join(str(error).split())}", False, "pip install torch")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    said = f"{threads} threads of torch on {cores} cores" + (f", OMP_NUM_THREADS={variable}" if variable else "")
    found = [Finding("cpu", said, threads <= cores, f"more threads than cores is slow: export OMP_NUM_THREADS={cores}")]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties: Any = torch.cuda.get_device_properties(i)
            found.append(Finding(f"cuda:{i}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"))
    else:
        reason = "this torch is built without it" if torch.version.cuda is None else "no GPU or no driver was found"
        found.append(Finding("cuda", f"not there: {reason}", False, "everything works on the CPU, more slowly"))
    if torch.backends.mps.is_available():
        found.append(Finding("mps", "there"))
    return found


def _machine() -> list[Finding]:
    from scannable.storage.cache_folder import default_cache

    cache = default_cache()
    near = next(folder for folder in (cache, *cache.parents) if folder.exists())
    held = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.exists() else 0
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    posix = os.name == "posix"
    return [
        Finding("system", f"{platform.system()} {platform.machine()}", posix, "only Linux and macOS are supported"),
        Finding(
            "cache",
            f"{cache}, {held / 2**20:,.1f} MiB, {shutil.disk_usage(near).free / 2**30:,.0f} GiB free",
            os.access(near, os.W_OK),
            "it cannot be written; set XDG_CACHE_HOME to a folder that can",
        ),
        Finding(
            "compiler",
            compiler or "no C++ compiler",
            compiler is not None,
            "torch.compile needs one on a CPU: apt install g++, or xcode-select --install",
        ),
    ]
