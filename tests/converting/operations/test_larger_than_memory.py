"""Operations keep to `--memory-limit` on data that does not fit into it: the whole process, with all that it imports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch

pytestmark = pytest.mark.nightly

LIMIT = 256 << 20
OBS, ACTIONS = spaces.Box(-10, 10, (4,)), spaces.Discrete(4)
AT_ONCE = 100_000  # steps made at a time


def write(folder: Path, steps: int, length: int, row_format: str) -> None:
    random, episodes = np.random.default_rng(0), AT_ONCE // length
    with DatasetWriter(folder, format=row_format, observation_space=OBS, action_space=ACTIONS, action_scale="env") as writer:
        for first in range(0, steps // length, episodes):
            batch = EpisodeBatch(
                ids=tuple(f"episode-{first + e:08}" for e in range(episodes)),
                starts=np.arange(episodes + 1) * length,
                obs=(random.integers(-500, 500, (episodes * (length + 1), 4)) / 50).astype(np.float32),
                actions=random.integers(0, 4, AT_ONCE),
                rewards=random.integers(0, 10, AT_ONCE).astype(np.float64),
                terminated=np.ones(episodes, np.bool_),
                truncated=np.zeros(episodes, np.bool_),
                observation_space=OBS,
                action_space=ACTIONS,
            )
            writer.write(batch)
        writer.commit()


@pytest.mark.parametrize(
    ("words", "row_format", "length"),
    [
        (["filter", "--where", "return > 0"], "columns", 500),
        (["repack", "--max-rows-per-file", "1000000"], "episodes", 20),
    ],
    ids=["filter", "repack"],
)
def test_two_million_steps_are_handed_through_within_256_mib(
    words: list[str], row_format: str, length: int, tmp_path: Path, measured: Callable[..., tuple[str, int]]
) -> None:
    write(tmp_path / "data", 2_000_000, length, row_format)
    command = [sys.executable, "-m", "offline_cli", *words, str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    out, peak = measured([*command, "--memory-limit", "256MiB", "--json", "--quiet"])
    assert json.loads(out)["steps"] == 2_000_000
    assert peak <= LIMIT, f"{peak / 2**20:.0f} MiB"
