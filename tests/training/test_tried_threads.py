"""Threads are tried out where a new run has convolutions; nothing that is learned depends on the trial."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli.datasets.write_dataset import write_dataset as write
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules import devices
from offline_cli.modules.devices import quickest, threads_to_try
from offline_cli.training.train import train_bc

Write = Callable[..., Path]


def images() -> EpisodeBatch:
    chance = np.random.default_rng(0)
    return EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, 6, 12]),
        obs=chance.integers(0, 256, (14, 36, 36, 1), np.uint8),
        actions=chance.integers(0, 2, 12),
        rewards=np.ones(12),
        terminated=np.array([True, True]),
        truncated=np.array([False, False]),
        observation_space=spaces.Box(0, 255, (36, 36, 1), np.uint8),
        action_space=spaces.Discrete(2),
    )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What was tried, on a machine of four cores that is quickest with one thread."""
    found: list[list[int]] = []

    def first(counts: list[int], work: Callable[[], None], mean: Callable[[float], float]) -> int:
        found.append(list(counts))
        assert mean(2.0) == 2.0, "of one process"
        for _ in range(3):
            work()
        return counts[0]

    monkeypatch.setattr(devices, "_cores", lambda: 4)
    monkeypatch.setattr("offline_cli.training.session.quickest", first)
    return found


def run(data: Path, out: Path, **options: Any) -> dict[str, Any]:
    config = out.parent / "c.toml"
    config.write_text(f"hidden = [8]\nbatch_size = 6\nlog_every = 2\ndropout = 0.2\n{options.pop('said', '')}\n")
    train_bc(data, out, config=config, **options)
    return tomllib.loads((out / "config.toml").read_text())


def test_a_new_run_on_images_keeps_what_was_quickest_and_learns_as_if_nothing_had_been_tried(
    tried: list[list[int]], tmp_path: Path
) -> None:
    write([images()], tmp_path / "data", action_scale="env")
    assert run(tmp_path / "data", tmp_path / "run", updates=6)["threads"] == 1
    assert run(tmp_path / "data", tmp_path / "said", updates=6, said="threads = 1")["threads"] == 1
    assert tried == [[1, 4]]
    weights = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("run", "said")]
    assert weights[0] == weights[1]


def test_a_resumed_run_has_the_threads_that_it_began_with(tried: list[list[int]], tmp_path: Path) -> None:
    write([images()], tmp_path / "data", action_scale="env")
    run(tmp_path / "data", tmp_path / "run", updates=2)
    result = train_bc(tmp_path / "data", tmp_path / "run", updates=4, resume=True)
    assert (result.threads, len(tried)) == (1, 1)


def test_nothing_is_tried_without_convolutions(tried: list[list[int]], write_dataset: Write, tmp_path: Path) -> None:
    assert "threads" not in run(write_dataset(), tmp_path / "run", updates=2)
    assert tried == []


def test_one_core_and_a_gpu_leave_nothing_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cores", lambda: 16)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    assert threads_to_try(module, torch.device("cpu")) == [1, devices.MAX_THREADS]
    assert threads_to_try(module, torch.device("cuda")) == []
    monkeypatch.setattr(devices, "_cores", lambda: 1)
    assert threads_to_try(module, torch.device("cpu")) == []


@pytest.mark.parametrize(("seconds", "best"), [({1: 1.0, 2: 0.5}, 2), ({1: 1.0, 2: 0.95}, 1), ({1: 0.3, 2: 1.2}, 1)])
def test_more_threads_have_to_save_a_tenth(seconds: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def work() -> None:
        now[0] += seconds[torch.get_num_threads()]

    monkeypatch.setattr(devices.time, "perf_counter", lambda: now[0])
    before = torch.get_num_threads()
    assert quickest([1, 2], work) == best
    assert torch.get_num_threads() == before
