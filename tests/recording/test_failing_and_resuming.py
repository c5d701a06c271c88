"""Nothing whole is lost: failures, signals and kills, and going on after them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.opening import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, OutputExists, UnknownEnvironment, UsageError
from offline_cli.recording.record import record

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
ENV = "recording_envs:Count-v0"
OPTIONS: dict[str, Any] = {"policy": "random", "vectorize": "sync", "device": "cpu"}


@pytest.mark.parametrize(
    "manner", [{}, {"num_env_runners": 2}, {"vectorize": "async", "num_envs": 3}], ids=["here", "runners", "async"]
)
def test_an_environment_that_raises_loses_no_whole_episode_and_can_be_gone_on_with(
    manner: dict[str, Any], tmp_path: Path, recorded: Record, read: Read, same: Same
) -> None:
    out, options = tmp_path / "D", {**OPTIONS, **manner, "episodes": 150, "env_kwargs": {"fail_at": 20}}
    with pytest.raises(BadData, match="the motor is on fire") as caught:
        record(ENV, out, **options)
    error = caught.value
    assert error.exit_code == 3
    name, episode, step = error.where.split(", ")
    assert (name, step) == (ENV, "step 2")
    manifest = open_dataset(str(out)).manifest
    assert not manifest.complete
    assert 0 < manifest.counts.episodes <= int(episode.removeprefix("episode "))
    assert error.details["episodes"] == manifest.counts.episodes
    assert "--resume" in error.fix
    with pytest.raises(BadData, match="the motor is on fire"):
        record(ENV, out, **options, resume=True)
    kept = read(out)
    same(kept, read(recorded(policy="random", episodes=len(kept), env_kwargs={"fail_at": 20})))


def test_a_failure_before_any_episode_is_whole_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadData):
        record(ENV, tmp_path / "D", **OPTIONS, episodes=5, first_episode=_first_of(20), env_kwargs={"fail_at": 20})
    assert not (tmp_path / "D").exists()


def _first_of(length: int) -> int:
    import numpy as np

    from offline_cli.recording.plan import environment_seed

    lengths = (int(np.random.default_rng(environment_seed(0, i)).integers(1, 31)) for i in range(10_000))
    return next(i for i, found in enumerate(lengths) if found == length)


def test_a_recording_that_is_gone_on_with_must_be_the_same_one(tmp_path: Path) -> None:
    options = {**OPTIONS, "episodes": 150, "env_kwargs": {"fail_at": 20}}
    with pytest.raises(BadData):
        record(ENV, tmp_path / "D", **options)
    with pytest.raises(BadConfig, match="identity"):
        record(ENV, tmp_path / "D", **{**options, "seed": 1}, resume=True)
    assert not open_dataset(str(tmp_path / "D")).manifest.complete  # still committed


def test_a_finished_recording_is_left_alone_by_resume_and_kept_from_another(tmp_path: Path) -> None:
    first = record(ENV, tmp_path / "D", **OPTIONS, episodes=8)
    before = (tmp_path / "D" / "manifest.json").read_bytes()
    again = record(ENV, tmp_path / "D", **OPTIONS, episodes=8, resume=True)
    assert (again.episodes, again.steps, again.complete) == (first.episodes, first.steps, True)
    for options in ({"episodes": 8}, {"episodes": 9, "resume": True}, {"episodes": 8, "resume": True, "seed": 1}):
        with pytest.raises(OutputExists):
            record(ENV, tmp_path / "D", **OPTIONS, **options)
    assert (tmp_path / "D" / "manifest.json").read_bytes() == before


def test_overwriting_replaces(tmp_path: Path, read: Read) -> None:
    record(ENV, tmp_path / "D", **OPTIONS, episodes=8)
    record(ENV, tmp_path / "D", **OPTIONS, episodes=3, overwrite=True)
    assert len(read(tmp_path / "D")) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "one of --episodes and --steps"),
        ({"episodes": 1, "steps": 1}, "one of --episodes and --steps"),
        ({"episodes": 0, "num_envs": 0}, "--episodes 0 is less than 1; --num-envs 0"),
        ({"episodes": 1, "vectorize": "quickly"}, "none of auto, sync"),
    ],
)
def test_options_that_make_no_sense_are_told_all_at_once(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        record(ENV, tmp_path / "D", policy="random", **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"env": "Kartpole-v1"}, UnknownEnvironment),
        ({"env": ENV, "env_kwargs": {"colour": 1}}, BadConfig),
        ({"env": ENV, "env_kwargs": {"shift": {1}}}, BadConfig),
        ({"env": ENV, "wrappers": ["recording_envs:Dubbled"]}, BadConfig),
        ({"env": ENV, "wrappers": ["FlattenObservations"]}, BadConfig),
        ({"env": ENV, "wrappers": ["nowhere_at_all:W"]}, BadConfig),
    ],
)
def test_environments_that_cannot_be_made_are_exit_4_and_leave_nothing(
    options: dict[str, Any], error: type[BadConfig], tmp_path: Path
) -> None:
    options = dict(options)
    with pytest.raises(error) as caught:
        record(options.pop("env"), tmp_path / "D", policy="random", episodes=1, **options)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "D").exists()


def command(out: Path, *more: str) -> list[str]:
    words = ["record", "recording_envs:Slow-v0", "--out", str(out), "--policy", "random", "--episodes", "120"]
    words += ["--vectorize", "sync", "--num-envs", "5", "--max-rows-per-file", "10", "--device", "cpu", "--json", "--quiet"]
    return [sys.executable, "-m", "offline_cli", *words, *more]


@pytest.mark.kill
@pytest.mark.parametrize("runners", ["0", "2"])
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_commits_what_is_whole_and_resume_goes_on(
    number: int,
    exit_code: int,
    runners: str,
    tmp_path: Path,
    child_env: dict[str, str],
    read: Read,
    recorded: Record,
    same: Same,
) -> None:
    out, runs = tmp_path / "D", ("--num-env-runners", runners)
    process = subprocess.Popen(
        command(out, *runs),
        env=child_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while not list(out.glob("data/*.parquet")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    told = json.loads(stdout)
    assert (process.returncode, told["exit_code"], told["error"]["code"]) == (exit_code, exit_code, "interrupted"), stderr
    assert "Traceback" not in stderr
    manifest = open_dataset(str(out)).manifest
    assert (manifest.complete, manifest.counts.episodes) == (False, told["error"]["episodes"])
    assert 10 <= manifest.counts.episodes < 120
    done = subprocess.run(
        command(out, *runs, "--resume"), env=child_env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert open_dataset(str(out)).manifest.complete
    same(read(out), read(recorded("recording_envs:Slow-v0", policy="random", episodes=120)))


@pytest.mark.kill
def test_killed_at_random_moments_a_recording_is_gone_on_with_to_the_same_content(
    tmp_path: Path, child_env: dict[str, str], read: Read, recorded: Record, same: Same
) -> None:
    out, moments, kept = tmp_path / "D", random.Random(0), 0
    for attempt in range(20):
        process = subprocess.Popen(command(out, "--resume"), env=child_env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if attempt:  # the time that starting takes is no moment to be killed in
            _wait_for_a_shard_beyond(out, kept, process)
        time.sleep(moments.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
        shards = len(list(out.glob("data/*.parquet")))
        assert shards >= kept, "a complete shard is lost"
        kept = shards
        if process.returncode == 0:
            break
    done = subprocess.run(command(out, "--resume"), env=child_env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    batch = read(out)
    assert len(set(batch.ids)) == 120
    same(batch, read(recorded("recording_envs:Slow-v0", policy="random", episodes=120)))


def _wait_for_a_shard_beyond(out: Path, kept: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while len(list(out.glob("data/*.parquet"))) <= kept and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.kill
def test_runner_and_environment_processes_end_with_a_killed_parent(tmp_path: Path, child_env: dict[str, str]) -> None:
    out = tmp_path / "D"
    words = command(out, "--num-env-runners", "2", "--vectorize", "async", "--num-envs", "2")
    process = subprocess.Popen(
        words, env=child_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + 90
    while not list(out.glob("data/*.parquet")) and time.monotonic() < until:
        time.sleep(0.05)
    group = process.pid
    assert len(_members(group)) >= 7  # this one, two runners, four environments
    process.kill()
    process.wait()
    until = time.monotonic() + 30
    while _members(group) and time.monotonic() < until:
        time.sleep(0.1)
    assert _members(group) == []


def _members(group: int) -> list[int]:
    """Process ids of a process group, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if fields[0] != "Z" and int(fields[2]) == group:
            found.append(int(stat.parent.name))
    return found
