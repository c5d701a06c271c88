"""The engine `ray`: what workers of a cluster do is what this process does, whichever of them die."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import engine_tasks as tasks
import pytest
import slow_reader
from operated import data_files

from offline_cli.converting.convert import convert
from offline_cli.engines.engine import EngineSpec
from offline_cli.errors import ClusterLost
from offline_cli.recording.record import record

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
LIMIT = 120  # seconds for one command
READ: dict[str, Any] = {"from_": "python:slow_reader:SLOW", "env": "CartPole-v1", "max_rows_per_file": 16}


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, said


def test_a_cluster_gives_results_in_order_and_writes_the_bytes_that_this_process_writes(cluster: Any, tmp_path: Path) -> None:
    with EngineSpec("ray", 2, cluster.address).engine() as engine:
        found = list(engine.streamed(tasks.counted, range(20)))
        assert found == [(number, part) for number in range(20) for part in range(number % 4)]
        assert next(engine.streamed(tasks.arrays, range(3)))["values"].flags.writeable
        results = engine.streamed(tasks.inverses, [4, 0, 1])
        assert [next(results), next(results), next(results)] == [4, 0.25, 0]
        with pytest.raises(ZeroDivisionError):
            next(results)
    ray = {"engine": "ray", "engine_address": cluster.address}
    played: dict[str, Any] = {"policy": "random", "vectorize": "sync", "num_envs": 4, "steps": 1000}
    for out, engine in ((tmp_path / "here", {}), (tmp_path / "there", ray)):
        convert(SAMPLE, out / "converted", max_rows_per_file=3, workers=2, **engine)
        record("CartPole-v1", out / "recorded", **played, **engine)
    for name in ("converted", "recorded"):
        assert data_files(tmp_path / "here" / name) == data_files(tmp_path / "there" / name)


def test_a_killed_worker_costs_nothing_and_a_killed_command_is_resumed(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = slow_reader.written(tmp_path / "source", 120), tmp_path / "out"
    words = ["convert", str(source), "--from", "python:slow_reader:SLOW", "--env", "CartPole-v1", "--max-rows-per-file", "16"]
    where = ["--out", str(out), "--engine", "ray", "--engine-address", cluster.address, "--workers", "2", "--quiet"]
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "support")])

    def started(*more: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "offline_cli", *words, *where, *more]
        return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})

    process, until = started(), time.monotonic() + LIMIT
    while len([*out.glob("data/*.parquet")]) < 3:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = data_files(out)
    process = started("--resume")
    while process.poll() is None and not cluster.kill_worker(random.Random(4)):
        time.sleep(0.02)
    assert process.poll() is None, "it ended before a worker was killed"
    code, said = ended(process)
    assert code == 0, said
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    convert(str(source), tmp_path / "here", **READ)
    found = data_files(out)
    assert found == data_files(tmp_path / "here")
    assert kept.items() <= found.items()


def test_no_cluster_at_an_address_is_exit_5(tmp_path: Path) -> None:
    with pytest.raises(ClusterLost) as raised:
        convert(SAMPLE, tmp_path / "out", engine="ray", engine_address="127.0.0.1:1", workers=1)
    assert raised.value.exit_code == 5
    assert not (tmp_path / "out").exists()
