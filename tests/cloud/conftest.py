"""What the tests against cloud storage share: commands run in this process, and what they made, wherever it lies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cloud_servers import SERVERS, Cloud, found_by_environment
from fault_proxy import FaultProxy
from requests_made import requests as requests
from written_datasets import make_batch as make_batch

COMMITS = {"manifest.json", "batches.json"}


def stored(folder: Path | str, cloud: Cloud | None = None) -> dict[str, bytes]:
    """Every file below a folder, local or in a bucket, by its path there."""
    if cloud is None:
        root = Path(folder)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    client, root_path = cloud.client(skip_instance_cache=True), str(folder).partition("://")[2]
    return {path.removeprefix(root_path + "/"): client.cat_file(path) for path in client.find(root_path)}


@pytest.fixture(scope="session")
def assert_same_folder() -> Callable[..., None]:
    """A function that compares a local folder with one in a bucket: the same files and bytes, but for provenance in COMMITS.

    `overwritten`: shards have names of their own.
    """

    def same(local: Path, url: str, cloud: Cloud, *, overwritten: bool = False) -> None:
        here, there = stored(local), stored(url, cloud)
        if overwritten:
            here, there = _without_names(here), _without_names(there)
        assert sorted(there) == sorted(here)
        for commit in COMMITS & here.keys():
            documents = [json.loads(files.pop(commit)) for files in (here, there)]
            for document in documents:
                del document["provenance"]
            assert documents[0] == documents[1]
        assert there == here

    return same


def _without_names(files: dict[str, bytes]) -> dict[str, bytes]:
    for commit in COMMITS & files.keys():
        files[commit] = re.sub(rb"shard-[0-9a-f]{8}", b"shard", files[commit])
    return {re.sub("shard-[0-9a-f]{8}", "shard", path): data for path, data in files.items()}


@pytest.fixture(scope="session")
def assert_same_dataset(assert_same_folder: Callable[[Path, str, Cloud], None]) -> Callable[[Path, str, Cloud], None]:
    """As `assert_same_folder`, of what must be a dataset."""

    def same(local: Path, url: str, cloud: Cloud) -> None:
        assert (local / "manifest.json").is_file()
        assert_same_folder(local, url, cloud)

    return same


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Cloud:
    """The server of the provider that a test is for, reached directly."""
    found: Cloud = request.getfixturevalue(SERVERS[request.param])
    return found


@pytest.fixture
def proxy(server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A relay to that server, which clients in this process find by the environment."""
    with FaultProxy(server.port) as relay, found_by_environment(server.at(relay.port), monkeypatch):
        yield relay
