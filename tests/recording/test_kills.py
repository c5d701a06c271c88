"""Signals, and kills where it matters how episodes are played (others: tests/datasets/test_kills.py): what is whole stays."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
pytestmark = pytest.mark.nightly


def command(
    out: Path, *more: str, env: str = "Slow-v0", vectorize: str = "sync", num_envs: int = 5, episodes: int = 120
) -> list[str]:
    words = ["record", f"recording_envs:{env}", "--out", str(out), "--policy", "random", "--episodes", str(episodes)]
    words += [
        "--vectorize",
        vectorize,
        "--num-envs",
        str(num_envs),
        "--max-rows-per-file",
        "10",
        "--device",
        "cpu",
        "--json",
        "--quiet",
    ]
    return [sys.executable, "-m", "offline_cli", *words, *more]


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


def test_killed_with_an_own_vector_class_no_episode_is_there_twice(
    tmp_path: Path, child_env: dict[str, str], read: Read
) -> None:
    out = tmp_path / "D"
    words = command(
        out, "--resume", env="OwnSlow-v0", vectorize="vector_entry_point", episodes=800
    )  # more than are played between five kills
    assert _killed(words, out, child_env, times=5) == 5
    done = subprocess.run(words, env=child_env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    batch = read(out)
    assert len(batch) == len(set(batch.ids)) == 800


def _killed(words: list[str], out: Path, child_env: dict[str, str], *, times: int) -> int:
    """Start the command and kill it, again and again: at any moment, or soon after a new shard; how often that was done."""
    moments, kept, killed = random.Random(0), dict[str, str](), 0
    for attempt in range(times):
        process = subprocess.Popen(words, env=child_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if attempt % 4:
            _wait_for_a_shard_beyond(out, len(kept), process)
            time.sleep(moments.uniform(0.0, 0.2))
        else:
            time.sleep(moments.uniform(0.0, 4.0))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        shards = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("data/*.parquet")}
        assert shards.items() >= kept.items(), "a complete shard is lost"
        kept = shards
    return killed


def _wait_for_a_shard_beyond(out: Path, kept: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while len(list(out.glob("data/*.parquet"))) <= kept and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


def test_runner_and_environment_processes_end_with_a_killed_parent(tmp_path: Path, child_env: dict[str, str]) -> None:
    out = tmp_path / "D"
    words = command(out, "--num-env-runners", "2", vectorize="async", num_envs=2)
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
