"""uint8 observations: scaled by the bounds of their space; images for the MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from grid_recording import grid_episodes
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.evaluate import evaluate
from offline_cli.training.train import train_bc

Write = Callable[..., Path]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\nlr = 0.02\nthreads = 1\ncheckpoint_every = 10\n")
    return tmp_path / "c.toml"


class Board(gym.Env[Any, Any]):
    """Shows 3 x 1 binary images, and rewards the action that is in the first pixel."""

    observation_space = spaces.Box(0, 1, (3, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._look(), {}

    def _look(self) -> Any:
        self._seen = self.np_random.integers(0, 2, (3, 1), np.uint8)
        return self._seen

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self._left = float(action == self._seen[0, 0]), self._left - 1
        return self._look(), reward, self._left == 0, False, {}


def boards() -> EpisodeBatch:
    batch = replace(grid_episodes(episodes=20), action_space=Board.action_space, observation_space=Board.observation_space)
    obs = np.random.default_rng(0).integers(0, 2, (len(batch.obs["speed"]), 3, 1), np.uint8)
    batch = replace(batch, obs=obs)
    return replace(batch, actions=batch.acted_obs()[:, 0, 0].astype(np.int64))


def test_a_binary_grid_is_learned_in_a_few_updates_through_pieces_that_keep_it_uint8(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    gym.register("Board-v0", Board)
    try:
        file = tmp_path / "pipeline.toml"
        file.write_text('kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n')
        data = write_dataset(boards(), name="boards")
        result = train_bc(data, tmp_path / "run", config=config, env="Board-v0", pipeline=file, updates=40, eval_every=40)
        assert result.eval_return_mean == 10
        assert evaluate(tmp_path / "run", env="Board-v0", episodes=5).return_mean == 10
    finally:
        del gym.registry["Board-v0"]
