"""Paired timings: ours and the rival in turn, medians and the ratio pair by pair; refuses to decide pass or fail."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["Row", "machine", "paired", "versions"]


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: how much of `unit` per second ours and the rival did, and the ratio of the two, measured pair by pair."""

    question: str
    unit: str
    ours: float
    rival: float
    ratio: float  # median of the pairs' ratios; above 1: ours is faster
    rival_name: str
    floor: str  # what bounds the figure, in words and numbers
    pairs: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(
    question: str,
    *,
    amount: float,
    unit: str,
    ours: Callable[[], object],
    rival: Callable[[], object],
    rival_name: str,
    floor: str = "",
    pairs: int = 7,
) -> Row:
    """Time `ours` and `rival` in turn, `pairs` times after one warm-up each; `amount` of `unit` is what one call does."""
    ours(), rival()
    times = [(_seconds(ours), _seconds(rival)) for _ in range(pairs)]
    mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(slow / fast for fast, slow in times)
    return Row(question, unit, amount / mine, amount / theirs, ratio, rival_name, floor, pairs)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def versions(*names: str) -> str:
    """`numpy 2.4.6, ray 2.60.0` for those that are installed."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def machine() -> dict[str, str]:
    """What the figures were taken on, and when."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions("numpy", "pyarrow", "polars", "torch", "msgpack", "msgpack-numpy", "orjson", "gymnasium", "ray"),
    }
