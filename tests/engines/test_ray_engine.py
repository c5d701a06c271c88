"""The engine `ray`: what workers of a cluster do is what this process does, whichever of them die; nothing is left behind.

OFFLINE_CLI_KILLS says how many workers and nodes are killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import engine_tasks as tasks
import numpy as np
import pytest
import slow_reader
from operated import data_files, manifest

import offline_cli
from offline_cli.converting.convert import convert
from offline_cli.engines import ray_engine
from offline_cli.engines.engine import Engine, EngineSpec
from offline_cli.errors import ClusterLost
from offline_cli.recording.record import record

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
KILLS = max(1, int(os.environ.get("OFFLINE_CLI_KILLS", "8")) // 2)  # during convert, and as many during record
LIMIT = 120  # seconds for one command
FILES = 56
PLAYED: dict[str, Any] = {"policy": "random", "vectorize": "sync", "num_envs": 1, "episodes": 600, "max_rows_per_file": 50}


@pytest.fixture
def ray(cluster: Any) -> dict[str, Any]:
    return {"engine": "ray", "engine_address": cluster.address, "workers": 2}


@pytest.fixture
def engine(cluster: Any) -> Iterator[Engine]:
    with EngineSpec("ray", 2, cluster.address).engine() as found:
        yield found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recording that is read slowly, and the dataset that this process makes of it."""
    folder = tmp_path_factory.mktemp("slow")
    source = slow_reader.written(folder / "source", FILES)
    convert(str(source), folder / "here", from_="python:slow_reader:SLOW", max_rows_per_file=16)
    return source, folder / "here"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this process records of an environment that takes its time."""
    out = tmp_path_factory.mktemp("played") / "here"
    record("recording_envs:Slow-v0", out, **PLAYED)
    return out


def command(source: Path, out: Path, ray: dict[str, Any], *more: str) -> subprocess.Popen[str]:
    words = ["convert", str(source), "--from", "python:slow_reader:SLOW", "--out", str(out), "--max-rows-per-file", "16"]
    return started([*words, *more], ray)


def recorder(out: Path, ray: dict[str, Any], *more: str) -> subprocess.Popen[str]:
    words = [word for name, value in PLAYED.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return started(["record", "recording_envs:Slow-v0", "--out", str(out), *words, *more], ray)


def started(words: list[str], ray: dict[str, Any], env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    where = ["--engine", "ray", "--engine-address", str(ray["engine_address"]), "--workers", "2"]
    line = [sys.executable, "-m", "offline_cli", *words, *where, "--quiet"]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=env)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, said


def begun(out: Path, process: subprocess.Popen[str], shards: int = 1) -> None:
    """Wait until so many shards are there."""
    until = time.monotonic() + LIMIT
    while len([*out.glob("data/*.parquet")]) < shards:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no shard was written"
        time.sleep(0.05)


def assert_same(here: Path, there: Path) -> None:
    assert data_files(here) == data_files(there)
    assert manifest(here) == manifest(there)


# ---- the engine ----


def test_results_come_in_order_and_an_error_in_its_turn(engine: Engine) -> None:
    found = list(engine.streamed(tasks.counted, range(20)))
    assert found == [(number, part) for number in range(20) for part in range(number % 4)]
    array = list(engine.streamed(tasks.arrays, range(3)))[-1]["values"]
    np.testing.assert_array_equal(array, np.arange(2002))
    assert array.flags.writeable
    results = engine.streamed(tasks.inverses, [4, 0, 1])
    assert [next(results), next(results), next(results)] == [4, 0.25, 0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_worker_that_dies_costs_its_item_and_one_that_always_dies_ends_the_work(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = list(engine.streamed(partial(tasks.dies_once, str(tmp_path)), range(5)))
    assert found == [10 * number + part for number in range(5) for part in range(3)]
    assert "part 2 is done again (2 of 6)" in caplog.text
    with pytest.raises(ClusterLost, match="part 1 of the work ended 6 workers") as raised:
        list(engine.streamed(tasks.dies, range(3)))
    assert " on node " in raised.value.what


def test_other_versions_on_a_worker_are_told_with_the_node(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_version", lambda: "9.9.9")
    spec = EngineSpec("ray", 1, cluster.address)
    with spec.engine() as engine, pytest.raises(offline_cli.errors.MissingPackage) as raised:
        list(engine.streamed(tasks.counted, [3]))
    assert raised.value.what.startswith("other versions on a worker: offline-cli is ")
    assert "worker " in raised.value.where
    assert " on node " in raised.value.where
    assert "offline-cli==9.9.9" in raised.value.fix


# ---- commands ----


def test_a_recording_becomes_the_same_dataset_and_operations_on_it_too(ray: dict[str, Any], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for out, engine in ((here, {}), (there, ray)):
        convert(SAMPLE, out / "all", max_rows_per_file=3, **engine)
        offline_cli.filter(out / "all", out / "some", where="length > 100", **engine)
    assert_same(here / "all", there / "all")
    assert_same(here / "some", there / "some")


def test_train_batches_are_the_same(ray: dict[str, Any], tmp_path: Path) -> None:
    pipeline = tmp_path / "pieces.toml"
    pipeline.write_text('kind = "learner"\n[[pieces]]\nname = "MeanStdFilter"\n')
    for out, engine in (("here", {}), ("there", ray)):
        offline_cli.apply(SAMPLE, str(tmp_path / out), pipeline=pipeline, steps_per_batch=1000, **engine)
    here, there = ({f.name: f.read_bytes() for f in (tmp_path / out).rglob("*.parquet")} for out in ("here", "there"))
    assert here
    assert here == there


def test_the_same_episodes_are_recorded(ray: dict[str, Any], tmp_path: Path) -> None:
    kind: dict[str, Any] = {"policy": "random", "vectorize": "sync", "num_envs": 4, "steps": 1000}
    record("CartPole-v1", tmp_path / "here", **kind)
    record("CartPole-v1", tmp_path / "there", **kind, **ray)
    assert data_files(tmp_path / "here") == data_files(tmp_path / "there")


def test_workers_read_from_a_bucket_what_is_written_to_it(ray: dict[str, Any], s3_server: Any, tmp_path: Path) -> None:
    """The address of the storage travels to the workers, and so do its keys, as options of the storage."""
    url, client = s3_server.bucket(), s3_server.client()
    for path in sorted(SAMPLE.iterdir()):
        client.pipe_file(f"{url}/recorded/{path.name}", path.read_bytes())
    options = {"storage_options": dict(s3_server.options)}
    convert(SAMPLE, tmp_path / "here", max_rows_per_file=5)
    convert(f"{url}/recorded", f"{url}/there", max_rows_per_file=5, **options, **ray)
    found = {path.rpartition("/")[2]: client.cat_file(path) for path in client.find(f"{url.partition('://')[2]}/there/data")}
    assert found == data_files(tmp_path / "here")


@pytest.mark.nightly
def test_a_bridge_that_takes_nothing_is_a_lost_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def idle(_: str, theirs: Any, *, output: Any) -> subprocess.Popen[bytes]:
        kept.append(theirs.dup())  # the other end stays open, and nobody reads from it
        return subprocess.Popen(["sleep", "60"])

    monkeypatch.setattr(ray_engine, "interpreter", idle)
    monkeypatch.setattr(ray_engine, "SILENCE", 0.2)
    with EngineSpec("ray", 1, "127.0.0.1:1").engine() as engine:
        assert isinstance(engine, ray_engine.RayEngine)
        assert engine._bridge is not None
        with pytest.raises(ClusterLost, match="nothing was taken"):
            engine._bridge.send(0, 1, bytes(64 << 20))
    kept[0].close()


# ---- deaths ----


@pytest.mark.nightly
@pytest.mark.parametrize("work", ["convert", "record"])
def test_workers_and_nodes_that_are_killed_change_nothing(
    work: str, cluster: Any, ray: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if work == "convert":
        source, here = request.getfixturevalue("slow")
        begin = partial(command, source)
    else:
        begin, here = recorder, request.getfixturevalue("played")
    chance, kills, runs, given_up, until = random.Random(20), 0, 0, 0, time.monotonic() + LIMIT + 15 * KILLS
    while kills < KILLS:
        assert time.monotonic() < until, f"{kills} kills in {runs} runs"
        out = tmp_path / f"out-{runs}"
        process = begin(out, ray)
        while process.poll() is None and kills < KILLS:
            if cluster.kill_worker(chance):
                kills += 1
                if kills % 4 == 3:
                    cluster.kill_node(chance)
                    kills += 1
                time.sleep(chance.uniform(1.0, 3.0))
            time.sleep(0.1)
        code, said = ended(process)
        if code == 5 and "workers, one after the other" in said:  # the same part was hit each time, which is given up by then
            given_up += 1
            assert given_up <= 1 + KILLS // 10
            code, said = ended(begin(out, ray, "--resume"))
        assert code == 0, said
        assert_same(here, out)
        runs += 1


def test_a_command_that_is_killed_is_resumed(ray: dict[str, Any], slow: tuple[Path, Path], tmp_path: Path) -> None:
    process = command(slow[0], tmp_path / "out", ray)
    begun(tmp_path / "out", process, 3)
    process.kill()
    process.wait()
    before = {name: (tmp_path / "out" / "data" / name).stat().st_mtime_ns for name in data_files(tmp_path / "out")}
    code, said = ended(command(slow[0], tmp_path / "out", ray, "--resume"))
    assert code == 0, said
    assert data_files(slow[1]) == data_files(tmp_path / "out")
    assert all((tmp_path / "out" / "data" / name).stat().st_mtime_ns == when for name, when in before.items())


@pytest.mark.nightly
def test_a_command_that_writes_to_a_bucket_is_killed_and_resumed_and_so_are_its_workers(
    cluster: Any, ray: dict[str, Any], slow: tuple[Path, Path], s3_server: Any
) -> None:
    url, client, chance = s3_server.bucket(), s3_server.client(), random.Random(4)
    place, env = f"{url.partition('://')[2]}/out", {**os.environ, **s3_server.environment}
    words = ["convert", str(slow[0]), "--from", "python:slow_reader:SLOW", "--out", f"{url}/out", "--max-rows-per-file", "16"]
    process, until = started(words, ray, env), time.monotonic() + LIMIT
    while len(client.glob(f"{place}/data/*.parquet")) < 3:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no shard was written"
        time.sleep(0.1)
        client.invalidate_cache()
    process.kill()
    process.wait()
    process = started([*words, "--resume"], ray, env)
    while process.poll() is None and not cluster.kill_worker(chance):
        time.sleep(0.05)
    code, said = ended(process)
    assert code == 0, said
    client.invalidate_cache()
    found = {path.rpartition("/")[2]: client.cat_file(path) for path in client.find(f"{place}/data")}
    assert found == data_files(slow[1])


def test_sigterm_ends_the_tasks_and_says_how_to_resume(
    cluster: Any, ray: dict[str, Any], slow: tuple[Path, Path], tmp_path: Path
) -> None:
    process = command(slow[0], tmp_path / "out", ray)
    begun(tmp_path / "out", process, 2)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 143
    assert "--resume" in said
    until = time.monotonic() + 20
    while cluster.workers() and time.monotonic() < until:
        time.sleep(0.1)
    assert not cluster.workers()


@pytest.mark.nightly
def test_a_cluster_that_is_lost_is_exit_5_and_the_command_is_resumed_without_it(
    slow: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray_clusters import agents_of, local_cluster

    monkeypatch.setattr(ray_engine, "SILENCE", 5.0)
    kind: dict[str, Any] = {"from_": "python:slow_reader:SLOW", "max_rows_per_file": 16}
    with local_cluster(1) as lost:
        ray = {"engine": "ray", "engine_address": lost.address, "workers": 1}

        for node in (lost.cluster.head_node, *lost.nodes):
            lost.agents |= agents_of(node)

        def kill(_: Any) -> None:
            for node in (lost.cluster.head_node, *lost.nodes):
                for kind in ("gcs_server", "raylet"):
                    for process in node.all_processes.get(kind, ()):
                        process.process.kill()

        began = time.monotonic()
        with pytest.raises(ClusterLost, match="the Ray cluster is lost") as raised:
            convert(str(slow[0]), tmp_path / "out", **kind, **ray, on_progress=kill)
        assert raised.value.exit_code == 5
        assert "--resume" in raised.value.fix
        assert time.monotonic() - began < LIMIT
    convert(str(slow[0]), tmp_path / "out", **kind, resume=True)
    assert data_files(slow[1]) == data_files(tmp_path / "out")


def test_a_cluster_that_was_not_there_is_told_however_late_the_work_begins() -> None:
    with EngineSpec("ray", 1, "127.0.0.1:1").engine() as engine:
        assert isinstance(engine, ray_engine.RayEngine)
        assert engine._bridge is not None
        engine._bridge._process.wait(60)
        with pytest.raises(ClusterLost, match="no Ray cluster answers"):
            next(engine.streamed(tasks.counted, range(2)))


def test_no_cluster_at_an_address_is_exit_5(tmp_path: Path) -> None:
    with pytest.raises(ClusterLost, match="no Ray cluster answers") as raised:
        convert(SAMPLE, tmp_path / "out", engine="ray", engine_address="127.0.0.1:1", workers=1)
    assert "RAY_AUTH_TOKEN" in raised.value.fix
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("kill", [False, True])
def test_a_cluster_of_its_own_ends_with_the_command(kill: bool, slow: tuple[Path, Path], tmp_path: Path) -> None:
    from ray_clusters import descendants_of, gone

    where = ["--from", "python:slow_reader:SLOW", "--max-rows-per-file", "16", "--engine", "ray", "--workers", "2"]
    line = [sys.executable, "-m", "offline_cli", "convert", str(slow[0]), "--out", str(tmp_path / "out"), *where, "--json"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    begun(tmp_path / "out", process)
    started = descendants_of(process.pid)  # other tests' clusters may start beside it
    assert started
    if kill:
        process.kill()
    printed, said = process.communicate(timeout=LIMIT)
    assert gone(started, 40) == set()
    if not kill:
        assert json.loads(printed)["episodes"] == FILES * slow_reader.FRAGMENTS
        assert_same(slow[1], tmp_path / "out")
        assert "ray" not in said.lower()
