"""Numbers keys in the order of their first appearance, in 16 bytes each however long they are; keys cannot be read back.

Keys are ids of episodes, or the columns that name the episode of a table's row. A key is known by a 96-bit hash of its values,
the same on every machine: two of 10^7 keys share one by a chance of 1 in 10^15. Hashes are kept in a few sorted arrays, each at
least twice as large as the next, and joined where that would not hold any more: looking up M keys is a few searches by whole
arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["KeyHashes", "KeyIndex", "key_hashes"]

SEEDS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
MISSING = np.uint64(0xA4093822299F31D0)  # mixed in for null, which is a key like any other
MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFT = np.uint64(31)
WORD = 8  # bytes
LONG = 256  # bytes of text; longer ones count by their digest, so that one of them does not widen all rows

Word = tuple[NDArray[np.uint64], NDArray[np.bool_] | np.bool_]
"""(M,) 8 bytes of each of M values, and which of the values have so many: a hash may not depend on values beside its own."""


@dataclass(frozen=True, slots=True)
class KeyHashes:
    """Two parts of the hash of each of M keys."""

    low: NDArray[np.uint64]  # (M,)
    high: NDArray[np.uint32]  # (M,)

    def taken(self, rows: NDArray[np.int64]) -> KeyHashes:
        return KeyHashes(self.low[rows], self.high[rows])


# ---- the index ----


@dataclass(frozen=True, slots=True)
class _Level:
    hashes: KeyHashes  # sorted by `low`
    numbers: NDArray[np.uint32]


@dataclass(slots=True)
class KeyIndex:
    """The number of every key seen."""

    _levels: list[_Level] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        """Keys seen."""
        return self._count

    def find(self, keys: KeyHashes) -> NDArray[np.int64]:
        """(M,) the numbers of M keys, -1 for those not seen."""
        found = np.full(len(keys.low), -1, np.int64)
        for level in self._levels:
            _look_up(level, keys, found)
        return found

    def numbers(self, keys: KeyHashes) -> NDArray[np.int64]:
        """(M,) the numbers of M distinct keys; those not seen before get the next ones, in their order."""
        found = self.find(keys)
        new = np.flatnonzero(found < 0)
        if len(new):
            found[new] = np.arange(self._count, self._count + len(new))
            self._count += len(new)
            self._add(_sorted_level(keys.taken(new), found[new].astype(np.uint32)))
        return found

    def _add(self, level: _Level) -> None:
        self._levels.append(level)
        while len(self._levels) > 1 and len(self._levels[-2].numbers) < 2 * len(self._levels[-1].numbers):
            last, before = self._levels.pop(), self._levels.pop()
            self._levels.append(_merged(before, last))


def _merged(before: _Level, last: _Level) -> _Level:
    at = np.searchsorted(before.hashes.low, last.hashes.low)
    low, high = np.insert(before.hashes.low, at, last.hashes.low), np.insert(before.hashes.high, at, last.hashes.high)
    return _Level(KeyHashes(low, high), np.insert(before.numbers, at, last.numbers))


def _sorted_level(keys: KeyHashes, numbers: NDArray[np.uint32]) -> _Level:
    order = np.argsort(keys.low)
    return _Level(keys.taken(order), numbers[order])


def _look_up(level: _Level, keys: KeyHashes, found: NDArray[np.int64]) -> None:
    """Write the numbers of those keys that are in the level into `found`."""
    left = np.arange(len(keys.low))
    at = np.searchsorted(level.hashes.low, keys.low)
    while len(left):  # more than once only where two keys share half a hash
        inside = at < len(level.numbers)
        left, at = left[inside], at[inside]
        same = level.hashes.low[at] == keys.low[left]
        left, at = left[same], at[same]
        equal = level.hashes.high[at] == keys.high[left]
        found[left[equal]] = level.numbers[at[equal]]
        left, at = left[~equal], at[~equal] + 1


# ---- hashes ----


def key_hashes(columns: Sequence[Any]) -> KeyHashes:
    """The hashes of M keys, given as pa.Arrays (M,): the columns that make up a key together."""
    with np.errstate(over="ignore"):
        halves = [np.full(len(columns[0]), seed, np.uint64) for seed in SEEDS]
        for column in columns:
            for word, present in _words(column):
                halves = [np.where(present, _mix(half ^ word, seed), half) for half, seed in zip(halves, SEEDS, strict=True)]
    return KeyHashes(halves[0], halves[1].astype(np.uint32))


def _mix(state: NDArray[np.uint64], seed: np.uint64) -> NDArray[np.uint64]:
    """One to one, so that keys of a single integer never share a hash."""
    for multiplier in MULTIPLIERS:
        state = (state ^ (state >> SHIFT)) * (multiplier ^ (seed << np.uint64(1)))
    return state ^ (state >> SHIFT)


def _words(column: Any) -> Iterator[Word]:
    """The values of a pa.Array, null as a word of its own."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    yield np.where(missing, MISSING, np.uint64(0)), np.True_
    for word, present in _value_words(column):
        yield word, present & ~missing


def _value_words(column: Any) -> Iterator[Word]:
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        whole = pa.uint64() if pa.types.is_uint64(column.type) else pa.int64()
        yield column.cast(whole).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64), np.True_
    elif pa.types.is_floating(column.type):
        floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        yield np.where(np.isnan(floats), np.nan, floats).view(np.uint64), np.True_  # one NaN of the many there are
    else:
        yield from _text_words(column)


def _text_words(column: Any) -> Iterator[Word]:
    """Lengths, and the bytes of texts filled up with zeros; what is not text counts as it is written."""
    binary = column if pa.types.is_large_binary(column.type) else _as_text(column).cast(pa.large_binary())
    binary = binary.fill_null(b"")
    lengths = np.diff(_offsets(binary))
    yield lengths.view(np.uint64), np.True_
    if len(lengths) and lengths.max() > LONG:
        binary = pa.array([_shortened(value) for value in binary.to_pylist()], pa.large_binary())
    offsets = _offsets(binary)
    widths = np.diff(offsets)
    rows = np.zeros((len(widths), -(-int(widths.max(initial=0)) // WORD) * WORD), np.uint8)
    stored = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    rows[np.arange(rows.shape[1]) < widths[:, None]] = stored[offsets[0] : offsets[-1]]
    for number, word in enumerate(rows.view(np.uint64).T):
        yield word, widths > number * WORD


def _as_text(column: Any) -> Any:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type)
    return column if is_text else column.cast(pa.string())


def _offsets(binary: Any) -> NDArray[np.int64]:
    stored = np.frombuffer(binary.buffers()[1], np.int64)
    return stored[binary.offset : binary.offset + len(binary) + 1]


def _shortened(value: bytes) -> bytes:
    return value if len(value) <= LONG else blake2b(value, digest_size=32).digest()
