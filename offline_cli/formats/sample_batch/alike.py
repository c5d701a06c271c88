"""Which lines can be read as one; refuses lines that differ in anything but their numbers and how many steps they hold.

This is a first look, at the names of columns and at the first value of each. What is alike here may still turn out not to be
when all values are looked at (`lines.NotAlike`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from offline_cli.columns import Columns
from offline_cli.formats.sample_batch.lines import PER_STEP, Batch
from offline_cli.formats.sample_batch.rows import LinePlace

__all__ = ["BatchLine", "runs_of", "steps_of"]


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a group, parsed."""

    place: LinePlace
    file: str
    batches: Mapping[str | None, Batch]  # by policy


def steps_of(columns: Mapping[str, Any]) -> int | None:
    """How many steps a batch has, where that can be told from a plain list."""
    first = next((columns[name] for name in PER_STEP if name in columns), None)
    return len(first) if type(first) is list else None


def runs_of(lines: Sequence[BatchLine]) -> Iterator[list[BatchLine]]:
    """The lines in their order, those together that are alike and stand one right after the other."""

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
