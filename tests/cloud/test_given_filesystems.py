"""Filesystem objects that a program hands over: the real classes of `pyarrow.fs` and fsspec, against their servers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import KEYS, Cloud
from pyarrow import fs as arrow_fs

from offline_cli import convert, inspect, open_dataset, open_location, record, validate
from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.storage.locations import Location, expand
from offline_cli.storage.staging import StagedFile, whole_file, write_whole

pytestmark = pytest.mark.integration


def arrow_s3(port: int) -> Any:
    keys = {"access_key": KEYS["AWS_ACCESS_KEY_ID"], "secret_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    return arrow_fs.S3FileSystem(**keys, endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1")


def arrow_gcs(port: int) -> Any:
    how: dict[str, Any] = {"scheme": "http", "project_id": "test", "retry_time_limit": timedelta(seconds=5)}
    return arrow_fs.GcsFileSystem(anonymous=True, endpoint_override=f"127.0.0.1:{port}", **how)


@pytest.fixture(params=["pyarrow-s3", "pyarrow-gcs", "pyarrow-of-s3fs", "s3fs", "subtree-of-s3"])
def place(request: pytest.FixtureRequest) -> Location:
    """An empty folder in a new bucket, by each class."""
    kind = request.param
    server: Cloud = request.getfixturevalue("gcs_server" if "gcs" in kind else "s3_server")
    bucket = server.bucket().partition("://")[2]
    if kind == "subtree-of-s3":
        return open_location("D", filesystem=arrow_fs.SubTreeFileSystem(bucket, arrow_s3(server.port)))
    filesystem = {
        "pyarrow-s3": lambda: arrow_s3(server.port),
        "pyarrow-gcs": lambda: arrow_gcs(server.port),
        "pyarrow-of-s3fs": lambda: arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(server.client())),
        "s3fs": server.client,
    }[kind]()
    return open_location(f"{bucket}/D", filesystem=filesystem)


def test_a_dataset_is_recorded_read_checked_and_converted_there(place: Location, tmp_path: Path) -> None:
    told = record("CartPole-v1", place, policy="random", episodes=3, num_env_runners=0, format="columns")
    assert (open_dataset(place).manifest.counts.episodes, inspect([place]).steps) == (3, told.steps)
    assert validate(place, deep=True).passed
    assert convert([place], tmp_path / "here").steps == told.steps
    assert convert(tmp_path / "here", place.join("copy")).episodes == 3
    assert open_dataset(place.join("copy")).manifest.counts.steps == told.steps


def test_recordings_are_found_by_folder_and_by_pattern(place: Location, tmp_path: Path) -> None:
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=4, num_env_runners=0, max_rows_per_file=2)
    for name, shard in zip(("in/a.parquet", "in/deeper/b.parquet"), sorted((tmp_path / "D" / "data").iterdir()), strict=True):
        write_whole(place.join(name), shard.read_bytes(), folder=place)
    assert [one.name for one in place.join("in").files()] == ["a.parquet", "b.parquet"]
    assert [one.name for one in expand(place.join("in/*.parquet"))] == ["a.parquet"]
    assert inspect([place.join("in")]).episodes == 4


def test_a_large_file_has_its_name_when_it_is_whole_and_is_read_in_parts(place: Location) -> None:
    size = 10 << 20 if "gcs" not in place.url else 256 << 10  # the emulator serves one request at a time, all of it
    data, target = bytes(range(256)) * (size >> 8), place.join("a")
    file = StagedFile(target, folder=place)
    file.write(data)
    assert not target.exists()
    file.commit()
    with target.open() as stream:
        assert (stream.seek(-3, 2), stream.read(), stream.seek(5), stream.read(4)) == (len(data) - 3, data[-3:], 5, data[5:9])
    assert (target.size(), target.read_bytes() == data, target.start(7)) == (len(data), True, (data[:7], len(data)))
    target.remove()
    assert (target.exists(), whole_file(target)) == (False, None)


def test_a_missing_bucket_is_a_storage_error_for_reading_and_writing(place: Location) -> None:
    nowhere = open_location("no-such-bucket-here/D", filesystem=place.fs)
    with pytest.raises(StorageNotFound):
        expand(nowhere)
    with pytest.raises(StorageError):
        record("CartPole-v1", nowhere, policy="random", episodes=1, num_env_runners=0)
