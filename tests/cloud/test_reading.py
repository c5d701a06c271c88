"""Reading from S3, Google Cloud Storage and Azure: only what is needed, several parts at once, from a cache the next time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloud_servers import Cloud
from gymnasium.spaces import Box, Discrete
from requests_made import Requests

from offline_cli import open_dataset, record, write_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import StorageError
from offline_cli.storage.locations import open_location

pytestmark = pytest.mark.integration

MIB = 1 << 20
DATA = np.random.default_rng(0).bytes(20 * MIB)
Told = Callable[..., dict[str, Any]]
TRAIN = ("--updates", "12", "--batch-size", "128", "--val-fraction", "0.25", "--device", "cpu", "--seed", "5")
TIMES = ("run", "seconds", "samples_per_second")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local dataset of steps in several shards."""
    out = tmp_path_factory.mktemp("data") / "D"
    record("CartPole-v1", out, policy="random", episodes=60, num_env_runners=0, format="columns", max_rows_per_file=300)
    return out


def uploaded(folder: Path, cloud: Cloud) -> str:
    url, client = f"{cloud.bucket()}/D", cloud.client()
    for path in folder.rglob("*"):
        if path.is_file():
            client.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


def test_a_file_is_read_in_order_by_few_requests(s3: Cloud, requests: Requests) -> None:
    place = open_location(f"{s3.bucket()}/a")
    s3.client().pipe_file(place.url, DATA)
    requests.clear()
    with place.open() as file:
        assert b"".join(iter(lambda: file.read(300_000), b"")) == DATA
    assert len(requests.calls) <= 4


def test_a_file_that_is_replaced_while_it_is_read_is_a_storage_error(s3: Cloud) -> None:
    place = open_location(f"{s3.bucket()}/a")
    s3.client().pipe_file(place.url, DATA)
    with place.open() as file:
        file.read(100)
        s3.client().pipe_file(place.url, DATA[::-1])
        with pytest.raises(StorageError):
            file.read()


def test_a_large_shard_is_read_by_its_row_groups_and_columns(s3: Cloud, requests: Requests, tmp_path: Path) -> None:
    rng, steps = np.random.default_rng(0), 40_000
    spaces = {"observation_space": Box(-1, 1, (64,)), "action_space": Discrete(2)}
    batch = EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, steps // 2, steps]),
        obs=rng.random((steps + 2, 64), np.float32),
        actions=np.zeros(steps, np.int64),
        rewards=np.ones(steps),
        terminated=np.array([True, True]),
        truncated=np.array([False, False]),
        **spaces,
    )
    write_dataset(batch, tmp_path / "D", format="columns", action_scale="env", **spaces)
    dataset = open_dataset(uploaded(tmp_path / "D", s3))
    requests.clear()
    assert sum(one.num_steps for one in dataset.batches()) == steps
    assert len([name for method, name in requests.calls if method == "get_object"]) <= 6


@pytest.mark.nightly
def test_training_with_a_warm_cache_reads_no_shard_and_learns_the_same(
    s3: Cloud, requests: Requests, told: Told, local: Path, tmp_path: Path
) -> None:
    url = f"filecache::{uploaded(local, s3)}"
    settings = (f"cache_storage={tmp_path / 'cache'}", "check_files=true", f"s3={json.dumps(s3.options)}")
    option = tuple(word for one in settings for word in ("--storage-option", one))
    results = [told("train-bc", local, "--out", tmp_path / "local", *TRAIN)]
    results.append(told("train-bc", url, "--out", tmp_path / "cold", *TRAIN, *option))
    shards = len(list((local / "data").iterdir()))
    assert len([name for name in requests.gets if name.startswith("shard-")]) <= shards
    requests.clear()
    results.append(told("train-bc", url, "--out", tmp_path / "warm", *TRAIN, *option))
    assert [name for name in requests.gets if name.startswith("shard-")] == []
    assert [key for method, key in requests.calls if method == "get_object" and "shard-" in key] == []
    plain = [{name: value for name, value in found.items() if name not in TIMES} for found in results]
    assert plain[0] == plain[1] == plain[2]


def test_inspecting_a_dataset_reads_its_manifest_alone(s3: Cloud, requests: Requests, told: Told, local: Path) -> None:
    url = uploaded(local, s3)
    requests.clear()
    assert told("inspect", url)["episodes"] == 60
    assert [key.rpartition("/")[2] for method, key in requests.calls if method == "get_object"] == ["manifest.json"]
    assert len(requests.calls) <= 12
