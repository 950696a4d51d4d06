"""One sequence over many processes: the same scan tree, the same values and gradients, whoever holds which part."""

from scannable.distributed.agreement import DisagreementError
from scannable.distributed.messages import Message, traffic
from scannable.distributed.model import bounds_for, forward, hidden, loss
from scannable.distributed.scan_over_ranks import agreed_split, extend, scan
from scannable.distributed.split import Split, even_bounds

__all__ = [
    "DisagreementError",
    "Message",
    "Split",
    "agreed_split",
    "bounds_for",
    "even_bounds",
    "extend",
    "forward",
    "hidden",
    "loss",
    "scan",
    "traffic",
]
