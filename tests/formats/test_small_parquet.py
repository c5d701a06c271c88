"""Small Parquet files, of which many are read at once: the same rows, places and losses as file by file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.files import locations
from offline_cli.files.locations import open_location
from offline_cli.formats import parquet_files, small_parquet
from offline_cli.formats.parquet_files import Chunk, chunks
from offline_cli.tally import OnError, Rejects

FILES = small_parquet.FEW + 70  # a few bunches of full size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """File n has the rows 10 n and 10 n + 1."""
    for number in range(FILES):
        write(tmp_path, number, pa.table({"a": [10 * number, 10 * number + 1]}))
    return tmp_path


def write(folder: Path, number: int, table: pa.Table) -> Path:
    path = folder / f"{number:05}.parquet"
    pq.write_table(table, path)
    return path


def read(folder: Path, **options: Any) -> tuple[list[Chunk], Rejects]:
    rejects = Rejects(OnError.SKIP)
    return list(chunks(open_location(str(folder)).files(), rejects, **options)), rejects


def rows_and_places(found: list[Chunk]) -> list[tuple[int, str]]:
    return [
        (value, Path(chunk.where(row)).name) for chunk in found for row, value in enumerate(chunk.table.column("a").to_pylist())
    ]


def assert_as_file_by_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Chunk], Rejects]:
    found, rejects = read(folder)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_files, "small_sizes", lambda _: None)
        wanted, wanted_rejects = read(folder)
    assert rows_and_places(found) == rows_and_places(wanted)
    assert [chunk.table.schema for chunk in found] == [chunk.table.schema for chunk in wanted]
    assert [chunk.lost_before for chunk in found] == [chunk.lost_before for chunk in wanted]
    assert [chunk.nbytes for chunk in found] == [chunk.nbytes for chunk in wanted]
    assert [chunk.files for chunk in found] == [chunk.files for chunk in wanted]
    assert (rejects.count, rejects.lost) == (wanted_rejects.count, wanted_rejects.lost)
    return found, rejects


def test_rows_of_many_small_files_come_in_order_each_with_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, rejects = assert_as_file_by_file(folder, monkeypatch)
    assert rows_and_places(found)[-1] == (10 * FILES - 9, f"{FILES - 1:05}.parquet row 1")
    assert rejects.count == 0


def test_processes_read_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_parquet, "MANY", FILES)
    monkeypatch.setattr(small_parquet, "processors", lambda: 2)
    (folder / "00300.parquet").write_bytes(b"PAR1 cut")
    _, rejects = assert_as_file_by_file(folder, monkeypatch)
    assert rejects.count == 1


@pytest.mark.parametrize("number", [0, 299, FILES - 1])
def test_a_damaged_file_among_small_ones_is_lost_alone(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / f"{number:05}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    found, rejects = assert_as_file_by_file(folder, monkeypatch)
    assert sum(chunk.table.num_rows for chunk in found) == 2 * (FILES - 1)
    assert rejects.count == 1


def test_small_files_of_other_columns_are_chunks_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 200, pa.table({"a": [2000, 2001], "b": ["x", "y"]}))
    write(folder, 300, pa.table({"a": pa.array([], pa.int64())}))
    found, _ = assert_as_file_by_file(folder, monkeypatch)
    assert [chunk.table.column_names for chunk in found] == [["a"], ["a", "b"], ["a"]]


def test_a_larger_file_among_small_ones_is_read_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 200, pa.table({"a": np.random.default_rng(1).integers(0, 1 << 60, 2 * small_parquet.LARGEST // 8)}))
    assert_as_file_by_file(folder, monkeypatch)


def test_what_a_bunch_has_no_room_for_is_read_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_parquet, "ROOM", 100)
    assert_as_file_by_file(folder, monkeypatch)


@pytest.mark.parametrize(("bound", "value"), [("ROWS", 101), ("BYTES", 1000)])
def test_joined_tables_end_at_the_same_files(bound: str, value: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, bound, value)
    found, _ = assert_as_file_by_file(folder, monkeypatch)
    assert len(found) > 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_among_small_files_is_refused_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "00200.parquet").unlink()
    os.mkfifo(folder / "00200.parquet")
    assert_as_file_by_file(folder, monkeypatch)


def test_who_wants_few_rows_has_few_files_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    start: Callable[..., tuple[bytes, int]] = locations.read_start

    def counted(path: str, most: int, *, shown: str) -> tuple[bytes, int]:
        opened.append(path)
        return start(path, most, shown=shown)

    monkeypatch.setattr(locations, "read_start", counted)
    first = next(iter(chunks(open_location(str(folder)).files(), Rejects(), first_rows=4)))
    assert first.table.num_rows == 4
    assert 2 <= len(opened) <= small_parquet.AHEAD + 4
