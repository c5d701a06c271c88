"""How fast a question could be answered at best: bytes over bandwidth, operations over rate, both measured in the same run."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["NO_FLOOR", "Floor", "bytes_floor", "matmul_rate", "measured_floor", "memory_bandwidth", "work_floor"]

COPIED = 256 << 20  # bytes: more than any cache holds
TRIES = 5
WIDTH = 1024


@dataclass(frozen=True, slots=True)
class Floor:
    """What bounds a figure, in words, and the units per second that it allows (None: not a number)."""

    words: str
    rate: float | None = None


NO_FLOOR: Final = Floor("")


def bytes_floor(count: float, unit: str) -> Floor:
    """`count` bytes for each `unit`, each of them copied once."""
    speed = memory_bandwidth()
    return Floor(f"{count:.4g} bytes a {unit}, copied once at {speed / 1e9:.1f} GB/s", speed / count)


def work_floor(operations: float, unit: str, *, threads: int) -> Floor:
    """So many floating-point operations for each `unit`, at the rate of one large float32 matrix product."""
    speed = matmul_rate(threads)
    words = f"{operations / 1e9:.3g} GFLOP a {unit} at {speed / 1e9:.0f} GFLOP/s ({threads} thread{'s' * (threads > 1)})"
    return Floor(words, speed / operations)


def measured_floor(words: str, call: Callable[[], object], amount: float) -> Floor:
    """As fast as `call`, which does the part of the work of `amount` units that nobody can leave out."""
    call()
    return Floor(words, amount / _median_seconds(call))


@functools.cache
def memory_bandwidth() -> float:
    """Bytes per second that one thread copies; a byte read and written counts once."""
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    return COPIED / _median_seconds(lambda: np.copyto(target, source))


@functools.cache
def matmul_rate(threads: int) -> float:
    """Floating-point operations per second of a product of two float32 matrices, by torch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)
        torch.mm(left, right)
        return 2 * WIDTH**3 / _median_seconds(lambda: torch.mm(left, right))
    finally:
        torch.set_num_threads(before)


def _median_seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
