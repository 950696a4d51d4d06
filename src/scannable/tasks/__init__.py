"""Tasks with seeded samples: any sample of any split can be had alone, and splits share none."""

from scannable.tasks.groups import GroupTask
from scannable.tasks.mqar import MQARTask
from scannable.tasks.sample import IGNORED, Batch, Split, Task

__all__ = ["IGNORED", "Batch", "GroupTask", "MQARTask", "Split", "Task"]
