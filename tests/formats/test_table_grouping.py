"""Grouping gives the rows that a plain sort gives, for any keys, order and chunks, in memory, streaming and on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.tables import grouping, temp_runs
from offline_cli.formats.tables.grouping import grouped
from offline_cli.parquet.arrow_trees import without_dictionaries

PLENTY = 1 << 30

KEYS = {
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ab", "a\0", "ä", "x" * 300, "x" * 301, "ride-1", "ride-2"])),
    "integers": (pa.int64(), st.sampled_from([0, 1, -1, -2, 2**62, -(2**63)])),
    "small unsigned integers": (pa.uint8(), st.integers(0, 5)),
    "large unsigned integers": (pa.uint64(), st.sampled_from([0, 2**63, 2**64 - 1])),
    "floats": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")])),
    "booleans": (pa.bool_(), st.booleans()),
    "categories": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["red", "green", "blue"])),
    "days": (pa.date32(), st.integers(0, 4)),
}
ORDERS = {
    "integers": (pa.int32(), st.integers(-3, 3)),
    "large integers": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 2**63 - 1])),
    "unsigned integers": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "floats": (pa.float32(), st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf")])),
    "times": (pa.timestamp("us"), st.integers(0, 5)),
    "text": (pa.string(), st.sampled_from(["a", "b", "ba"])),
}


class Source:
    """A table in chunks, read from its start at every call."""

    def __init__(self, table: pa.Table, sizes: Sequence[int]) -> None:
        self.table, self.sizes = table, sizes
        self.read: list[Any] = []  # the `columns` of every reading

    def __call__(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        self.read.append(columns)
        table = self.table if columns is None else self.table.select(columns)
        at = 0
        for size in self.sizes:
            yield table.slice(at, size)
            at += size
        yield table.slice(at)


@st.composite
def sources(draw: st.DrawFn) -> tuple[Source, list[str], str | None]:
    """A source, its key columns and its order column."""
    rows = draw(st.integers(0, 40))
    columns: dict[str, Any] = {}
    by = [f"key{i}" for i in range(draw(st.integers(1, 2)))]
    for name in by:
        kind, values = KEYS[draw(st.sampled_from(sorted(KEYS)))]
        columns[name] = pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), kind)
    order = None
    if draw(st.booleans()):
        kind, values = ORDERS[draw(st.sampled_from(sorted(ORDERS)))]
        columns["at"] = pa.array(
            draw(st.lists(values | st.none() if draw(st.booleans()) else values, min_size=rows, max_size=rows)), kind
        )
        order = "at"
    columns["payload"] = pa.array(
        [bytes([row]) * width for row, width in enumerate([3, 0, 500, 40, 200] * 12)][:rows], pa.binary()
    )
    columns["__row"] = pa.array(range(rows), pa.int64())
    table = pa.table(columns)
    if draw(st.booleans()):  # rows that stand in order are the other half of the ways
        table = expected(table, by, order)
        table = table.set_column(table.num_columns - 1, "__row", pa.array(range(rows), pa.int64()))
    return Source(table, draw(st.lists(st.integers(0, 20), max_size=6))), by, order


def little(source: Source) -> int:
    """A limit that holds any one key, joined, but about half of the rows before they go to disk, in several groups."""
    return 9 * sum(column.nbytes for column in without_dictionaries(source.table).columns) + 100


def key_of(row: dict[str, Any], by: Sequence[str]) -> tuple[str, ...]:
    """Values that are equal where the keys are."""
    return tuple("0.0" if row[name] == 0 and isinstance(row[name], float) else repr(row[name]) for name in by)


def expected(table: pa.Table, by: Sequence[str], order: str | None) -> pa.Table:
    """Keys by first appearance, rows by `order` with null last, ties as they stand: a plain Python sort."""
    rows = table.to_pylist()
    first: dict[tuple[str, ...], int] = {}
    for row in rows:
        first.setdefault(key_of(row, by), len(first))

    def place(number: int) -> tuple[Any, ...]:
        row = rows[number]
        value = None if order is None else row[order]
        return first[key_of(row, by)], order is not None and value is None, 0 if value is None else value, number

    return table.take(pa.array(sorted(range(len(rows)), key=place), pa.int64()))


def rows_of(tables: Sequence[pa.Table]) -> list[int]:
    return [row for table in tables for row in table.column("__row").to_pylist()]


@settings(max_examples=40, deadline=None)
@given(sources(), st.booleans(), st.booleans())
def test_rows_come_out_as_a_plain_sort_has_them(case: tuple[Source, list[str], str | None], plenty: bool, reread: bool) -> None:
    source, by, order = case
    limit = PLENTY if plenty else little(source)
    tables = list(grouped(source, by=by, order=order, memory_limit=limit, reread=reread))
    assert rows_of(tables) == rows_of([expected(source.table, by, order)])
    for table in tables:
        assert table.column("payload").to_pylist() == source.table.column("payload").take(table.column("__row")).to_pylist()
        assert not any(pa.types.is_dictionary(kind) for kind in table.schema.types)


# ---- which way ----


def steps(episodes: int, length: int, *, shuffled: bool) -> Source:
    """Steps with 100 bytes each, in 13 chunks."""
    rows = [(f"e{i}", t) for i in range(episodes) for t in range(length)]
    if shuffled:
        rows = [rows[i * 7919 % len(rows)] for i in range(len(rows))]  # a prime that the number of rows is no multiple of
    columns = {"id": [name for name, _ in rows], "t": [t for _, t in rows], "pad": [os.urandom(100) for _ in rows]}
    table = pa.table({**columns, "__row": range(len(rows))})
    return Source(table, [len(rows) // 13] * 12)


def on_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the runs that went to disk from now on."""
    runs: list[int] = []
    add = temp_runs.TempRuns.add

    def counted(self: temp_runs.TempRuns, rows: list[Any]) -> None:
        runs.append(sum(len(part.keys) for part in rows))
        add(self, rows)

    monkeypatch.setattr(grouping.TempRuns, "add", counted)
    return runs


