"""Rows of a table in any order to tables of whole keys, in bounded memory.

Keys come out in the order of their first appearance in the source, rows within a key sorted by `order`, ties in source order:
the same rows in the same order, whatever the chunks, and whichever of three ways they take:

1. What fits into a share of the limit is held; it is sorted only where it is not in order.
2. Rows in order, across chunks and files too, stream through; only the open key is held. Whether they are in order is found by
   a first pass over the key columns, where a source can read these alone cheaply (`reread`).
3. Else rows are sorted on disk (`temp_runs.py`), written and read once, in the same order as in memory. A source that is
   expensive to parse (CSV, JSON) goes this way even where it is in order: that costs less than parsing it twice.

A single key that is too large for the limit raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from offline_cli.errors import BadData
from offline_cli.formats.memory_limits import give_back, room_for_data
from offline_cli.formats.tables.in_order import Footprint
from offline_cli.formats.tables.key_runs import KeyRuns, NumberedRows, put_together, tables_of
from offline_cli.formats.tables.temp_runs import TempBlocks, TempRuns, sorted_pieces
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.scopes import Scope, part_of
from offline_cli.stop_signals import check

__all__ = ["Chunks", "grouped"]

Chunks = Callable[..., Iterator[pa.Table]]
"""Reads a source from its start at every call; `columns=[...]`: only these, of the same rows."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bytes of rows that may be in memory at a time, as shares of what the whole conversion may take."""

    held: int  # before they go to disk
    run: int  # that go to disk together; sorting them takes as much again
    blocks: int  # of runs on disk that are being read
    piece: int  # in a table that comes out; what is made of it takes ten times as much
    key: Footprint  # of a single key, with all that is made of it

    @staticmethod
    def of(memory_limit: int, kept: Collection[str]) -> _Limits:
        room = room_for_data(memory_limit)
        return _Limits(
            held=min(room // 4, 1 << 30),
            run=min(room // 8, 64 << 20),
            blocks=room // 16,
            piece=min(room // 64, 16 << 20),
            key=Footprint(room, kept),
        )


def grouped(
    chunks: Chunks,
    *,
    by: Sequence[str],
    order: str | None,
    memory_limit: int,
    kept: Collection[str] = (),
    temp_dir: str | None = None,
    reread: bool = True,
    on_progress: OnProgress = no_progress,
    scope: Scope | None = None,
) -> Iterator[pa.Table]:
    """Tables in which all rows of every key are contiguous, sorted by `order` within a key, ties in source order.

    `by`: the columns that make up a key, at least one. `memory_limit`: bytes that the whole conversion may take. `kept`:
    columns that episodes keep, so that writing takes them several times. `temp_dir`: for rows on disk; None: the system's.
    `reread`: reading the key columns alone is cheap. Dictionary columns come out plain. `scope` owns these. Raises
    MemoryLimitExceeded for a key that is too large for the limit, StorageError where `temp_dir` is full.
    """
    limits, runs = _Limits.of(memory_limit, kept), KeyRuns(by, order)
    reading = runs.numbered(chunks())
    held: list[NumberedRows] = []
    everything = _hold(reading, held, limits.held)
    rows = chain(_drained(held), reading)
    if runs.in_order and (everything or (reread and _all_in_order(chunks, by, order))):
        yield from _whole_keys(rows, runs, limits)
    elif everything:
        # a table so far above a piece holds a single key; a generator's own loop would keep it alive
        yield from map(partial(_checked, runs, limits.key), sorted_pieces(held, order, piece_bytes=limits.piece))
    else:
        with part_of(scope) as owned:
            blocks = owned.enter(TempBlocks(temp_dir))
            yield from _sorted_on_disk(_reported(rows, on_progress), runs, order, limits, blocks)


def _hold(reading: Iterable[NumberedRows], held: list[NumberedRows], size: int) -> bool:
    """Append rows to `held` until they are larger than `size`; whether these are all there are."""
    for rows in reading:
        held.append(rows)
        size -= rows.table.nbytes
        if size < 0:
            return False
    return True


def _drained(held: list[NumberedRows]) -> Iterator[NumberedRows]:
    """Releases each entry as it is passed on."""
    held.reverse()
    while held:
        yield held.pop()


# ---- rows in order ----


def _all_in_order(chunks: Chunks, by: Sequence[str], order: str | None) -> bool:
    """Whether a whole source is in order; stops at the first chunk that does not."""
    wanted = [*by, *([order] if order is not None else [])]
    runs = KeyRuns(by, order)
    return all(runs.in_order for _ in runs.numbered(chunks(columns=wanted)))


def _whole_keys(reading: Iterable[NumberedRows], runs: KeyRuns, limits: _Limits) -> Iterator[pa.Table]:
    """Tables of rows in order, cut where a key ends."""
    begun: list[NumberedRows] = []  # of one key, which may continue
    footprint = limits.key.begun()
    for rows in reading:
        if not runs.in_order:
            raise BadData("rows changed while they were read", where="the table", fix="convert a copy of it")
        if begun and begun[-1].keys[-1] != rows.keys[0]:
            yield put_together(tables_of(begun))
        last_key = int(np.searchsorted(rows.keys, rows.keys[-1]))
        if last_key:
            begun.append(rows.slice(0, last_key))
            yield put_together(tables_of(begun))
        footprint = footprint if begun else footprint.begun()
        begun.append(rows.slice(last_key, len(rows.keys)))
        footprint.add(begun[-1].table)
        _check(footprint, runs, begun[-1].table)
    if begun:
        yield put_together(tables_of(begun))


def _bounded(parts: Iterable[NumberedRows], runs: KeyRuns, footprint: Footprint) -> Iterator[NumberedRows]:
    """The same; raises MemoryLimitExceeded once they are too many of a single key."""
    footprint, first = footprint.begun(), -1
    for part in parts:
        first = int(part.keys[0]) if first < 0 else min(first, int(part.keys[0]))
        footprint.add(part.table)
        if first == part.keys[-1]:
            _check(footprint, runs, part.table)
        yield part


def _checked(runs: KeyRuns, footprint: Footprint, table: pa.Table) -> pa.Table:
    """`table`, whose rows are one key where they are many. Raises MemoryLimitExceeded where they are too many."""
    footprint = footprint.begun()
    footprint.add(table)
    _check(footprint, runs, table)
    return table


def _check(footprint: Footprint, runs: KeyRuns, rows: pa.Table) -> None:
    """Raise MemoryLimitExceeded where the rows of one key, of which `rows` are some, are too large."""
    if footprint.is_too_large:
        raise footprint.error(where=runs.key_in_words(rows), fix="name a column that distinguishes its episodes")


# ---- rows on disk ----


def _sorted_on_disk(
    reading: Iterable[NumberedRows], runs: KeyRuns, order: str | None, limits: _Limits, blocks: TempBlocks
) -> Iterator[pa.Table]:
    spilled = TempRuns(blocks, memory=limits.blocks)
    _spill(reading, spilled, limits.run)
    runs.forget()
    for group in spilled.groups(limits.piece):
        parts = list(_bounded(group, runs, limits.key))
        yield from sorted_pieces(parts, order, piece_bytes=2 * limits.piece)
        give_back()


def _spill(reading: Iterable[NumberedRows], spilled: TempRuns, size: int) -> None:
    """Put all rows on disk, in runs of about `size` bytes."""
    run: list[NumberedRows] = []
    room = size
    for rows in reading:
        run.append(rows)
        room -= rows.table.nbytes
        if room < 0:
            spilled.add(run)
            room = size
            give_back()
    if run:
        spilled.add(run)


def _reported(reading: Iterable[NumberedRows], on_progress: OnProgress) -> Iterator[NumberedRows]:
    done = 0
    for rows in reading:
        check()
        yield rows
        done += len(rows.keys)
        on_progress(Progress("sorting", done, None, "rows"))
