"""`train --engine ray`: learners on a cluster learn what one process learns, stop together, and are not started twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_clusters import parent_of

from offline_cli import record
from offline_cli.cli.invocation import Invocation

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds for one command


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("learners") / "D"
    record("CartPole-v1", out, policy="random", episodes=60, num_envs=8)
    return out


def begun(*words: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "offline_cli", *map(str, words), "--quiet", "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, cwd=REPOSITORY, **pipes)


def ended(process: subprocess.Popen[str], seconds: float = LIMIT) -> tuple[int, str, str]:
    try:
        out, said = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, said


def training(dataset: Path, out: Path, *more: object, updates: int = 200) -> list[object]:
    return ["train", dataset, "--out", out, "--updates", updates, "--batch-size", 300, "--device", "cpu", *more]


def on(cluster: Any, learners: int = 2) -> tuple[object, ...]:
    return ("--engine", "ray", f"--engine-address={cluster.address}", "--num-learners", learners)


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def learners() -> list[int]:
    """The processes that train, by rank."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            said = dict(one.split(b"=", 1) for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in one)
        except OSError:
            continue
        if b"learning_commands import learner" in words:
            found[int(said[b"RANK"])] = pid
    return [found[rank] for rank in sorted(found)]


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT
    while not [*run.glob("checkpoints/*/state.json")]:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
def test_two_learners_learn_what_one_process_learns_and_one_of_them_prints(dataset: Path, cluster: Any, tmp_path: Path) -> None:
    code, out, said = ended(begun(*training(dataset, tmp_path / "two", *on(cluster))))
    assert (code, said) == (0, "")
    assert json.loads(out)["updates"] == 200
    assert ended(begun(*training(dataset, tmp_path / "one")))[0] == 0
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=0, atol=1e-3)


@pytest.mark.nightly
def test_a_stop_is_passed_on_and_the_run_is_resumed_by_one_process(dataset: Path, cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = begun(*training(dataset, run, "--checkpoint-every", 20, *on(cluster), updates=10_000_000))
    wait_for_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    code, out, said = ended(process, 60)
    assert code == 130
    assert "all of them are saved" in said
    update = json.loads(out)["error"]["updates"]
    assert learners() == []
    assert ended(begun(*training(dataset, run, "--resume", updates=update + 20)))[0] == 0


@pytest.mark.nightly
@pytest.mark.parametrize(("rank", "with_worker"), [(0, True), (0, False), (1, True)])
def test_a_learner_that_is_lost_ends_the_others_with_exit_5(
    rank: int, with_worker: bool, dataset: Path, cluster: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = begun(*training(dataset, run, "--checkpoint-every", 20, *on(cluster), updates=10_000_000))
    wait_for_checkpoint(run, process)
    pid = learners()[rank]
    for one in (parent_of(pid), pid) if with_worker else (pid,):
        os.kill(one, signal.SIGKILL)
    code, _, said = ended(process, 60)
    assert code == 5
    assert "--resume" in said
    until = time.monotonic() + 60
    while learners() and time.monotonic() < until:
        time.sleep(0.2)
    assert learners() == []


@pytest.mark.nightly
def test_a_second_signal_does_not_wait_for_learners(dataset: Path, cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = begun(*training(dataset, run, *on(cluster), updates=10_000_000))
    until = time.monotonic() + LIMIT
    while len(learners()) < 2:
        assert time.monotonic() < until
    for one in learners():
        os.kill(one, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    code, out, _ = ended(process, 60)
    for one in learners():
        os.kill(one, signal.SIGKILL)
    assert (code, json.loads(out)["error"]["code"]) == (130, "interrupted")


@pytest.mark.nightly
def test_more_learners_than_the_cluster_has_processors_are_refused(dataset: Path, cluster: Any, tmp_path: Path) -> None:
    code, _, said = ended(begun(*training(dataset, tmp_path / "run", *on(cluster, learners=5))))
    assert code == 2
    assert "5 learners take 5 processors, and the cluster has 2" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--num-learners", 2), "--num-learners is for --engine ray"),
        (("--num-gpus-per-learner", 1), "--num-gpus-per-learner is for --engine ray"),
        (("--engine-address", "auto"), "--engine-address is for --engine ray"),
    ],
)
def test_options_of_a_cluster_without_it_are_refused(more: tuple[object, ...], what: str, call: Any, tmp_path: Path) -> None:
    code, told = call(*training(tmp_path, tmp_path / "run", *more))
    assert (code, told["error"]["what"]) == (2, what)


def test_learners_do_not_read_standard_input(call: Any, tmp_path: Path) -> None:
    code, told = call(*training(Path("-"), tmp_path / "run", "--engine", "ray"))
    assert code == 2
    assert "standard input" in told["error"]["what"]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (("train", "D", "--engine", "ray", "--out", "R"), ("train", "D", "--out", "R")),
        (("train", "--engine=ray", "D", "--num-learners=2"), ("train", "D")),
        (("train", "--num-learners", "2", "--", "--engine", "ray"), ("train", "--", "--engine", "ray")),
        (("train", "--engine-address", "auto"), ("train", "--engine-address", "auto")),
    ],
)
def test_a_command_line_is_repeated_without_some_of_its_options(given: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert Invocation(given).without("--engine", "--num-learners") == left
