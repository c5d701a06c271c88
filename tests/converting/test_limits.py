"""`--limit` reads what the first episodes need, not every file there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_bucket import FakeBucket
from made_recordings import made, write

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats import listing
from offline_cli.storage.locations import Location

FILES = 200
SOON = 40  # files that are looked at, read ahead and needed, together
KINDS = ("rllib-episodes", "sample-batch")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeBucket:
    """One episode a file, of the kind that the test names."""
    monkeypatch.setattr(listing, "LOOKED_AT", 10)
    write(request.param, tmp_path / "source", made(FILES, 3), files=FILES, block_rows=3)
    files = {f"bucket/source/{path.name}": path.read_bytes() for path in (tmp_path / "source").iterdir()}
    return FakeBucket.holding(files)


def episodes(bucket: FakeBucket, limit: int | None) -> EpisodeBatch:
    with read_episodes(Location(bucket, "bucket/source", "s3://bucket/source"), limit=limit) as stream:
        return EpisodeBatch.concat(list(stream))


@pytest.mark.parametrize("bucket", KINDS, indirect=True)
def test_three_episodes_of_two_hundred_objects_take_a_few_of_them(bucket: FakeBucket) -> None:
    assert len(episodes(bucket, 3)) == 3
    assert len({path for path, _, _ in bucket.gets}) <= SOON
