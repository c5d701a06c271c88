"""Many times as many steps as fit into 512 MiB are learned from within 512 MiB: the whole process, with all that it imports."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location

pytestmark = pytest.mark.nightly

LIMIT = 512 << 20
PART = 16 << 20  # bytes of observations made at a time
PATTERN = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)  # what all observations are cut from
CONFIG = "hidden = [32]\nbatch_size = 1024\nlog_every = 200\nthreads = 1\n"


def part_of(first: int, episodes: int, length: int, space: spaces.Box) -> EpisodeBatch:
    """Episodes whose observations take much memory and, being repetitive, little disk."""
    steps, size = episodes * length, math.prod(space.shape)
    places = np.arange(first, first + steps + episodes) * 8191 % (len(PATTERN) - size)
    obs = PATTERN[places[:, None] + np.arange(size)].reshape(-1, *space.shape)
    return EpisodeBatch(
        ids=tuple(f"episode-{first + i}" for i in range(episodes)),
        starts=np.arange(episodes + 1) * length,
        obs=obs if space.dtype == np.uint8 else (obs / 128 - 1).astype(np.float32),
        actions=np.arange(first, first + steps) % 3,
        rewards=np.ones(steps),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        observation_space=space,
        action_space=spaces.Discrete(3),
    )


def write(folder: Path, size: int, length: int, space: spaces.Box) -> int:
    """A dataset whose steps take `size` bytes in memory; how many steps."""
    row = math.prod(space.shape) * np.dtype(space.dtype).itemsize
    episodes, at_once = size // (row + 8) // length, max(1, PART // row // length)
    options: dict[str, Any] = {"observation_space": space, "action_space": spaces.Discrete(3), "action_scale": "env"}
    with DatasetWriter(open_location(str(folder)), format="episodes", **options) as writer:
        for first in range(0, episodes, at_once):
            writer.write(part_of(first * (length + 1), min(at_once, episodes - first), length, space))
        writer.commit()
    return episodes * length


@pytest.mark.parametrize(
    ("times", "length", "space", "options"),
    [
        pytest.param(10, 200, spaces.Box(-1.0, 1.0, (64,)), [], marks=pytest.mark.nightly),
        (3, 200, spaces.Box(-1.0, 1.0, (64,)), []),
        pytest.param(
            1.5, 200, spaces.Box(-1.0, 1.0, (4,)), ["--val-fraction", "0.2", "--eval-every", "400"], marks=pytest.mark.nightly
        ),
        pytest.param(1.5, 20, spaces.Box(-1.0, 1.0, (32,)), [], marks=pytest.mark.nightly),
        (1.5, 100, spaces.Box(0, 255, (36, 36), np.uint8), ["--batch-size", "64"]),
    ],
    ids=["ten times the limit", "three times the limit", "small steps, some held out", "short episodes", "frames"],
)
def test_steps_that_memory_does_not_hold_are_learned_from_within_the_limit(
    tmp_path: Path, measured: Callable[..., tuple[str, int]], times: float, length: int, space: spaces.Box, options: list[str]
) -> None:
    needed = int(times + 1) * LIMIT + (1 << 30)
    if (free := shutil.disk_usage(tmp_path).free) < needed:
        pytest.skip(f"{free / 1e9:.1f} GB are free below {tmp_path}, and {needed / 1e9:.1f} GB are needed")
    steps = write(tmp_path / "data", int(times * LIMIT), length, space)
    (tmp_path / "c.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "offline_cli", "train-bc", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    command += ["--streaming", "--memory-limit", "512MiB", "--temp-dir", str(tmp_path), "--config", str(tmp_path / "c.toml")]
    updates = 100 if space.dtype == np.uint8 else 800  # frames go through convolutions
    out, peak = measured([*command, "--updates", str(updates), "--device", "cpu", "--json", *options])
    result = json.loads(out)
    assert (result["updates"], result["steps"]) == (updates, steps)
    assert peak <= LIMIT, f"{peak / 2**20:.0f} MiB"


def test_without_streaming_they_are_refused(tmp_path: Path, call: Callable[..., Any]) -> None:
    write(tmp_path / "data", LIMIT, 200, spaces.Box(-1.0, 1.0, (64,)))
    code, found = call("train-bc", tmp_path / "data", "--out", tmp_path / "run", "--memory-limit", "512MiB")
    assert code == 4
    assert "--streaming" in found["error"]["fix"]
