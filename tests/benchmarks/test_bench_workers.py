"""Figures of several processes are rates beside those of one; without Ray its row says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import workers
from benchmarks.harness import Missing

SECONDS = {"local": 4.0, "processes": 2.0, "ray": 2.5}


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    asked: list[tuple[int, str]] = []

    def seconds_of(_: str, episodes: int, *engine: str) -> float:
        asked.append((episodes, engine[1]))
        return SECONDS[engine[1]]

    monkeypatch.setattr(workers, "seconds_of", seconds_of)
    return asked


def test_processes_are_put_beside_one_and_ray_beside_processes(
    seconds: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def cluster() -> Iterator[str]:
        yield "here"

    monkeypatch.setattr(workers, "cluster", cluster)
    monkeypatch.setattr(workers, "versions", lambda name: f"{name} 1")
    processes, ray = workers.recording(episodes=400, pairs=2)
    assert seconds == [*[(200, "processes"), (200, "local")] * 2, *[(400, "ray"), (400, "processes")] * 2]
    assert (processes.ours, processes.rival, processes.ratio) == (100.0, 50.0, 2.0)
    assert (ray.ours, ray.rival, ray.ratio, ray.met()) == (160.0, 200.0, 0.8, False)


def test_without_ray_its_row_is_not_measured(seconds: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster() -> None:
        raise Missing("ray is not installed")

    monkeypatch.setattr(workers, "cluster", cluster)
    processes, ray = workers.recording(episodes=400, pairs=2)
    assert processes.ratio == 2.0
    assert ray.not_measured == "ray is not installed"
