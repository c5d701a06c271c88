"""Reading from S3, Google Cloud Storage and Azure: only what is needed, several parts at once, from a cache the next time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloud_servers import Cloud, found_by_environment
from fault_proxy import Fault, FaultProxy
from gymnasium import spaces
from requests_made import Requests

from offline_cli import EpisodeBatch, open_dataset, record, write_dataset
from offline_cli.errors import StorageError
from offline_cli.files.locations import open_location

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


@pytest.mark.nightly
def test_a_file_read_through_a_cache_is_fetched_once_until_it_changes(cloud: Cloud, requests: Requests, tmp_path: Path) -> None:
    place = open_location(f"{cloud.bucket()}/a", {"cache": tmp_path / "cache"})
    for data in (DATA, bytes(reversed(DATA))):
        cloud.client().pipe_file(place.url, data)
        requests.clear()
        for _ in range(2):
            with place.open() as file:
                assert file.read() == data
        assert sum(end - start for _, start, end in requests.ranges) == len(data)


def test_a_file_is_read_in_order_by_several_requests_at_once(cloud: Cloud, requests: Requests) -> None:
    place = open_location(f"{cloud.bucket()}/a")
    cloud.client().pipe_file(place.url, DATA)
    with place.open() as file:
        assert b"".join(iter(lambda: file.read(300_000), b"")) == DATA
    assert sum(end - start for _, start, end in requests.ranges) == len(DATA)


@pytest.mark.nightly
def test_training_with_a_warm_cache_reads_no_shard_and_learns_the_same(
    s3: Cloud, requests: Requests, told: Told, local: Path, tmp_path: Path
) -> None:
    url, option = uploaded(local, s3), ("--cache", tmp_path / "cache")
    results = [told("train-bc", local, "--out", tmp_path / "local", *TRAIN)]
    results.append(told("train-bc", url, "--out", tmp_path / "cold", *TRAIN, *option))
    shards = len(list((local / "data").iterdir()))
    assert len([name for name in requests.gets if name.startswith("shard-")]) == shards
    requests.clear()
    results.append(told("train-bc", url, "--out", tmp_path / "warm", *TRAIN, *option))
    assert [name for name in requests.gets if name.startswith("shard-")] == []
    assert [key for method, key in requests.calls if method == "get_object" and "shard-" in key] == []
    plain = [{name: value for name, value in found.items() if name not in TIMES} for found in results]
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.nightly
def test_convert_and_apply_take_the_cache_too(s3: Cloud, requests: Requests, told: Told, local: Path, tmp_path: Path) -> None:
    url, option = uploaded(local, s3), ("--cache", tmp_path / "cache", "--cache-size", "1GiB")
    pipeline = tmp_path / "pipeline.toml"
    pipeline.write_text('kind = "learner"\n')
    told("convert", url, "--out", tmp_path / "converted", *option)
    requests.clear()
    told("convert", url, "--out", tmp_path / "again", *option)
    told("apply", url, "--pipeline", pipeline, "--out", tmp_path / "batches", *option)
    assert [name for name in requests.gets if name.startswith("shard-")] == []


def test_inspecting_a_dataset_reads_its_manifest_alone(s3: Cloud, requests: Requests, told: Told, local: Path) -> None:
    url = uploaded(local, s3)
    requests.clear()
    assert told("inspect", url)["episodes"] == 60
    assert dict(requests.gets) == {"manifest.json": 1}
    assert len(requests.calls) <= 12


def test_a_shard_takes_a_question_and_a_range(s3: Cloud, requests: Requests, local: Path) -> None:
    dataset = open_dataset(uploaded(local, s3))
    requests.clear()
    assert sum(len(batch) for batch in dataset.batches()) == 60
    shards = len(dataset.manifest.shards)
    assert Counter(method for method, _ in requests.calls) == {"head_object": shards, "get_object": shards}


@pytest.mark.nightly
@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_an_episode_by_its_number_takes_one_row_group(s3: Cloud, requests: Requests, tmp_path: Path, format: Any) -> None:
    rng, lengths = np.random.default_rng(0), np.full(150, 20)
    batch = EpisodeBatch(
        ids=tuple(f"e{number}" for number in range(150)),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        obs=rng.normal(size=(150 * 21, 1000)).astype(np.float32),
        actions=np.zeros(3000, np.int64),
        rewards=np.arange(3000.0),
        terminated=np.ones(150, np.bool_),
        truncated=np.zeros(150, np.bool_),
        observation_space=spaces.Box(-np.inf, np.inf, (1000,), np.float32),
        action_space=spaces.Discrete(2),
    )
    write_dataset(batch, tmp_path / "D", format=format)
    dataset = open_dataset(uploaded(tmp_path / "D", s3))
    total = sum(shard.bytes for shard in dataset.manifest.shards)
    requests.clear()
    assert dataset[110].id_ == "e110"
    assert 0 < sum(end - start for _, start, end in requests.ranges) < total / 2
    requests.clear()
    assert [dataset[number].id_ for number in (111, 140)] == ["e111", "e140"]
    assert not requests.calls
    with iter(dataset) as episodes:
        assert next(episodes).id_ == "e0"


def test_columns_that_nobody_wants_stay_there(s3: Cloud, requests: Requests, tmp_path: Path) -> None:
    from offline_cli import convert

    lines = [json.dumps(row) for row in _rows(400)]
    (tmp_path / "steps.json").write_text("\n".join(lines))
    mapping = '[columns]\neps_id = "e"\nt = "t"\nobs = "o"\nactions = "a"\nrewards = "r"\n[extra]\nembedding = "x"\n'
    (tmp_path / "mapping.toml").write_text(mapping)
    convert(tmp_path / "steps.json", tmp_path / "D", to="columns", mapping=str(tmp_path / "mapping.toml"))
    dataset = open_dataset(uploaded(tmp_path / "D", s3))
    total = sum(shard.bytes for shard in dataset.manifest.shards)
    assert total > 2 * MIB
    requests.clear()
    assert sum(batch.num_steps for batch in dataset.batches(columns=[])) == 400
    assert sum(end - start for _, start, end in requests.ranges) < total / 2


def _rows(steps: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for t in range(steps):
        yield {"e": "one", "t": t, "o": [0.5, t], "a": t % 2, "r": 1.0, "x": rng.normal(size=2000).tolist()}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["reset", "answer"])
def test_one_cut_download_is_survived_and_what_is_cached_is_whole(
    s3_server: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    with FaultProxy(s3_server.port) as proxy, found_by_environment(s3_server.at(proxy.port), monkeypatch):
        place = open_location(f"{s3_server.bucket()}/a", {"cache": tmp_path / "cache"})
        s3_server.client().pipe_file(place.url, DATA)
        proxy.fault = Fault(
            kind, after=3 * MIB if kind == "reset" else 0, direction="down" if kind == "reset" else "up", times=1
        )
        for _ in range(2):
            with place.open() as file:
                assert file.read() == DATA


@pytest.mark.nightly
def test_a_server_that_stops_sending_ends_the_reading_in_time_and_nothing_half_is_kept(
    s3_server: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FaultProxy(s3_server.port) as proxy, found_by_environment(s3_server.at(proxy.port), monkeypatch):
        options = {"cache": tmp_path / "cache", "time_limit": 3}
        place = open_location(f"{s3_server.bucket()}/a", options)
        s3_server.client().pipe_file(place.url, DATA)
        proxy.fault = Fault("stall", after=3 * MIB, direction="down")
        began = time.monotonic()
        with pytest.raises(StorageError) as caught, place.open() as file:
            file.read()
        assert time.monotonic() - began < 15
        assert caught.value.where == place.url
        proxy.fault = None
        with open_location(place.url, {**options, "time_limit": 60}).open() as file:
            assert file.read() == DATA


@pytest.mark.nightly
def test_ctrl_c_ends_training_that_waits_for_a_server(s3_server: Cloud, local: Path, tmp_path: Path) -> None:
    with FaultProxy(s3_server.port) as proxy:
        url = uploaded(local, s3_server)
        proxy.fault = Fault("stall", after=60_000, direction="down")
        command = [sys.executable, "-m", "offline_cli", "train-bc", url, "--out", str(tmp_path / "run"), *TRAIN]
        environment = {**os.environ, **s3_server.at(proxy.port).environment}
        process = subprocess.Popen(
            [*command, "--cache", str(tmp_path / "cache")],
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background jobs ignore it
        )
        assert process.stderr is not None
        assert b"no answer for" in process.stderr.readline(), "it waits"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        told: list[bytes] = []
        for line in process.stderr:
            told.append(line)
            if b"interrupted" in line:
                break
        assert b"interrupted" in b"".join(told), told
        assert time.monotonic() - began < 5
        process.communicate(timeout=60)  # taking down an interpreter with torch in it takes seconds on a busy machine
        assert process.returncode == 130
