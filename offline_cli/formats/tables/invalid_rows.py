"""Rows of a CSV file that the parser could not read, put back between the rows that it could, by their numbers.

The parser calls its handler of invalid rows up to a block before it hands over the rows around them. Only the numbers that it
gives them say where they stand.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData

__all__ = ["PIECE", "Broken", "InvalidRows"]

PIECE: Final = 1000  # invalid rows that are handed on at once: an error is made for each

GO_ON: Final = "--on-error skip to go on without its episode; converting with quarantine keeps the row"

Broken = tuple[int, BadData, bytes]  # number of the row, what is wrong, its text


class InvalidRows:
    """The rows of one file that could not be read and have not been handed on; the parser may add some from its own thread."""

    def __init__(self, url: str, extra: int) -> None:
        """`extra`: rows before the first row of data, which the parser counts too."""
        self._url, self._first = url, 1 + extra  # the parser counts from 1
        self._lock = threading.Lock()
        self._next = 0  # number of the next row of data
        self._wanted = 0  # cells that a row should have
        self._numbers, self._cells, self._lengths = array("q"), array("q"), array("q")
        self._texts = bytearray()

    def handle(self, row: Any) -> str:
        """The parser's handler."""
        text = str(row.text).encode()
        with self._lock:
            self._wanted = row.expected_columns
            self._numbers.append(row.number - self._first)
            self._cells.append(row.actual_columns)
            self._lengths.append(len(text))
            self._texts += text
        return "skip"

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def placed(
        self, batch: pa.RecordBatch, *, is_cut: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], Sequence[Broken]]]:
        """The good rows that come next in the file, with their numbers and the invalid rows between and right after them.

        `is_cut`: without the last row of all, in which the file breaks off.
        """
        invalid, cells, texts = self._taken(batch.num_rows)
        if is_cut:
            last_is_invalid = len(invalid) > 0 and int(invalid[-1]) >= self._next + batch.num_rows + len(invalid) - 1
            invalid, batch = (invalid[:-1], batch) if last_is_invalid else (invalid, batch.slice(0, max(0, batch.num_rows - 1)))
        count = batch.num_rows
        if len(invalid) and invalid[0] < 0:
            what = f"a header of {self._wanted} names that is a row of {cells[0]} cells"
            raise BadData(what, where=self._url, fix="quote the names that hold quotes or the delimiter")
        good = np.arange(count)
        numbers = self._next + good + np.searchsorted(invalid - self._next - np.arange(len(invalid)), good, side="right")
        self._next += count + len(invalid)
        done = 0
        for first in range(0, max(1, len(invalid)), PIECE):
            later = invalid[first + PIECE : first + PIECE + 1]
            stop = int(np.searchsorted(numbers, later[0])) if len(later) else count
            broken = [
                self._broken(*said)
                for said in zip(invalid[first : first + PIECE].tolist(), cells[first:], texts[first:], strict=False)
            ]
            if stop > done or broken:
                yield batch.slice(done, stop - done), numbers[done:stop], broken
            done = stop

    def _taken(self, count: int) -> tuple[NDArray[np.int64], Sequence[int], Sequence[bytes]]:
        """Number, cells and text of those that stand before the end of the next `count` good rows, or right after it."""
        with self._lock:
            numbers = np.array(self._numbers, np.int64)
            good_before = numbers - self._next - np.arange(len(numbers))
            upto = int(np.searchsorted(good_before, count, side="right"))
            cells, lengths = self._cells[:upto], self._lengths[:upto]
            texts: list[bytes] = []
            stop = 0
            for length in lengths:
                texts.append(bytes(self._texts[stop : stop + length]))
                stop += length
            del self._numbers[:upto], self._cells[:upto], self._lengths[:upto], self._texts[:stop]
        return numbers[:upto], cells, texts

    def _broken(self, number: int, cells: int, text: bytes) -> Broken:
        mend = "quote cells that hold the delimiter" if cells > self._wanted else "fill in the cells that are missing"
        what = f"a row of {cells} cells under {self._wanted} columns"
        return number, BadData(what, where=f"{self._url} row {number}", fix=f"{mend}, or {GO_ON}"), text
