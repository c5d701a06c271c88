"""One shard being written: whole under its name, or nothing, and not a word of it afterwards."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offline_cli.errors import StorageError
from offline_cli.files import staging
from offline_cli.files.locations import Location, open_location
from offline_cli.parquet import shard_writing
from offline_cli.parquet.shard_writing import ShardWriter

TABLE = pa.table({"x": list(range(1000))})


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python would print as "Exception ignored in"."""
    seen: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    return seen


def begun(folder: Location) -> ShardWriter:
    folder.join("data").make_folder()
    writer = ShardWriter(folder.join("data/a.parquet"), TABLE.schema, folder=folder, compression="none")
    writer.write(TABLE, rows=[100])
    return writer


def test_a_discarded_shard_leaves_nothing_and_says_nothing(place: Location, unraisable: list[Any]) -> None:
    writer = begun(place)
    writer.discard()
    del writer
    gc.collect()
    assert unraisable == []
    assert place.files() == []


def test_a_shard_that_was_committed_says_nothing_when_it_is_discarded(place: Location, unraisable: list[Any]) -> None:
    writer = begun(place)
    writer.commit()
    writer.discard()
    del writer
    gc.collect()
    assert unraisable == []
    assert place.join("data/a.parquet").exists()


def test_a_shard_on_a_full_disk_is_one_error_and_says_no_more(
    tmp_path: Path, unraisable: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    folder = open_location(tmp_path)
    folder.join("data").make_folder()
    monkeypatch.setattr(staging, "part_name", lambda name: f"_part-{name}")
    (tmp_path / "_part-a.parquet").symlink_to("/dev/full")
    writer = ShardWriter(folder.join("data/a.parquet"), TABLE.schema, folder=folder, compression="none")
    writer.write(TABLE, rows=[100])
    with pytest.raises(StorageError, match="no space left"):
        writer.commit()
    writer.discard()
    del writer
    gc.collect()
    assert unraisable == []
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_a_shard_whose_file_cannot_be_removed_says_so_once(place: Location, unraisable: list[Any]) -> None:
    writer = begun(place)

    def fail() -> None:
        raise PermissionError("no")

    writer._file._stage.discard = fail  # type: ignore[method-assign,union-attr]
    with pytest.raises(StorageError, match="denied"):
        writer.discard()
    del writer
    gc.collect()
    assert unraisable == []


def test_a_shard_of_which_a_table_failed_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its end is asked for."""
    place = open_location(tmp_path)
    table = pa.table({"a": range(1000)})
    writer = ShardWriter(place.join("a.parquet"), table.schema, folder=place, compression="zstd")
    real, calls = ShardWriter._append, list[int]()

    def append(self: Any, part: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "no space left")
        real(self, part)

    monkeypatch.setattr(ShardWriter, "_append", append)
    writer.write(table, rows=[1000])
    writer.write(table, rows=[1000])
    for end in (writer.settle, writer.commit, writer.settle, writer.commit):
        with pytest.raises(OSError, match="no space left"):
            end()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", [2, 65])
def test_a_file_of_many_columns_is_one_writers_with_the_bytes_that_several_would_have_made(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To join their footers would take longer than to encode them."""
    kind = pa.struct({f"x{i}": pa.list_(pa.float32(), 2) for i in range(columns - 1)})
    table = pa.table({"n": range(9), "s": pa.array([{f"x{i}": [0.5, k] for i in range(columns - 1)} for k in range(9)], kind)})
    digests = []
    for wide in (None, 1000):
        monkeypatch.setattr(shard_writing, "WIDE", wide or shard_writing.WIDE)
        writer = ShardWriter(open_location(tmp_path / "a"), table.schema, folder=open_location(tmp_path), compression="zstd")
        assert (writer._whole is not None) is (columns > 64 and wide is None)
        for _ in range(3):
            writer.write(table, rows=[4, 5])
        digests.append(writer.commit()[1])
    assert digests[0] == digests[1]