def test_many_rows_out_of_order_go_to_disk_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = on_disk(monkeypatch)
    source = steps(100, 20, shuffled=True)
    tables = list(grouped(source, by=["id"], order="t", memory_limit=400_000))
    assert len(runs) > 3
    assert sum(runs) == 2000
    assert rows_of(tables) == rows_of([expected(source.table, ["id"], "t")])


# ---- what is refused, and what is left behind ----


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_episode_that_is_too_large_for_the_limit_is_refused_by_name(shuffled: bool) -> None:
    source = steps(1, 2000, shuffled=shuffled)
    with pytest.raises(MemoryLimitExceeded) as caught:
        list(grouped(source, by=["id"], order="t", memory_limit=100_000))
    assert caught.value.where == "id = e0"
    assert "--memory-limit" in caught.value.fix


def test_a_source_that_changes_while_it_is_read_is_refused() -> None:
    source = steps(100, 20, shuffled=False)

    def changing(columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        if columns is not None:
            yield from source(columns)
        else:
            yield source.table.slice(0, 1000)
            yield source.table.slice(0, 1000)

    with pytest.raises(BadData):
        list(grouped(changing, by=["id"], order="t", memory_limit=100_000))


def test_the_folder_for_temporary_files_is_empty_while_rows_are_on_disk_and_afterwards(tmp_path: Path) -> None:
    tables = grouped(steps(100, 20, shuffled=True), by=["id"], order="t", memory_limit=100_000, temp_dir=str(tmp_path))
    next(tables)
    assert open_files_below(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    list(tables)
    assert open_files_below(tmp_path) == 0


def open_files_below(folder: Path) -> int:
    listed = Path("/proc/self/fd")
    if not listed.exists():
        pytest.skip("this system does not list open files")
    links = [os.readlink(entry) for entry in listed.iterdir() if entry.is_symlink()]
    return sum(link.startswith(str(folder)) for link in links)
