"""Datasets of many shards in a bucket: parts of the manifest, and what a resumed write asks before it reads a shard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cloud_servers import Cloud
from requests_made import Requests

from offline_cli.checking.inspect import inspect
from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.datasets import shard_list
from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location

pytestmark = pytest.mark.nightly
MANY = 2_500  # three pages of a listing


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two shards, where there are more than three."""
    monkeypatch.setattr(shard_list, "LISTED", 3)
    monkeypatch.setattr(shard_list, "PER_PART", 2)


def write(url: str, batch: EpisodeBatch, **options: Any) -> None:
    spaces = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    given: dict[str, Any] = {"format": "episodes", "action_scale": "env", "max_rows_per_file": 1, **spaces, **options}
    with DatasetWriter(url, **given) as writer:
        writer.write(batch)
        writer.commit(episodes_lost=0)


def ids(url: str) -> list[str]:
    with open_dataset(url).batches() as batches:
        return [name for batch in batches for name in batch.ids]


def parts(url: str, s3: Cloud) -> tuple[list[str], list[str]]:
    """Those that the manifest lists, and those that are there."""
    client, folder = s3.client(skip_instance_cache=True), url.partition("://")[2]
    document = json.loads(client.cat_file(f"{folder}/manifest.json"))
    return (
        sorted(part["path"].rpartition("/")[2] for part in document.get("parts", [])),
        sorted(path.rpartition("/")[2] for path in client.find(f"{folder}/manifest/")),
    )


def test_parts_in_a_bucket_are_written_read_added_to_and_replaced(s3: Cloud, make_batch: Callable[..., EpisodeBatch]) -> None:
    bucket = s3.bucket()
    url, new = f"{bucket}/D", f"{bucket}/N"
    write(url, make_batch((3, 1, 5, 2, 4)))
    write(new, make_batch((2,), first_id=50))
    assert ids(url) == [f"episode-{number}" for number in range(5)]
    convert(new, url, append=True)
    listed, there = parts(url, s3)
    assert (len(listed), there) == (3, listed)
    assert len(ids(url)) == inspect(url, expect={"episodes": 6}).episodes
    s3.client().pipe_file(f"{url}/manifest/part-0123456789abcdef.json", b"{}")
    assert "leftover-file" in {problem.code for problem in validate(url, deep=True).problems}
    assert [name.rpartition("/")[2] for name in repair(url).removed] == ["part-0123456789abcdef.json"]
    write(url, make_batch((1, 1, 1, 1), first_id=80), overwrite=True)
    listed, there = parts(url, s3)
    assert (len(listed), there) == (2, listed)
    assert len(ids(url)) == 4


def test_inspect_of_parts_in_a_bucket_reads_the_manifest_alone(
    s3: Cloud, make_batch: Callable[..., EpisodeBatch], requests: Requests
) -> None:
    url = f"{s3.bucket()}/D"
    write(url, make_batch((3, 1, 5, 2, 4)))
    requests.clear()
    assert inspect(url).episodes == 5
    read = {key.rpartition("/")[2] for method, key in requests.calls if method == "get_object"}
    assert read | set(requests.gets) == {"manifest.json"}


def test_a_resumed_write_finds_its_shards_by_one_listing(s3: Cloud, requests: Requests) -> None:
    url = f"{s3.bucket()}/D"
    begun = TargetFolder(open_location(url), "a test")
    begun.begin({}, overwrite=False, resume=False)
    client = s3.client()
    client.pipe({f"{url}/data/shard-{begun.generation}-{number:06d}.parquet": b"PAR1" for number in range(MANY)})
    begun.leave()
    requests.clear()
    again = TargetFolder(open_location(url), "a test")
    again.begin({}, overwrite=False, resume=True)
    assert len(again.own_shards()) == MANY
    asked = Counter(method for method, _ in requests.calls)
    again.leave()
    assert asked["list_objects_v2"] <= 3 + 12  # pages; all else that a writer looks for
    assert sum(asked.values()) <= 40
