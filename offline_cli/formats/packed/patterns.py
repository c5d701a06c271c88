"""Pickles that differ from a known one in nothing but the bytes of an array; refuses patterns that it cannot prove.

A pickle says the length of its raw bytes before them. So two pickles of one length that agree in every other byte hold arrays
of the same shape and dtype, and only the first has to be read instruction by instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.packed.pickles import Unpickled, unpickle
from offline_cli.formats.packed.text import decompress
from offline_cli.formats.packed.values import numbers_of

__all__ = ["KnownPatterns", "Pattern"]

MAX_PATTERNS: Final = 64  # a recording has one for each column, and one more for each number of steps that a line can have
MAX_AROUND: Final = 4096  # bytes beside the array: numpy writes about 150


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pickle of one array whose raw bytes lie at a known place; others that agree around it differ in numbers only."""

    before: bytes
    after: bytes
    length: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, pickled: bytes, value: Any, read: Unpickled) -> Pattern | None:
        """The pattern of a pickle; None where it is not one C-ordered array of numbers over one run of bytes."""
        if not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.nbytes or value.dtype.kind == "U":
            return None  # text is read with care each time: not every number in it is a character
        spans = [(start, start + size) for start, size in read.spans if size == value.nbytes]
        if len(spans) != 1 or pickled[slice(*spans[0])] != value.tobytes():
            return None
        return cls(pickled[: spans[0][0]], pickled[spans[0][1] :], len(pickled), value.dtype, value.shape)

    def array_of(self, pickled: bytes) -> NDArray[Any] | None:
        """The flat array of `pickled`; None where it has another pattern."""
        alike = len(pickled) == self.length and pickled.startswith(self.before) and pickled.endswith(self.after)
        return numbers_of(pickled[len(self.before) : self.length - len(self.after)], self.dtype) if alike else None


@dataclass(slots=True)
class KnownPatterns:
    """Reads packed texts one after the other, and remembers the patterns of those that it has read."""

    _known: dict[int, Pattern] = field(default_factory=dict)  # by length: the last one of each

    def unpack(self, text: str | bytes, *, where: str) -> Any:
        """As `unpack` of this package."""
        pickled = decompress(text, where=where)
        known = self._known.get(len(pickled))
        array = None if known is None else known.array_of(pickled)
        if known is not None and array is not None:
            return array.reshape(known.shape)
        read = unpickle(pickled, where=where)
        pattern = Pattern.of(pickled, read.value, read)
        if pattern is not None and len(pattern.before) + len(pattern.after) <= MAX_AROUND:
            if len(self._known) == MAX_PATTERNS:
                self._known.clear()
            self._known[pattern.length] = pattern
        return read.value
