"""A time limit for each test, by what it is marked with: one that hangs shows the stacks of all threads, and fails the run.

The process ends there, whatever hangs in it: of several workers (`pytest -n`) one, which fails the run too. The interpreter's
own watchdog does it (`faulthandler`): it needs no lock that Python may hold, and with several workers, whose standard output
goes nowhere, it writes to the run's standard error.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from typing import Final

import pytest

SECONDS: Final = 300  # of a test, its fixtures included; tens of times what the slowest takes on two quiet cores
LONG: Final = 1800  # of one with any of these markers, which take minutes
LONG_MARKERS: Final = ("ray", "cloud", "radosgw", "kill", "browser", "learn", "big")
VARIABLE: Final = "OFFLINE_CLI_TEST_SECONDS"  # another limit for all

_stderr = pytest.StashKey[int]()


def limit_of(item: pytest.Item) -> float:
    """Seconds that a test may take."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return float(said)
    return LONG if any(item.get_closest_marker(name) for name in LONG_MARKERS) else SECONDS


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the standard error of the run, which tests do not see."""
    assert sys.__stderr__ is not None
    session.config.stash[_stderr] = os.dup(sys.__stderr__.fileno())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _stderr in config.stash:
        os.close(config.stash[_stderr])
        del config.stash[_stderr]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    faulthandler.dump_traceback_later(limit_of(item), exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
