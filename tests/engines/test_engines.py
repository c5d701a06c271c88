"""Engines give what a function yields for each item, in the order of the items; a worker that dies ends the command."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import engine_tasks as tasks
import numpy as np
import polars as pl
import pytest
import slow_reader
from operated import data_files
from pickled_engine import PickledEngine

from offline_cli import repack
from offline_cli.converting.convert import convert
from offline_cli.engines.engine import Engine, EngineSpec, called
from offline_cli.errors import BadData, MissingPackage, UsageError, WorkerDied
from offline_cli.stop_signals import StopRequested, signals_noted

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds for one command


@pytest.fixture(params=["local", "pickled", pytest.param("processes", marks=pytest.mark.integration)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: dict[str, Callable[[], Any]] = {"local": Engine, "pickled": PickledEngine}
    with made.get(request.param, EngineSpec("processes", 2).engine)() as found:
        yield found


def test_results_come_in_the_order_of_the_items_and_an_error_in_its_turn(engine: Engine) -> None:
    found = list(engine.streamed(tasks.counted, range(20)))
    assert found == [(number, part) for number in range(20) for part in range(number % 4)]
    array = list(engine.streamed(tasks.arrays, range(3)))[-1]["values"]
    np.testing.assert_array_equal(array, np.arange(2002))
    assert array.flags.writeable
    results = engine.streamed(tasks.inverses, [4, 2, 0, 1])
    assert [next(results) for _ in range(5)] == [4, 0.25, 2, 0.5, 0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_are_taken_a_few_at_a_time() -> None:
    taken = []
    results = PickledEngine().streamed(tasks.counted, (taken.append(number) or number for number in range(100)))
    assert next(results) == (1, 0)
    assert taken == [0, 1, 2, 3, 4]  # four are begun; the first one had no result


def test_an_error_that_cannot_travel_arrives_as_text() -> None:
    results = PickledEngine().streamed(tasks.strange, [1])
    assert next(results) == 1
    with pytest.raises(RuntimeError, match="as nobody knows it"):
        next(results)


def test_code_that_exits_in_a_worker_is_an_error_after_what_it_gave() -> None:
    results = PickledEngine().streamed(tasks.leaving, [1])
    assert next(results) == 1
    with pytest.raises(BadData) as raised:
        next(results)
    assert raised.value.where == "a worker"


def test_a_module_that_a_worker_lacks_is_a_missing_package() -> None:
    results, error = pickle.loads(called(b"clab.tools\nwork\n."))
    assert results == []
    assert isinstance(error, MissingPackage)
    assert error.fix.endswith("pip install lab")


def test_only_ray_has_an_address() -> None:
    with pytest.raises(UsageError) as raised:
        EngineSpec.of({"engine": "processes", "workers": 2, "engine_address": "127.0.0.1:6379"})
    assert raised.value.where == "--engine-address"


def children_of(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
            words = (place.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"spawn_main" in words:
            found.append(int(place.parent.name))
    return found


def test_a_pool_that_broke_after_a_signal_ends_with_the_code_of_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: Any) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr("offline_cli.engines.processes.ProcessPoolExecutor.submit", submit)
    with signals_noted(), EngineSpec("processes", 2).engine() as engine:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopRequested) as caught:
            next(engine.streamed(tasks.counted, [1]))
    assert caught.value.exit_code == 130


@pytest.mark.integration
def test_no_worker_is_left_when_the_caller_has_seen_enough() -> None:
    with EngineSpec("processes", 2).engine() as engine:
        pid = next(engine.streamed(tasks.pid_after, [0.01] * 3 + [60.0] * 3))
    assert pid != os.getpid()
    assert not Path(f"/proc/{pid}").exists()


def assert_it_tells_what_is_kept(error: Mapping[str, Any], out: Path) -> None:
    kept = [pl.read_parquet(file) for file in out.glob("data/*.parquet")]
    told = [error[name] for name in ("code", "out", "shards", "episodes", "steps")]
    assert kept
    assert told == ["worker-died", str(out), len(kept), sum(map(len, kept)), sum(int(one["length"].sum()) for one in kept)]
    assert error["fix"].count("--resume") == 1


@pytest.mark.parametrize("write", [convert, repack])
def test_a_lost_worker_tells_what_is_kept(write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = slow_reader._episode

    def lost(name: str, number: int) -> Any:
        if number == 40:
            raise WorkerDied("a worker process has died", where="a worker", fix="use fewer workers")
        return episode(name, number)

    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    monkeypatch.setattr(slow_reader, "_episode", lost)
    source = slow_reader.written(tmp_path / "source", 20)
    with pytest.raises(WorkerDied) as raised:
        write(str(source), tmp_path / "out", from_="python:slow_reader:SLOW", env="CartPole-v1", max_rows_per_file=16)
    assert_it_tells_what_is_kept(raised.value.as_dict(), tmp_path / "out")


@pytest.mark.integration
def test_a_killed_worker_ends_a_conversion_with_exit_3_which_is_resumed_to_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the workers of a command that is killed end with it."""
    source = slow_reader.written(tmp_path / "source", 80)
    words = [
        "convert",
        str(source),
        "--from",
        "python:slow_reader:SLOW",
        "--max-rows-per-file",
        "16",
        "--env",
        "CartPole-v1",
        "--quiet",
    ]

    def started(out: Path, *more: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "offline_cli", *words, "--out", str(out), *more]
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "support")])
        return subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )

    def begun(process: subprocess.Popen[str], shards: int) -> list[int]:
        until = time.monotonic() + LIMIT
        while len([*(tmp_path / "out" / "data").glob("*.parquet")]) < shards:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.02)
        return children_of(process.pid)

    where = ("--engine", "processes", "--workers", "2")
    process = started(tmp_path / "out", *where, "--json")
    os.kill(begun(process, 2)[0], signal.SIGKILL)
    told, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 3, said
    assert_it_tells_what_is_kept(json.loads(told)["error"], tmp_path / "out")
    process = started(tmp_path / "out", *where, "--resume")
    workers = begun(process, len([*(tmp_path / "out" / "data").glob("*.parquet")]) + 1)
    process.kill()
    process.communicate(timeout=LIMIT)
    until = time.monotonic() + LIMIT
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.02)
    monkeypatch.setattr(slow_reader, "PAUSE", 0.0)
    for out, resume in ((tmp_path / "out", True), (tmp_path / "whole", False)):
        convert(str(source), out, from_="python:slow_reader:SLOW", env="CartPole-v1", max_rows_per_file=16, resume=resume)
    assert data_files(tmp_path / "out") == data_files(tmp_path / "whole")
