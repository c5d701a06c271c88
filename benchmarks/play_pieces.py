"""How fast does a policy play through connector pieces? Rival: the same environment and network without pieces.

CartPole in single copies in turn, 16 slots, one torch thread, all in this process. Two runs that learned from the same
recording: one through a mean-std filter and frames stacked by four, one without. Both record, and both are evaluated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from benchmarks.harness import Row, paired_rates
from benchmarks.targets import Target
from offline_cli import evaluate, record, train_bc

__all__ = ["rows", "single_cartpole"]

ENV = "python:benchmarks.play_pieces:single_cartpole"
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n'
SLOTS, EPISODES = 16, 160
TARGET = Target(0.4, words=">= 0.4 of the speed without pieces")
SMALL: dict[str, Any] = {"batch_size": 256, "updates": 400, "seed": 0, "device": "cpu"}


def single_cartpole() -> Any:
    """CartPole without its vector class."""
    return gym.make("CartPole-v1", disable_env_checker=True)


def rows() -> list[Row]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
        (place / "config.toml").write_text("hidden = [64, 64]\n", encoding="utf-8")
        expert = "python:benchmarks.record_policies:BALANCING"
        record("CartPole-v1", str(place / "expert"), policy=expert, episodes=100, num_envs=64, device="cpu")
        for name, pipeline in (("plain", None), ("pieces", str(place / "pipeline.toml"))):
            options = {**SMALL, "config": str(place / "config.toml"), "pipeline": pipeline}
            train_bc(str(place / "expert"), str(place / name), **options)
        return [one(place, "record"), one(place, "evaluate")]


def one(place: Path, command: str) -> Row:
    """Both make whole episodes, of which each has its own number of steps."""
    play = _recorded if command == "record" else _evaluated
    return paired_rates(
        f"{command} CartPole-v1 through a filter and 4 stacked frames, MLP 64x64, sync, {SLOTS} envs",
        unit="steps/s",
        ours=partial(_rate, play, place, "pieces"),
        rival=partial(_rate, play, place, "plain"),
        rival_name="the same without pieces",
        target=TARGET,
        pairs=5,
    )


def _rate(play: Callable[[Path, str], int], place: Path, name: str) -> float:
    start = time.perf_counter()
    steps = play(place, name)
    return steps / (time.perf_counter() - start)


def _recorded(place: Path, name: str) -> int:
    options: dict[str, Any] = {"policy": str(place / name), "episodes": EPISODES, "num_envs": SLOTS}
    return record(ENV, str(place / f"{name}-recorded"), vectorize="sync", device="cpu", overwrite=True, **options).steps


def _evaluated(place: Path, name: str) -> int:
    told = evaluate(str(place / name), env=ENV, episodes=EPISODES, num_envs=SLOTS, device="cpu")
    return round(told.length_mean * told.episodes)
