"""Episodes collected until a train batch is full; refuses to split one.

A batch closes with the episode that brings it to the number of steps asked for, so that it depends on the episodes and their
order alone, and not on how they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["collected"]


def collected(batches: Iterable[EpisodeBatch], steps: int) -> Iterator[EpisodeBatch]:
    """Batches of whole episodes, in order, of at least `steps` steps each; the last one may have fewer."""
    pending: list[EpisodeBatch] = []
    missing = steps
    for batch in batches:
        ends, first = batch.starts[1:], 0
        while first < len(batch):
            before = int(batch.starts[first])
            stop = min(len(batch), int(np.searchsorted(ends, before + missing)) + 1)
            pending.append(batch.select(slice(first, stop)))
            missing -= int(batch.starts[stop]) - before
            first = stop
            if missing <= 0:
                yield EpisodeBatch.concat(pending)
                pending, missing = [], steps
    if pending:
        yield EpisodeBatch.concat(pending)
