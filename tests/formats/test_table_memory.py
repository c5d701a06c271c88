"""Tables larger than memory: values are looked at without putting episodes together, and what is too long is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.opening import open_sources
from offline_cli.formats.tables import TableOptions, TableSource
from offline_cli.progress import Progress
from offline_cli.tally import Rejects, Tally

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


@pytest.mark.parametrize(("last_action", "looked_at"), [(0.5, 1), (6, 20)])
def test_where_values_say_nothing_only_the_first_rows_are_looked_at_for_their_shapes(
    last_action: float,
    looked_at: int,
    read_table: Callable[..., Any],
    write_lines: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    seen: list[int] = []
    values = TableSource.values

    def counting(self: TableSource) -> Generator[Any, None, None]:
        for obs, actions in values(self):
            seen.append(len(obs))
            yield obs, actions

    monkeypatch.setattr(TableSource, "values", counting)
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", 0)
    monkeypatch.setattr("offline_cli.formats.tables.files.MAX_ROWS", 1)
    table = pyarrow.csv.read_csv(write_lines("rides.csv", *rides(last_action)))
    pq.write_table(table, tmp_path / "rides.parquet")
    _, batch = read_table(tmp_path / "rides.parquet", MAPPING)
    assert sum(seen) == looked_at
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


def long_episode(rows: int) -> pa.Table:
    t = np.arange(rows)
    columns = {"ride": pa.nulls(rows, pa.string()).fill_null("seven"), "step": t, "x": t / 3, "y": t / 7, "push": t % 2}
    return pa.table({**columns, "end": t == rows - 1})


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_nothing_is_held_of_a_table_whose_episode_is_handed_on(kind: str, tmp_path: Path) -> None:
    table, path = long_episode(200_000), tmp_path / f"rides.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=50_000)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table.combine_chunks())
    (tmp_path / "map.toml").write_text(MAPPING, encoding="utf-8")
    (source,) = open_sources(path, from_="table", tables=TableOptions(str(tmp_path / "map.toml")))
    before = pa.total_allocated_bytes()
    with closing(source):
        for batch in (one.batch for one in source.fragments(Tally(), Rejects())):
            assert batch.num_steps == 200_000
            assert pa.total_allocated_bytes() - before < batch.nbytes
            break


def test_an_episode_without_an_id_that_is_too_long_for_the_limit_is_refused_by_its_first_row(
    read_table: Callable[..., Any], tmp_path: Path
) -> None:
    mapping = MAPPING.replace('eps_id = "ride"\n', "") + 'terminateds = "end"\n'
    pq.write_table(pa.concat_tables([long_episode(10), long_episode(600_000)]), tmp_path / "rides.parquet")
    with pytest.raises(MemoryLimitExceeded, match="too much for the memory limit") as caught:
        read_table(tmp_path / "rides.parquet", mapping, memory_limit=LEAST, episode_ends="flags")
    assert caught.value.where.startswith("the episode that begins at ")
    assert caught.value.where.endswith("rides.parquet row 10")
    assert "raise --memory-limit" in caught.value.fix
