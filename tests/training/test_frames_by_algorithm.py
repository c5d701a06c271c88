"""Images and stacks of them, for each of our algorithms; a small game of images is learned from its expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.write_dataset import write_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train

SIDE = 36


class Catch(gym.Env[Any, Any]):
    """A ball falls and bounces between the walls; the paddle at the bottom is to be under it. One frame hides where it goes."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)

    def __init__(self, continuous: bool = False) -> None:
        self.continuous = continuous
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.ball, self.paddle = int(self.np_random.integers(2, SIDE - 2)), int(self.np_random.integers(2, SIDE - 2))
        self.drift, self.row = int(self.np_random.choice([-2, 2])), 1
        return self._drawn(), {}

    def _drawn(self) -> Any:
        image = np.zeros((SIDE, SIDE), np.uint8)
        image[self.row - 1 : self.row + 2, self.ball - 1 : self.ball + 2] = 255
        image[SIDE - 2 :, self.paddle - 2 : self.paddle + 3] = 160
        return image

    def expert(self) -> int:
        """Towards where the ball is after the next step."""
        ahead = self.ball + self.drift
        return int(np.sign((ahead if 2 <= ahead < SIDE - 2 else self.ball - self.drift) - self.paddle)) + 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = float(action[0]) if self.continuous else int(action) - 1
        self.paddle = int(np.clip(self.paddle + round(3 * push), 2, SIDE - 3))
        if not 2 <= self.ball + self.drift < SIDE - 2:
            self.drift = -self.drift
        self.ball, self.row = self.ball + self.drift, self.row + 2
        caught, over = abs(self.ball - self.paddle) <= 3, self.row >= SIDE - 3
        return self._drawn(), float(over and caught), over, False, {}


def played(episodes: int, *, continuous: bool = False) -> EpisodeBatch:
    """Of the expert."""
    env, found = Catch(continuous), []
    for number in range(episodes):
        first, _ = env.reset(seed=number)
        episode = SingleAgentEpisode(
            id_=f"{number}", observation_space=env.observation_space, action_space=env.action_space, observations=[first]
        )
        over = False
        while not over:
            action = env.expert()
            given = np.array([action - 1], np.float32) if continuous else action
            seen, reward, over, _, _ = env.step(given)
            episode.add_env_step(seen, given, reward, terminated=over)
        found.append(episode)
    return EpisodeBatch.from_episodes(found)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    file = tmp_path / "stack.toml"
    file.write_text('kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\nadd_channel_axis = true\n')
    return file


@pytest.fixture
def catch() -> Any:
    gym.register("Catch-v0", Catch)
    yield "Catch-v0"
    del gym.registry["Catch-v0"]


@pytest.mark.parametrize("algorithm", ["bc", "marwil", "iql", "td3-bc"])
@pytest.mark.parametrize("stacked", [False, True], ids=["frames", "stacks"])
def test_the_policy_of_a_run_sees_the_frames_or_the_stacks(algorithm: str, stacked: bool, stack: Path, tmp_path: Path) -> None:
    continuous = algorithm == "td3-bc"
    write_dataset([played(3, continuous=continuous)], tmp_path / "data", action_scale="env")
    config = tmp_path / "c.toml"
    config.write_text("hidden = [8]\nbatch_size = 8\nthreads = 1\n")
    options = {"pipeline": stack} if stacked else {}
    result = train(
        tmp_path / "data",
        tmp_path / "run",
        algorithm=algorithm,
        config=config,
        updates=2,
        **options,
    )
    assert result.loss is not None
    module: Any = load_policy(tmp_path / "run").module
    assert module.observation_space.shape == ((SIDE, SIDE, 2) if stacked else (SIDE, SIDE))
    assert module.encoder.parts[0].convolutions[0].in_channels == (2 if stacked else 1)


@pytest.mark.nightly
def test_a_clone_of_images_plays_as_its_expert(catch: str, stack: Path, tmp_path: Path) -> None:
    expert = played(300)
    assert (expert.returns == 1).mean() > 0.95
    write_dataset([expert], tmp_path / "data", action_scale="env")
    config = tmp_path / "c.toml"
    config.write_text("hidden = [64]\nbatch_size = 128\nlr = 0.001\n")
    train(tmp_path / "data", tmp_path / "run", algorithm="bc", config=config, pipeline=stack, updates=400)
    found = evaluate(tmp_path / "run", env=catch, episodes=100, seed=9)
    assert found.return_mean >= 0.9 * float(expert.returns.mean())
