"""A remote file for reading, by ranges of bytes, fetching little more than the caller needs.

Read-ahead grows while reading continues in one direction: 256 KiB at first, twice as much each time, up to 8 MiB; from then on
the parts that follow are prefetched, several at once. So the head of a file costs little, and lines stream. A file of at most 1
MiB is fetched whole. A caller that knows what it will read, from a Parquet footer for instance, calls `expect`: then exactly
that is fetched, with several requests at once.
"""

from __future__ import annotations

import io
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, BinaryIO, Final, TypeAlias

from offline_cli.files.prefetch import PART, Ahead, Begin, Part, Range, parts_of
from offline_cli.files.timeouts import REQUEST_BYTES

__all__ = ["SMALL_FILE", "Fetch", "buffered_reader", "expect", "fetch_end", "ready"]

FIRST_AHEAD: Final = 256 << 10  # also the gap between two ranges that is fetched rather than skipped
SMALL_FILE: Final = 1 << 20
BUFFER: Final = 64 << 10

Fetch: TypeAlias = Callable[[int, int], bytes]
"""The bytes from one offset to before another, both within the file: as many as asked for, or an exception."""
OnClose: TypeAlias = Callable[[bool], None]
"""Called once when reading has ended, with whether an error ended it."""


def buffered_reader(
    fetch: Fetch,
    size: int,
    *,
    begin: Begin | None = None,
    ahead: Ahead | None = None,
    align: int = 1,
    on_close: OnClose | None = None,
) -> BinaryIO:
    """A file of `size` bytes whose ranges `fetch` gives. Reading raises what `fetch` raises.

    `begin`: as `fetch`, without waiting for the bytes; None: nothing is prefetched. `ahead`: shared by files that are
    read one after the other. `align`: ranges begin and end at multiples of it.
    """
    return _Buffered(_RangeReader(fetch, size, begin, ahead or Ahead(), align, on_close), BUFFER)


def expect(stream: Any, ranges: Callable[[], list[Range]]) -> None:
    """Say which `ranges()` of `stream` will be read, about in this order: of a remote file, they are prefetched."""
    if raw := _ranges_of(stream):
        raw.expect(ranges())


def ready(stream: Any, ranges: Callable[[], list[Range]]) -> None:
    """Wait until `ranges()`, which were expected, are here; those before them will not be read again.

    Raises what fetching raises. For callers that give `stream` to code that Ctrl-C cannot interrupt.
    """
    if raw := _ranges_of(stream):
        raw.ready(ranges())


def fetch_end(stream: Any) -> None:
    """Fetch the last bytes of `stream`, where a Parquet file has its footer, if it is a remote file."""
    if raw := _ranges_of(stream):
        raw.fetch_end()


def _ranges_of(stream: Any) -> _RangeReader | None:
    raw = getattr(stream, "raw", None)
    return raw if isinstance(raw, _RangeReader) else None


class _Buffered(io.BufferedReader):
    def __del__(self) -> None:
        if raw := _ranges_of(self):
            raw.drop()
        super().__del__()


class _RangeReader(io.RawIOBase):
    def __init__(
        self, fetch: Fetch, size: int, begin: Begin | None, ahead: Ahead, align: int, on_close: OnClose | None
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._begin = begin
        self._shared = ahead
        self._align = align
        self._on_close = on_close
        self._position = 0
        self._held = memoryview(b"")  # bytes from `_start` on
        self._start = 0
        self._ahead = FIRST_AHEAD
        self._expected: list[Range] = []
        self._parts: list[Part] = []  # sorted; what will be read
        self._streams = False  # whether parts are read once, first to last

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"a position before the file: {position}")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        wanted = min(len(into), self._size - self._position)
        if wanted <= 0:
            return 0
        if not self._is_held():
            self._hold(wanted)
        first = self._position - self._start
        part = self._held[first : first + wanted]
        into[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._held = memoryview(b"")
        self._shared.drop(self._parts)
        self._parts = []
        if self._on_close is not None and not sys.is_finalizing():
            self._on_close(sys.exc_info()[0] not in (None, GeneratorExit))

    def drop(self) -> None:
        """Close silently what nobody has closed: the garbage collector may wait for no lock, and no storage."""
        self._shared, self._on_close = Ahead(), None
        self._parts = []

    def __del__(self) -> None:
        self.drop()
        super().__del__()

    # ---- what is known to come ----

    def expect(self, ranges: list[Range]) -> None:
        if self._begin is None or self._size <= SMALL_FILE or ranges == self._expected:
            return
        self._shared.drop(self._parts)
        self._expected, self._streams = ranges, False
        self._parts = parts_of(ranges, self._size, self._begin, hole=FIRST_AHEAD, align=self._align)
        self._shared.add(self._parts)

    def ready(self, ranges: list[Range]) -> None:
        if not self._parts or not ranges:
            return
        self._pass(min(start for start, _ in ranges))
        for part in self._parts:
            if part.start >= max(end for _, end in ranges):
                return
            if any(part.start < end and start < part.end for start, end in ranges):
                self._taken(part)

    def _taken(self, part: Part) -> memoryview:
        return memoryview(self._shared.take(part))

    def fetch_end(self) -> None:
        start = 0 if self._size <= SMALL_FILE else max(0, self._size - FIRST_AHEAD)
        self._hold_range(start, self._size)

    def _pass(self, position: int) -> None:
        """Release the parts that end before `position`."""
        count = next((i for i, part in enumerate(self._parts) if part.end > position), len(self._parts))
        self._shared.drop(self._parts[:count])
        del self._parts[:count]

    def _part_here(self) -> Part | None:
        index = bisect_right(self._parts, self._position, key=lambda part: part.start) - 1
        return self._parts[index] if index >= 0 and self._position < self._parts[index].end else None

    # ---- what is here ----

    def _is_held(self) -> bool:
        return self._start <= self._position < self._start + len(self._held)

    def _hold(self, wanted: int) -> None:
        """Have bytes from the position on: `wanted` ones, and as many more as are likely to be asked for next."""
        part = self._part_here()
        if part is not None:
            self._held, self._start = self._taken(part), part.start
            if self._streams:
                self._pass(part.end)
        elif self._size <= SMALL_FILE:
            self._hold_range(0, self._size)
        else:
            self._look_ahead(wanted)

    def _look_ahead(self, wanted: int) -> None:
        goes_on = bool(len(self._held)) and self._position == self._start + len(self._held)
        most = REQUEST_BYTES if self._begin is None else PART
        if goes_on and self._ahead == most and self._begin is not None:
            self._expected = []
            self.expect([(self._position, self._size)])
            self._streams = True
            self._hold(wanted)
            return
        if self._streams:  # reading continues elsewhere
            self._shared.drop(self._parts)
            self._parts, self._expected, self._streams = [], [], False
        self._ahead = min(2 * self._ahead, most) if goes_on else FIRST_AHEAD
        length = min(max(wanted, self._ahead), REQUEST_BYTES)
        self._hold_range(self._position, min(self._position + length, self._size))

    def _hold_range(self, start: int, end: int) -> None:
        start, end = start // self._align * self._align, min(self._size, -(-end // self._align) * self._align)
        self._held, self._start = memoryview(self._fetch(start, end)), start
