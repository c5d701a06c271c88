"""Processor time by size: what takes more than in proportion is found by doubling the data, on a loaded machine too."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable

__all__ = ["MOST", "assert_grows_in_proportion", "processor_seconds"]

MOST = 2.3  # times the processor time for twice the data
MOST_BESIDE_OTHERS = 3.0  # where other programs run: they take the caches, from the larger data most of all
ALONE = 1.25  # the load average of one program
ROUNDS, LAST = 3, 10  # of measuring both: at least, and at most


def processor_seconds(work: Callable[[], object]) -> float:
    """User and system time of this process and of the children that end meanwhile."""
    gc.collect()
    gc.freeze()  # else a search for cycles among all objects of the tests costs as much as the work
    try:
        before = _spent()
        work()
        return _spent() - before
    finally:
        gc.unfreeze()


def _spent() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def assert_grows_in_proportion(half: Callable[[], object], full: Callable[[], object], most: float = MOST) -> None:
    """`full`, the work on twice the data, takes at most `most` times as long as `half`: the best of three of each, in turns.

    Measured again, up to `LAST` times, where it seems to take longer: another program may have had the caches.
    """
    best = [float("inf"), float("inf")]
    for attempt in range(LAST):
        if attempt >= ROUNDS and best[1] <= most * best[0]:
            return
        best = [min(known, processor_seconds(work)) for known, work in zip(best, (half, full), strict=True)]
    most = max(most, MOST_BESIDE_OTHERS) if os.getloadavg()[0] > ALONE else most
    assert best[1] <= most * best[0], f"{best[0]:.3f} s of processor time, and {best[1]:.3f} s for twice the data"
