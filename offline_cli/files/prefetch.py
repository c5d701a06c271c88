"""Prefetches parts of remote files, within a bound on bytes held and requests under way.

Several files that are read one after the other share one `Ahead`. Parts are requested in the order in which they were added; a
part that is read before its turn is fetched at once. The first requests go out two at a time; while answers come quickly, twice
as many, up to eight, and on a slow connection fewer: each request has to end within the time limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

__all__ = ["PART", "WINDOW", "Ahead", "Begin", "Coming", "Part", "parts_of"]

PART: Final = 8 << 20  # bytes of a request
WINDOW: Final = 64 << 20  # bytes under way, or fetched and not released yet
FIRST: Final = 2  # requests at once, to begin with
MOST: Final = 8  # requests at once, when answers come quickly: more than s3fs has connections for would only queue
SLOW: Final = 6.0  # seconds for a part that call for fewer at once

Range: TypeAlias = tuple[int, int]
"""From one offset to before another."""


class Coming(Protocol):
    """Bytes under way."""

    @property
    def is_done(self) -> bool:
        """Whether they, or an error, have come."""

    def outcome(self) -> bytes:
        """The bytes; raises what fetching them raised."""


Begin: TypeAlias = Callable[[int, int], Coming]
"""Starts to fetch the bytes of a file from one offset to before another."""


class Part:
    """Bytes `start` to `end` of a file."""

    __slots__ = ("_began", "_begin", "_coming", "_data", "_error", "_lock", "end", "start")

    def __init__(self, start: int, end: int, begin: Begin) -> None:
        self.start, self.end = start, end
        self._begin = begin
        self._began = 0.0
        self._coming: Coming | None = None
        self._data: bytes | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask for it, unless that has been done."""
        if self._coming is None:
            self._began = time.monotonic()
            self._coming = self._begin(self.start, self.end)

    @property
    def is_under_way(self) -> bool:
        """Whether it has been asked for, and not come."""
        return self._coming is not None and self._data is None and self._error is None and not self._coming.is_done

    def data(self) -> tuple[bytes, float]:
        """Its bytes, and how many seconds it is since they were asked for. Raises what fetching them raised."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._data is None:
                self.begin()
                assert self._coming is not None, "it has been asked for"
                try:
                    self._data = self._coming.outcome()
                except Exception as error:
                    self._error = error
                    raise
            return self._data, time.monotonic() - self._began


def parts_of(ranges: Iterable[Range], size: int, begin: Begin, *, hole: int, align: int = 1) -> list[Part]:
    """Parts that cover `ranges` of a file of `size` bytes, sorted, none of them overlapping.

    `hole`: bytes between two ranges that are fetched rather than skipped. Parts begin and end at multiples of `align`.
    """
    joined: list[list[int]] = []
    for start, end in sorted((start // align * align, min(size, -(-end // align) * align)) for start, end in ranges):
        if joined and start <= joined[-1][1] + hole:
            joined[-1][1] = max(joined[-1][1], end)
        elif start < end:
            joined.append([start, end])
    step = max(align, PART // align * align)
    return [Part(at, min(at + step, end), begin) for start, end in joined for at in range(start, end, step)]


class Ahead:
    """Parts of one or more files, in the order in which they will be read."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[Part] = deque()
        self._begun: list[Part] = []  # and not released
        self._at_once = FIRST

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts that will be read after all added before."""
        with self._lock:
            self._waiting.extend(parts)
            self._push()

    def take(self, part: Part) -> bytes:
        """The bytes of one of the parts, waited for if need be. Raises what fetching them raised."""
        with self._lock:
            if part in self._waiting:
                self._waiting.remove(part)
                self._begun.append(part)
                part.begin()
            comes = part.is_under_way
        data, seconds = part.data()
        with self._lock:
            if comes:
                self._at_once = min(2 * self._at_once, MOST) if seconds < SLOW else FIRST
            self._push()
        return data

    def drop(self, parts: Iterable[Part]) -> None:
        """Release parts: their bytes are dropped, and no longer requested."""
        gone = set(parts)
        if not gone:
            return
        with self._lock:
            self._begun = [part for part in self._begun if part not in gone]
            if not gone.isdisjoint(self._waiting):
                self._waiting = deque(part for part in self._waiting if part not in gone)
            self._push()

    def _push(self) -> None:
        """Ask for the next parts, as many as may be under way and held."""
        room = WINDOW - sum(part.end - part.start for part in self._begun)
        under_way = sum(part.is_under_way for part in self._begun)
        while self._waiting and under_way < self._at_once:
            room -= self._waiting[0].end - self._waiting[0].start
            if room < 0:
                return
            part = self._waiting.popleft()
            self._begun.append(part)
            part.begin()
            under_way += 1
