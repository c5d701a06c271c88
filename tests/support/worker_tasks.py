"""Functions that worker processes are given; in a module of their own, because workers import them by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def squared(number: int) -> int:
    return number**2


def says_and_squares(number: int) -> int:
    print("a word of", number)
    return squared(number)


def inverse(number: int) -> float:
    return 1 / number


def counted_up(count: int) -> NDArray[Any]:
    return np.arange(count)


def process_after_a_while(seconds: float) -> int:
    """The id of the process that was asked."""
    time.sleep(seconds)
    return os.getpid()


def called(call: Callable[[], int]) -> int:
    time.sleep(0.05)
    return call()


def dies_elsewhere(home: int, number: int) -> int:
    """`number`, in process `home`; any other dies."""
    if os.getpid() != home:
        os._exit(1)
    time.sleep(0.1)
    return number
