"""Paired timings: ours and the rival in turn, medians and the ratio pair by pair; refuses to call a run good or bad.

A rate is a function that does the work once and gives units per second; what it does before its clock starts does not count.
A row whose rival, data or device is missing says so in the words of `Missing`, and takes its place in the table all the same.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.floors import NO_FLOOR, Floor
from benchmarks.targets import NO_TARGET, Target

__all__ = ["Missing", "Rate", "Row", "machine", "missing", "paired", "paired_rates", "timed", "versions"]

Rate = Callable[[], float]
BUSY = 0.75  # load per core, of other things, from which figures are no longer the machine's


class Missing(Exception):
    """What a row needs is not on this machine: a rival, a recording, a device. Says which, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: how much of `unit` per second ours and the rival did, and the ratio of the two, measured pair by pair."""

    question: str
    unit: str
    ours: float | None  # None, like `rival` and `ratio`: not measured
    rival: float | None
    ratio: float | None  # median of the pairs' ratios; above 1: ours is better
    rival_name: str  # with its version
    floor: str  # what bounds the figure, in words and numbers
    pairs: int
    floor_rate: float | None = None  # `unit` per second that the floor allows
    spread: tuple[float, float] | None = None  # quartiles of the pairs' ratios; None for a single figure
    target: Target = NO_TARGET
    not_measured: str = ""  # why not

    def met(self) -> bool | None:
        """Whether the target is reached; None without a target or a figure."""
        value = getattr(self, self.target.of)
        return None if value is None or self.target.at_least is None else value >= self.target.at_least

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and `met`."""
        return {**asdict(self), "met": self.met()}


def timed(call: Callable[[], object], amount: float) -> Rate:
    """The rate of a call that does `amount` units."""

    def rate() -> float:
        start = time.perf_counter()
        call()
        return amount / (time.perf_counter() - start)

    return rate


def paired_rates(
    question: str,
    *,
    unit: str,
    ours: Rate,
    rival: Rate,
    rival_name: str,
    floor: Floor = NO_FLOOR,
    target: Target = NO_TARGET,
    pairs: int = 7,
    warm_ups: int = 1,
) -> Row:
    """Ask `ours` and `rival` in turn, `pairs` times after the warm-ups."""
    for _ in range(warm_ups):
        ours(), rival()
    rates = [(ours(), rival()) for _ in range(pairs)]
    mine, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
    ratios = sorted(fast / slow for fast, slow in rates)
    spread = (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    ratio = statistics.median(ratios)
    return Row(question, unit, mine, theirs, ratio, rival_name, floor.words, pairs, floor.rate, spread, target)


def paired(
    question: str,
    *,
    amount: float,
    unit: str,
    ours: Callable[[], object],
    rival: Callable[[], object],
    rival_name: str,
    floor: Floor = NO_FLOOR,
    target: Target = NO_TARGET,
    pairs: int = 7,
) -> Row:
    """`paired_rates` of two calls in this process, each of which does `amount` of `unit`."""
    mine, theirs = timed(ours, amount), timed(rival, amount)
    return paired_rates(
        question, unit=unit, ours=mine, rival=theirs, rival_name=rival_name, floor=floor, target=target, pairs=pairs
    )


def missing(question: str, reason: object, *, unit: str = "", rival_name: str = "", target: Target = NO_TARGET) -> Row:
    """The row of a question that this machine cannot answer."""
    return Row(question, unit, None, None, None, rival_name, "", 0, target=target, not_measured=str(reason))


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
    """What the figures were taken on, when, and how busy it was with other things."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "load": f"{_load():.1f}",
        "busy": "yes" if _load() > BUSY * (os.cpu_count() or 1) else "",
        "python": platform.python_version(),
        "versions": versions("numpy", "pyarrow", "polars", "torch", "msgpack", "msgpack-numpy", "orjson", "gymnasium"),
    }


def _load() -> float:
    """Processes that want to run, over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    """The model's name where Linux tells it, else the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
