"""Functions that the workers of an engine are given; in a module of their own, because workers import them by name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


def counted(number: int) -> Iterator[tuple[int, int]]:
    for part in range(number % 4):
        yield number, part


def arrays(number: int) -> Iterator[dict[str, Any]]:
    for part in range(3):
        yield {"values": np.arange(number * 1000 + part, dtype=np.float64), "name": f"{number}.{part}"}


def inverses(number: int) -> Iterator[float]:
    yield float(number)
    yield 1 / number


def pid_after(seconds: float) -> Iterator[int]:
    time.sleep(seconds)
    yield os.getpid()


def leaving(number: int) -> Iterator[int]:
    yield number
    sys.exit(0)


def strange(number: int) -> Iterator[int]:
    class Strange(Exception):
        pass

    yield number
    raise Strange("as nobody knows it")
