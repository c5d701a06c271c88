"""Functions that worker processes are given; in a module of their own, because workers import them by name."""

from __future__ import annotations

import importlib
import os
import sys
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


def imported_after_a_while(module: str) -> tuple[int, int]:
    """The id of the process that was asked, and what is called VALUE there."""
    time.sleep(0.05)
    return os.getpid(), importlib.import_module(module).VALUE


def flags_after_a_while(number: int) -> tuple[int, tuple[bool, bool, bool]]:
    """The id of the process that was asked; whether its path is safe, it is isolated, and it ignores PYTHON* variables."""
    time.sleep(0.05)
    flags = sys.flags
    return os.getpid(), (flags.safe_path, bool(flags.isolated), bool(flags.ignore_environment))


def called(call: Callable[[], int]) -> int:
    time.sleep(0.05)
    return call()


def dies_elsewhere(home: int, number: int) -> int:
    """`number`, in process `home`; any other dies."""
    if os.getpid() != home:
        os._exit(1)
    time.sleep(0.1)
    return number
