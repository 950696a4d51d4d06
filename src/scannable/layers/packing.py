"""Documents packed in rows, one after another, run as rows of a padded batch."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from scannable.scan.documents import Documents
from scannable.scan.many_streams import Numbers, on_device, runs


def over_documents(x: Tensor, documents: Documents, run: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Outputs (b, n, ...) of documents in x (b, n, ...), each as if it were alone: `run(rows, lengths)` for those of
    similar length together, so that less than half of what is run is padding, in at most log2(n) + 1 calls.
    """
    documents = documents.in_all_rows()
    if not len(documents.counts):
        return x
    flat = x.flatten(0, 1)
    parts: list[Tensor] = []
    places: list[Numbers] = []
    sizes = np.ceil(np.log2(np.maximum(documents.counts, 1))).astype(np.int64)
    for size in np.unique(sizes):
        counts = documents.counts[sizes == size]
        begin = (documents.row * documents.length + documents.start)[sizes == size]
        longest = int(counts.max())
        # Behind a document stands what follows in memory: the layer does not look at it.
        window = np.minimum(begin[:, None] + np.arange(longest), len(flat) - 1)
        rows = flat.index_select(0, on_device(window.ravel(), x.device)).unflatten(0, window.shape)
        y = run(rows, on_device(counts, x.device)).flatten(0, 1)
        parts.append(y.index_select(0, on_device(runs(np.arange(len(counts)) * longest, counts), x.device)))
        places.append(runs(begin, counts))
    order = np.argsort(np.concatenate(places), kind="stable")
    return torch.cat(parts).index_select(0, on_device(order, x.device)).unflatten(0, x.shape[:2])
