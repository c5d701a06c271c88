"""Processes that train together learn what one process learns: the same batches, the same steps, one folder, one message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.engines.ranks import Ranks
from offline_cli.training.steps import WEIGHTS, Batches, Steps

CPU = torch.device("cpu")
SCRIPT = Path(__file__).resolve().parents[1] / "support" / "ranks_script.py"
ALGORITHMS = ("bc", "marwil", "iql", "td3-bc")
KINDS = (*ALGORITHMS, "lstm", "stacks", "own")  # the last: BC of sequences, of stacks of frames, by a network of one's own


def in_memory(steps: int) -> Steps:
    rows = torch.arange(steps)
    return Steps({"obs": rows.float()[:, None], "actions": rows})


def on_disk(steps: int) -> Steps:
    made = Steps(on_disk=True)
    made.add(in_memory(steps).columns)
    return made


def learned(loader: Batches, update: int) -> list[tuple[int, float]]:
    """The steps of one rank's part of a batch that count, with their weights."""
    loader.fill(update)
    weights = loader.batch[WEIGHTS].tolist()
    return [(step, weight) for step, weight in zip(loader.batch["actions"].tolist(), weights, strict=True) if weight]


@pytest.mark.parametrize("make", [in_memory, on_disk])
@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 120), batch_size=st.integers(1, 40), count=st.sampled_from([2, 3, 7]), update=st.integers(0, 40))
def test_ranks_share_out_the_batch_that_one_process_has(
    make: Callable[[int], Steps], steps: int, batch_size: int, count: int, update: int
) -> None:
    how: dict[str, Any] = {"batch_size": batch_size, "seed": 3, "device": CPU}
    with closing(make(steps)) as store:
        alone = learned(Batches(store, **how), update)
        parts = [learned(Batches(store, **how, ranks=Ranks(rank, count)), update) for rank in range(count)]
    assert [one for part in parts for one in part] == alone
    assert max(map(len, parts)) <= -(-len(alone) // count)


def torchrun(count: int, *words: str, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **how)


def ended(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, errors


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What one process learned, and what two did, by KINDS."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    subprocess.run([sys.executable, SCRIPT, one, *KINDS], check=True, timeout=500)
    code, _, errors = ended(torchrun(2, str(SCRIPT), str(two), *KINDS), 500)
    assert code == 0, errors
    return one, two


@pytest.mark.integration
@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_updates_in_float64_are_those_of_one_process(name: str, both: tuple[Path, Path]) -> None:
    with np.load(both[0] / f"{name}.npz") as ours, np.load(both[1] / f"{name}.npz") as theirs:
        assert ours.files == theirs.files
        for key in ours.files:
            np.testing.assert_allclose(theirs[key], ours[key], rtol=0, atol=1e-9, err_msg=key)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from offline_cli import record

    out = tmp_path_factory.mktemp("ranks") / "D"
    record("CartPole-v1", out, policy="random", episodes=60, num_envs=8)
    return out


def trained(dataset: Path, out: Path, *more: str, updates: int) -> list[str]:
    words = ["-m", "offline_cli", "train-bc", str(dataset), "--out", str(out), "--updates", str(updates), "--batch-size", "300"]
    return [*words, "--device", "cpu", *more]


def options(dataset: Path, out: Path, *more: str, updates: int = 200) -> list[str]:
    often = ["--val-fraction", "0.2", "--eval-every", "100", "--checkpoint-every", "20"]
    return trained(dataset, out, *often, *more, updates=updates)


PLAYED = ("--env", "CartPole-v1", "--eval-episodes", "7")


def curve(run: Path, name: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def alone(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_three_processes_learn_what_one_learns_and_one_of_them_prints(dataset: Path, tmp_path: Path) -> None:
    alone(*options(dataset, tmp_path / "one", "--quiet", *PLAYED, "--streaming"))
    code, out, errors = ended(torchrun(3, *options(dataset, tmp_path / "three", "--json", *PLAYED, "--streaming")))
    assert code == 0, errors
    assert json.loads(out)["updates"] == 200
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(curve(tmp_path / "three", name), curve(tmp_path / "one", name), rtol=0, atol=1e-3)
    assert len(curve(tmp_path / "three", "eval_return_mean")) == 2
    told = json.loads((tmp_path / "one" / "result.json").read_text())
    assert json.loads(out)["val_accuracy_majority"] == told["val_accuracy_majority"]
    assert json.loads(out)["val_recall"] == pytest.approx(told["val_recall"], abs=0.02)  # weights differ in the last digits


def waited_for(place: Path, process: subprocess.Popen[str]) -> None:
    """Until it has begun to train, and saved."""
    until = time.monotonic() + 90
    while not (place / "state.json").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The pids of the processes that torchrun has started, by rank."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        rank = next((int(text[5:]) for text in environment if text.startswith(b"RANK=")), None)
        if parent == process.pid and rank is not None:
            found[rank] = pid
    return [found[rank] for rank in sorted(found)]


@pytest.mark.integration
def test_a_killed_process_ends_all_others_and_any_number_resumes(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "ranks"
    process = torchrun(2, *options(dataset, run, updates=100_000))
    waited_for(run, process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    code, _, _ = ended(process)
    assert code != 0
    alone(*options(dataset, run, "--resume", "--quiet", updates=1000))
    alone(*options(dataset, tmp_path / "one", "--quiet", updates=1000))
    np.testing.assert_allclose(curve(run, "loss"), curve(tmp_path / "one", "loss"), rtol=0, atol=1e-3)


@pytest.mark.integration
def test_a_stop_saves_the_same_update_in_all_processes(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(2, *options(dataset, run, updates=100000))
    waited_for(run, process)
    process.send_signal(signal.SIGTERM)
    code, out, errors = ended(process)
    assert code != 0
    assert out == ""
    assert errors.count("stopped by SIGTERM after") == 1
    assert "the same command with --resume" in errors
    assert f"after {json.loads((run / 'state.json').read_text())['update']} updates" in errors
