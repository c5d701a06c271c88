"""Which lines can be read as one, and a group of lines as rows.

* `runs_of`: lines are alike that differ only in their numbers and how many steps they hold. This is a first look, at the names
  of columns and at the first value of each. Lines that are alike here may still turn out not to be when all values are read
  (`lines.NotAlike`).
* `GroupReader`: lines that are alike become rows together: each step of the work is done once for all of them. A line that is
  not like the one before it, and a line that only looked alike, is read by itself. The result is the same either way. Nothing
  is remembered between groups, so that any process can read any group.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.packed import KnownPatterns
from offline_cli.formats.sample_batch.files import Line
from offline_cli.formats.sample_batch.lines import PER_STEP, Batch, BatchReader, NotAlike
from offline_cli.formats.sample_batch.rows import LinePlace, PolicyRows, batches_of, parsed
from offline_cli.spaces import Space
from offline_cli.tally import Tally

__all__ = ["BatchLine", "GroupReader", "GroupRows", "runs_of", "steps_of"]


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a group, parsed."""

    place: LinePlace
    file: str
    batches: Mapping[str | None, Batch]  # by policy


def steps_of(columns: Mapping[str, Any]) -> int | None:
    """How many steps a batch has, where a plain list shows it."""
    first = next((columns[name] for name in PER_STEP if name in columns), None)
    return len(first) if type(first) is list else None


def runs_of(lines: Sequence[BatchLine]) -> Iterator[list[BatchLine]]:
    """The lines in their order, consecutive ones together that are alike."""

    def key(numbered: tuple[int, BatchLine]) -> Hashable:
        number, line = numbered
        kind = _kind_of(line)
        return line.place if kind is None else (line.place.number - number, line.file, kind)

    for _, run in groupby(enumerate(lines), key):
        yield [line for _, line in run]


def _kind_of(line: BatchLine) -> Hashable:
    """What lines must have in common to be read together; None for a line that is read by itself."""
    kinds = []
    for policy, batch in line.batches.items():
        is_counted = Columns.EPS_ID in batch.columns or len(line.batches) == 1  # ids are made up line by line
        if not batch.rows or not is_counted or _may_be_padded(batch):
            return None
        firsts = [type(value[0]) if type(value) is list and value else type(value) for value in batch.columns.values()]
        kinds.append((policy, *batch.columns, *firsts))
    return tuple(kinds) or None


def _may_be_padded(batch: Batch) -> bool:
    lengths = batch.columns.get(Columns.SEQ_LENS)
    if lengths is None:
        return False
    return not (type(lengths) is list and set(map(type, lengths)) == {int} and sum(lengths) == batch.rows)


@dataclass(slots=True)
class GroupRows:
    """What a group of lines holds, and what had to be assumed for it; all of it can be sent to another process."""

    found: list[tuple[int, PolicyRows | BadData]] = field(default_factory=list)
    """By the number of their (first) line, in order: rows of one policy, or why a line cannot be read."""
    tally: Tally = field(default_factory=Tally)  # assumptions and dropped columns only


@dataclass(slots=True)
class GroupReader:
    """Reads groups of lines of one source, in any order: the patterns it remembers only make it faster."""

    observation_space: Space | None = None  # distinguishes a Tuple from a list of rows
    action_space: Space | None = None
    _patterns: KnownPatterns = field(default_factory=KnownPatterns)

    def read(self, lines: Sequence[Line]) -> GroupRows:
        """The rows of each policy in `lines`; memory is taken for all of them at once."""
        with _no_search_for_cycles():
            return self._read(lines)

    def _read(self, lines: Sequence[Line]) -> GroupRows:
        group = GroupRows()
        for run in runs_of(list(_batch_lines(lines, group))):
            if len(run) == 1 or not self._read_together(run, group):
                for line in run:
                    self._read_alone(line, group)
        group.found.sort(key=lambda found: found[0])
        return group

    def _read_together(self, run: Sequence[BatchLine], group: GroupRows) -> bool:
        """Whether the lines of `run` could be read as one."""
        reader = self._reader(Tally())
        places = tuple(line.place for line in run)
        try:
            rows = [reader.read(policy, [line.batches[policy] for line in run], places) for policy in run[0].batches]
        except (BadData, NotAlike):
            return False
        group.found += [(run[0].place.number, policy_rows) for policy_rows in rows]
        group.tally.add(reader.tally)
        return True

    def _read_alone(self, line: BatchLine, group: GroupRows) -> None:
        reader = self._reader(group.tally)
        try:
            rows = [reader.read(policy, [batch], (line.place,)) for policy, batch in line.batches.items()]
        except BadData as error:
            group.found.append((line.place.number, error))
            return
        filled = [policy_rows for policy_rows in rows if policy_rows.rows]
        group.tally.assume("empty-batch", len(rows) - len(filled))
        group.found += [(line.place.number, policy_rows) for policy_rows in filled]

    def _reader(self, tally: Tally) -> BatchReader:
        return BatchReader(self._patterns, self.observation_space, self.action_space, tally)


def _batch_lines(lines: Sequence[Line], group: GroupRows) -> Iterator[BatchLine]:
    """The lines that hold batches; the others are put into `group`."""
    for number, line in enumerate(lines):
        try:
            batches = dict(batches_of(line, parsed(line), group.tally))
        except BadData as error:
            group.found.append((number, error))
            continue
        found = {}
        for policy, batch in batches.items():
            columns = {name: value for name, value in batch.items() if value is not None}
            where = line.where if policy is None else f"{line.where}, policy {policy!r}"
            found[policy] = Batch(columns, where, steps_of(columns))
        yield BatchLine(LinePlace(number, line.where, len(line.data)), line.file, found)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Within it, Python's garbage collector is off: JSON makes no cycles, and the search takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
