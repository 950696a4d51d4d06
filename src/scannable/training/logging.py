"""What a run writes while it goes: `metrics.jsonl`, always; a live line or a plain one; other loggers when asked for.

`metrics.jsonl` holds only what the recipe decides, so that two equal runs write equal files; seconds go to
`timing.jsonl`.
"""

import contextlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scannable.storage.files import write_whole


class Sink(Protocol):
    """Another place for metrics, such as TensorBoard."""

    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Metrics:
    """An append-only file of JSON lines that can be cut back to where a checkpoint saw it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size(self) -> int:
        if self.path.exists() and not self.path.is_file():
            raise OSError(f"{self.path} is a folder where a file should be; move it away, then resume")
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, record: dict[str, Any]) -> None:
        before = self.size
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record, sort_keys=True) + "\n")
        except OSError as error:
            # Half a line would spoil the next one.
            with contextlib.suppress(OSError):
                os.truncate(self.path, before)
            raise OSError(
                error.errno, f"{self.path} could not be written: {error.strerror}; make room, then resume"
            ) from error

    def flush(self) -> None:
        """To the disk, so that it survives what a checkpoint survives."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def cut(self, size: int) -> int:
        """Forget what was written after the first `size` bytes: the run will write it again. How many of these bytes
        are not there, because something else has changed the file.
        """
        lost = max(0, size - self.size)
        if self.size > size:
            os.truncate(self.path, size)
        return lost


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics file; a last line that is not finished is left out."""
    records: list[dict[str, Any]] = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is damaged: {line[:80]!r}") from error
        records.append(record)
    return records


class Display:
    """Progress for people: a live line on a terminal, else a plain one every so often."""

    EVERY = 30.0

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total = total
        self.live = console.is_terminal
        self.started, self.done_before, self.spoken = time.monotonic(), done, time.monotonic()
        columns = (
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, transient=True, disable=not self.live)
        self.bar = self.progress.add_task("training", total=total, completed=done, text="")
        self.progress.start()

    def step(self, step: int, text: str) -> None:
        self.progress.update(self.bar, completed=step, text=text)
        now = time.monotonic()
        if not self.live and now - self.spoken > self.EVERY:
            self.spoken = now
            rate = (step - self.done_before) / (now - self.started)
            left = (self.total - step) / rate if rate else 0
            self.console.print(f"step {step}/{self.total}  {text}  about {left / 60:.0f} min left", highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self.progress.stop()


class TensorBoardSink:
    """Needs the package tensorboard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard is not installed; pip install 'scannable[tensorboard]'") from error
        self.writer: Any = SummaryWriter(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbSink:
    """Needs the package wandb, and an account or WANDB_MODE=offline."""

    def __init__(self, folder: Path, configuration: dict[str, Any]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("Weights & Biases is not installed; pip install 'scannable[wandb]'") from error
        # Of its own, and kept, so that a resumed run goes on there, and one of the same name elsewhere does not.
        identity = folder / "wandb-id"
        if not identity.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(identity, uuid.uuid4().hex.encode())
        self.run: Any = wandb.init(
            dir=str(folder), config=configuration, resume="allow", id=identity.read_text(), name=folder.name
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
