"""Row groups that are read several at once, and come as the tables that one at a time would give."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.files.locations import open_location
from offline_cli.parquet import safety
from offline_cli.parquet.shards import OpenShard, opened, read_row_groups

ROWS = 100


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Ten row groups, with an id of its own each."""
    ids = [f"episode-{row // ROWS}" for row in range(10 * ROWS)]
    pq.write_table(pa.table({"eps_id": ids, "x": range(10 * ROWS)}), tmp_path / "a.parquet", row_group_size=ROWS)
    return tmp_path / "a.parquet"


def asked(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> tuple[pa.Table, list[list[int]]]:
    """All rows, and which row groups were asked for together."""
    real, groups = OpenShard.row_groups, list[list[int]]()

    def noting(file: OpenShard, wanted: list[int], *more: object) -> pa.Table:
        groups.append(list(wanted))
        return real(file, wanted, *more)

    monkeypatch.setattr(OpenShard, "row_groups", noting)
    place = open_location(path)
    with opened(place) as file:
        tables = list(read_row_groups(file, place, numbered=["eps_id"], at_once=at_once))
    return pa.concat_tables([table.cast(pa.schema({"eps_id": pa.string(), "x": pa.int64()})) for table in tables]), groups


def test_small_row_groups_come_together_as_far_as_memory_is_given(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, groups = asked(shard, monkeypatch, 4 * ROWS * (5 + 8 + 8))
    assert table == pq.read_table(shard)
    assert [number for run in groups for number in run] == list(range(10))
    assert 2 <= len(groups) <= 5


def test_one_that_takes_more_than_is_given_comes_alone(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, groups = asked(shard, monkeypatch, 1)
    assert table == pq.read_table(shard)
    assert groups == [[number] for number in range(10)]


def test_one_that_may_be_beyond_the_bound_comes_alone(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = safety._at_most

    def most(opening: object, metadata: object, plain: int, texts: list[safety._Texts], enough: int) -> int:
        beyond = safety.MAX_BYTES + 1 if any(text.group == 3 for text in texts) else 0
        return max(beyond, real(opening, metadata, plain, texts, enough))  # type: ignore[arg-type]

    monkeypatch.setattr(safety, "_at_most", most)
    table, groups = asked(shard, monkeypatch, 1 << 20)
    assert table == pq.read_table(shard)
    assert groups == [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9]]


def test_what_repeats_in_them_is_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long id in all rows takes nothing in the file, and may take 20 MB in each row group once a reader needs the texts."""
    rows = 10_000
    ids = pa.array([f"{'y' * 600}{row // rows}" for row in range(6 * rows)])
    pq.write_table(pa.table({"eps_id": ids, "x": range(6 * rows)}), tmp_path / "a.parquet", row_group_size=rows)
    groups = asked(tmp_path / "a.parquet", monkeypatch, 64 << 20)[1]
    assert groups == [[0, 1, 2], [3, 4, 5]]
