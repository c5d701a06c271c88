"""Rows that were lost, and which episodes lost those that no parser could read: what is left of their text may name one.

A row with a cell too few or too many has no columns, and the cell in the place of the id may be another one. Neighbours in the
file show whose it was only where the rows of each episode are contiguous. So both are noted while rows are read, and weighed
against each other once all have been.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.tables.ids import id_texts

__all__ = [
    "MOST",
    "REST_OF_FILE",
    "UNKNOWN_EPISODE",
    "Claims",
    "Losses",
    "cells_of_csv",
    "cells_of_json",
    "key_columns",
    "place_of",
    "position_of",
]

UNKNOWN_EPISODE: Final = "bad-row-of-unknown-episode"  # the assumption that it belonged to a neighbouring episode
SEVERAL: Final = 2  # rows that name one id, too many for chance
HEAD_BYTES: Final = 1 << 16  # of a broken line of JSON, in which its keys are looked for
MOST: Final = 1 << 16  # losses between different rows that are weighed; after these the neighbours are set aside too

REST_OF_FILE: Final = (1 << 40) - 1  # a row number after those that a file has

Key = tuple[Any, ...]


@dataclass(slots=True)
class Losses:
    """Rows that went to the rejects, so that their episodes can be set aside whole."""

    keys: dict[tuple[Any, ...], str] = field(default_factory=dict)  # by key values: the place of the first lost row
    _places: array[int] = field(default_factory=lambda: array("q"))  # positions of lost rows of unknown episodes
    count: int = 0  # rows, and files of which no more could be read

    def add(self, file: int, row: int) -> None:
        """A lost row of unknown episode; one of several between the same two good rows is enough."""
        self._places.append(position_of(file, min(row, REST_OF_FILE)))

    def upto(self, position: int | None) -> NDArray[np.int64]:
        """(L,) the positions of those rows before `position`, or of all."""
        places = np.array(self._places, np.int64)
        return places if position is None else places[: np.searchsorted(places, position)]

    def forget(self, position: int) -> None:
        """Keep none of those before `position`."""
        del self._places[: bisect_left(self._places, position)]


def position_of(file: Any, row: Any) -> Any:
    """Of a row, or of an array of them, among those of all files."""
    return file * (REST_OF_FILE + 1) + row


def place_of(position: int, urls: Sequence[str]) -> str:
    """A position as text."""
    file, row = divmod(position, REST_OF_FILE + 1)
    return urls[file] if row == REST_OF_FILE else f"{urls[file]} row {row}"


def cells_of_csv(raw: bytes, delimiter: str, names: Sequence[str], wanted: Collection[str]) -> dict[str, str] | None:
    """The cells of `wanted` columns in a row of another length than the header's; None where it ends within one of them."""
    try:
        rows = list(csv.reader(io.StringIO(raw.decode(), newline=""), delimiter=delimiter))
    except (csv.Error, UnicodeDecodeError):
        return None
    places = {name: names.index(name) for name in wanted if name in names}
    if len(rows) != 1 or len(places) < len(wanted) or max(places.values()) + 1 >= len(rows[0]):
        return None
    return {name: rows[0][place] for name, place in places.items()}


def cells_of_json(raw: bytes, wanted: Collection[str]) -> dict[str, str] | None:
    """The texts and whole numbers of `wanted` keys in a broken line, where they stand once, before any object within it."""
    text = raw[:HEAD_BYTES].decode("utf-8", "replace")
    found = {}
    for name in wanted:
        matches = list(re.finditer(rf'"{re.escape(name)}"\s*:\s*(?:"([^"\\]*)"|(-?[0-9]+))\s*[,}}]', text))
        before = text[: matches[0].start()] if matches else ""
        if len(matches) != 1 or not before.lstrip().startswith("{") or before.count("{") + before.count("}") != 1:
            return None
        found[name] = matches[0][1] if matches[0][1] is not None else matches[0][2]
    return found


def key_columns(
    cells: Mapping[str, str], keys: Mapping[str, tuple[str, pa.DataType]], nulls: Collection[str]
) -> dict[str, pa.Array] | None:
    """Our key columns of the one row that has these cells; None where they hold no id."""
    columns = {}
    for ours, (theirs, kind) in keys.items():
        cell = pa.array([None if cells[theirs] in ("", *nulls) else cells[theirs]], pa.large_string())
        try:
            columns[ours] = id_texts(cell, untyped=True) if kind == pa.large_string() else cell.cast(kind)
        except pa.ArrowException:
            return None
    return None if columns[Columns.EPS_ID].null_count else columns


@dataclass(slots=True)
class Claims:
    """Lost rows, by the key that their text names and the keys of the good rows before and after them."""

    _places: dict[tuple[Key, Key, Key], str] = field(default_factory=dict)  # (named, before, after): the place of the first
    _times: Counter[tuple[Key, Key, Key]] = field(default_factory=Counter)
    _beside: dict[Key, str] = field(default_factory=dict)  # neighbours of rows beyond `MOST`
    _open: dict[tuple[Key, Key], str] = field(default_factory=dict)  # (named, before), with no good row after them yet
    _open_times: Counter[tuple[Key, Key]] = field(default_factory=Counter)
    _nameless: int = 0

    def add(self, named: Key, before: Key, place: str) -> None:
        """A lost row; `named`: () where its text names none, `before`: () where no episode continues there."""
        if named:
            self._open.setdefault((named, before), place)
            self._open_times[named, before] += 1
        else:
            self._nameless += 1

    def close(self, after: Key) -> None:
        """The next good row is of the key `after`; () where there is none."""
        for (named, before), place in self._open.items():
            loss = named, before, after
            if loss not in self._places and len(self._places) >= MOST:
                self._beside |= {key: place for key in (before, after) if key and key not in self._beside}
                loss = named, (), ()
            self._places.setdefault(loss, place)
            self._times[loss] += self._open_times[named, before]
        self._open.clear()
        self._open_times.clear()

    def __bool__(self) -> bool:
        """Whether any row was lost."""
        return bool(self._nameless or self._places or self._open)

    @property
    def named(self) -> set[Key]:
        """The keys that lost rows name."""
        return {named for named, _, _ in self._places}

    def settled(self, known: Collection[Key], *, together: bool) -> tuple[dict[Key, str], int]:
        """The keys that lost rows, with the place of the first, and how many rows have an unknown key.

        An id that good rows have, or several lost ones, is believed, unless the neighbours contradict it: contiguous rows
        leave room for it only between two episodes, where no good row has it.
        """
        lost, unknown = dict(self._beside), 0 if together else self._nameless
        total, gaps = Counter[Key](), Counter(named for named, _, _ in self._places)
        for (named, _, _), times in self._times.items():
            total[named] += times
        for loss, place in self._places.items():
            named, *beside = loss
            is_likely = named in known or total[named] >= SEVERAL
            whose = beside
            if not together:
                whose = [named] if is_likely else beside
                unknown += 0 if is_likely else self._times[loss]
            elif named in known and named not in beside:
                unknown += self._times[loss]
            elif named not in known and is_likely and gaps[named] == 1 and beside[0] != beside[1]:
                whose = [named]
            for key in filter(None, whose):
                lost.setdefault(key, place)
        return lost, unknown
