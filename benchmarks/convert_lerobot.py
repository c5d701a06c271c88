"""How fast does a LeRobot dataset become episodes? Rival: its frames as a table by a mapping, with the same code beneath."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from gymnasium import spaces

from benchmarks.harness import Row, paired
from benchmarks.targets import Target
from offline_cli import EpisodeBatch, write_dataset
from offline_cli.converting.convert import convert

STEPS: Final = 1_000_000
LENGTH: Final = 200
AT_ONCE: Final = 500  # episodes
OBSERVATION, ACTION = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)
MAPPING: Final = {
    "unmapped": "drop",
    "columns": {
        "eps_id": "episode_index",
        "t": "frame_index",
        "obs": "observation.state",
        "actions": "action",
        "rewards": "next.reward",
        "terminateds": "next.done",
        "truncateds": "next.truncated",
    },
}
TARGET: Final = Target(0.8, words="the speed of a table")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_dataset(episodes(), folder / "ours", action_scale="env", observation_space=OBSERVATION, action_space=ACTION)
        convert([str(folder / "ours")], str(folder / "lerobot"), to="lerobot")
        frames = [str(file) for file in sorted((folder / "lerobot" / "data").rglob("*.parquet"))]
        question = paired(
            f"LeRobot v3.0, 1 M frames in {LENGTH}-step episodes, a row group each",
            amount=STEPS,
            unit="frames/s",
            ours=lambda: convert([str(folder / "lerobot")], str(folder / "out"), overwrite=True),
            rival=lambda: convert(frames, str(folder / "table"), mapping=MAPPING, overwrite=True),
            rival_name="the same Parquet files as a table, by a mapping",
            target=TARGET,
        )
    return [question]


def episodes() -> Iterator[EpisodeBatch]:
    """Random numbers."""
    rng = np.random.default_rng(0)
    for first in range(0, STEPS // LENGTH, AT_ONCE):
        steps = AT_ONCE * LENGTH
        ended = np.ones(AT_ONCE, np.bool_)
        yield EpisodeBatch(
            ids=tuple(f"e{first + number}" for number in range(AT_ONCE)),
            starts=np.arange(AT_ONCE + 1) * LENGTH,
            obs=rng.standard_normal((steps + AT_ONCE, 4)).astype(np.float32),
            actions=rng.standard_normal((steps, 2)).astype(np.float32),
            rewards=np.ones(steps),
            terminated=ended,
            truncated=~ended,
            custom_data=({"fps": 30, "task": "push"},) * AT_ONCE,
        )
