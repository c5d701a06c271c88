"""Tables larger than memory: values are looked at without putting episodes together, and what is too long is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.tables import TableSource
from offline_cli.progress import Progress

MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "y"]
actions = "push"
"""
LEAST = 256 << 20


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the table is read from now on: `episodes` or `values`, one after the other."""
    read: list[str] = []

    def count(name: str, kind: str) -> None:
        method = getattr(TableSource, name)

        def counting(self: TableSource, *args: Any) -> Iterator[Any]:
            read.append(kind)
            yield from method(self, *args)

        monkeypatch.setattr(TableSource, name, counting)

    count("fragments", "episodes")
    count("values", "values")
    return read


def rides(last_action: float) -> list[str]:
    rows = [f"ride-{ride},{step},{ride}.5,{step}.25,{step % 2}" for ride in range(4) for step in range(5)]
    return ["ride,step,x,y,push", *rows[:-1], f"ride-3,4,3.5,4.25,{last_action}"]


def test_categories_of_a_table_that_cannot_be_held_are_found_without_putting_it_together_twice(
    counted: list[str], read_table: Callable[..., Any], write_lines: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", 0)
    stream, batch = read_table(write_lines("rides.csv", *rides(last_action=6)), MAPPING)
    assert stream.action_space == spaces.Discrete(7)
    assert counted == ["episodes", "values"]
    assert (len(batch), batch.num_steps, stream.tally.rows_in) == (4, 20, 20)


def test_a_table_that_can_be_held_is_read_once(
    counted: list[str], read_table: Callable[..., Any], write_lines: Callable[..., Path]
) -> None:
    stream, _ = read_table(write_lines("rides.csv", *rides(last_action=6)), MAPPING)
    assert stream.action_space == spaces.Discrete(7)
    assert counted == ["episodes"]


def test_where_values_say_nothing_they_are_not_looked_at(
    counted: list[str], read_table: Callable[..., Any], write_lines: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", 0)
    stream, batch = read_table(write_lines("rides.csv", *rides(last_action=0.5)), MAPPING)
    assert isinstance(stream.action_space, spaces.Box)
    assert counted == ["episodes"]
    assert isinstance(batch, EpisodeBatch)
    assert batch.num_steps == 20


def test_a_limit_on_episodes_holds_for_their_spaces_too(
    read_table: Callable[..., Any], write_lines: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", 0)
    stream, batch = read_table(write_lines("rides.csv", *rides(last_action=6)), MAPPING, limit=3)
    assert stream.action_space == spaces.Discrete(2)
    assert len(batch) == 3


def test_a_row_of_csv_that_is_longer_than_a_block_ends_its_file(
    read_table: Callable[..., Any], write_lines: Callable[..., Path]
) -> None:
    """The episode before it may have had more rows."""
    header, *lines = rides(last_action=1)
    source = write_lines(
        "rides.csv", f"{header},note", *(f"{line}," for line in lines), f"ride-9,0,9.5,0.25,1,{'x' * (600 << 10)}"
    )
    with pytest.raises(BadData, match="a row of more than 256 KiB"):
        read_table(source, MAPPING, memory_limit=LEAST)
    stream, batch = read_table(source, MAPPING, memory_limit=LEAST, on_error="skip")
    assert stream.rejects.first[0].reason == "a row of more than 256 KiB"
    assert [name.rpartition("ride-")[2] for name in batch.ids] == ["0", "1", "2"]


def test_rows_that_are_sorted_on_disk_are_told_twice_as_they_go_there_and_as_they_come_back(
    read_table: Callable[..., Any], tmp_path: Path
) -> None:
    rows = 400_000
    order = np.random.default_rng(0).permutation(rows)
    columns = {"ride": order // 100, "step": order % 100, "x": order / 3, "y": order / 7, "push": order % 2}
    pq.write_table(pa.table(columns), tmp_path / "rides.parquet", row_group_size=50_000)
    told: list[Progress] = []
    read_table(tmp_path / "rides.parquet", MAPPING, memory_limit=LEAST, temp_dir=str(tmp_path), on_progress=told.append)
    sorting = [report.done for report in told if report.stage == "sorting"]
    reading = [report.done for report in told if report.stage == "reading"]
    assert sorting == sorted(sorting)
    assert sorting[-1] == rows
    assert reading == sorted(reading)
    assert len(reading) > 3
    assert 0 < reading[0] < reading[-1] // 2
