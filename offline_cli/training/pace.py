"""`Pace`: when a slow task is due again, so that it never takes more than a share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["SHARE", "Pace"]

SHARE: Final = 0.05  # of the time, at most


class Pace:
    """Of one thing that is done again and again: due at first, and then after a pause that grows with how long it took."""

    def __init__(self, at_least: float) -> None:
        """`at_least`: seconds from the end of one to the next."""
        self._at_least = at_least
        self._next = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return time.monotonic() >= self._next

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Use it around the task, whether it was due or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self._next = ended + max(self._at_least, (ended - began) / SHARE)
