"""Small Parquet files, of which many are read at once: the same rows, places and losses as file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


@pytest.mark.parametrize("number", [0, 299, FILES - 1])
def test_a_damaged_file_among_small_ones_is_lost_alone(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / f"{number:05}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    found, rejects = assert_as_file_by_file(folder, monkeypatch)
    assert sum(chunk.table.num_rows for chunk in found) == 2 * (FILES - 1)
    assert rejects.count == 1
