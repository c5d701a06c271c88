"""Small datasets to train on, and environments whose episodes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location

WriteDataset = Callable[..., Path]
MakeBatch = Callable[..., EpisodeBatch]


def _make_batch(*, episodes: int = 12, length: int = 40, continuous: bool = False, seed: int = 0) -> EpisodeBatch:
    """Episodes whose action follows from the observation: its sign, or half of its first two numbers."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(max(1, length // 2), length + 1, episodes)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    obs = rng.normal(size=(int(starts[-1]) + episodes, 3)).astype(np.float32)
    acted = obs[np.arange(starts[-1]) + np.repeat(np.arange(episodes), lengths)]
    return EpisodeBatch(
        ids=tuple(f"episode-{seed}-{i}" for i in range(episodes)),
        starts=starts,
        obs=obs,
        actions=acted[:, :2] / 2 if continuous else (acted[:, 0] > 0).astype(np.int64),
        rewards=np.ones(int(starts[-1])),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        observation_space=spaces.Box(-np.inf, np.inf, (3,)),
        action_space=spaces.Box(-4.0, 4.0, (2,)) if continuous else spaces.Discrete(2),
    )


def filmed(lengths: Sequence[int] = (9, 7, 6)) -> EpisodeBatch:
    """Episodes of frames (36, 36) of noise, the smallest that `nature` takes, and Box actions of two numbers."""
    random, episodes, steps = np.random.default_rng(0), len(lengths), sum(lengths)
    return EpisodeBatch(
        ids=tuple(map(str, range(episodes))),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        obs=random.integers(0, 256, (steps + episodes, 36, 36), np.uint8),
        actions=random.uniform(-1, 1, (steps, 2)).astype(np.float32),
        rewards=random.uniform(0, 1, steps),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        observation_space=spaces.Box(0, 255, (36, 36), np.uint8),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
    )


@pytest.fixture(scope="module", autouse=True)
def no_picture() -> Iterator[None]:
    """A curve takes longer than the small runs whose folders it lies in; tests/report and tests/acceptance look at curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offline_cli.training.run_folder.draw_curves", lambda runs, target, **options: None)
        yield


@pytest.fixture
def make_batch() -> MakeBatch:
    """Makes episodes that a small network can learn from: see `_make_batch`."""
    return _make_batch


@pytest.fixture
def write_dataset(tmp_path: Path) -> WriteDataset:
    """Writes a batch as one of our datasets and gives its folder."""

    def write(batch: EpisodeBatch | None = None, *, name: str = "data", action_scale: str = "unknown") -> Path:
        batch = _make_batch() if batch is None else batch
        folder = tmp_path / name
        with DatasetWriter(
            open_location(str(folder)),
            format="episodes",
            observation_space=batch.observation_space,
            action_space=batch.action_space,
            action_scale=action_scale,
        ) as writer:
            writer.write(batch)
            writer.commit()
        return folder

    return write


class SignEnv(gym.Env[Any, Any]):
    """Rewards 1 per right sign; the episode's length, 5 to 24 steps, follows from its seed alone."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        SEEDS.append(seed)
        self._left = int(self.np_random.integers(5, 25))
        return self._observe(), {}

    def _observe(self) -> Any:
        self._seen = self.np_random.normal(size=3).astype(np.float32)
        return self._seen

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._left > 0, "stepped after its end"
        reward = float(int(action) == int(self._seen[0] > 0))
        self._left -= 1
        return self._observe(), reward, self._left == 0, False, {}


class FailingEnv(SignEnv):
    """Raises at its third step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3:
            raise RuntimeError("the motor is on fire")
        return super().step(action)


class NumberlessEnv(SignEnv):
    """Rewards NaN."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *ends = super().step(action)
        return observation, float("nan"), *ends


class MisshapenEnv(SignEnv):
    """Observes one number where its space says three; numpy would repeat it."""

    def _observe(self) -> Any:
        return super()._observe()[:1]


class AimEnv(SignEnv):
    """Box actions in [-2, 2]; notes those that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        GIVEN.append((self._seen.copy(), np.array(action)))
        assert self.action_space.contains(action), action
        return super().step(0)


GIVEN: list[tuple[Any, Any]] = []  # (observation, action) of every step of an AimEnv since the test began
SEEDS: list[int | None] = []  # of every SignEnv reset since the test began


@pytest.fixture
def seeds() -> list[int | None]:
    """The seeds that SignEnv copies were reset with, in order."""
    return SEEDS


@pytest.fixture
def given() -> list[tuple[Any, Any]]:
    """Observation and action of every step of an AimEnv, in order."""
    return GIVEN


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """SignEnv and its kin as gymnasium ids: Sign-v0, Failing-v0, ..."""
    SEEDS.clear()
    GIVEN.clear()
    made = (SignEnv, FailingEnv, NumberlessEnv, MisshapenEnv, AimEnv)
    names = [f"{kind.__name__.removesuffix('Env')}-v0" for kind in made]
    before = {name: gym.registry.pop(name) for name in names if name in gym.registry}  # of other tests in this process
    for name, kind in zip(names, made, strict=True):
        gym.register(name, kind)
    yield
    for name in names:
        del gym.registry[name]
    gym.registry.update(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: networks this small only lose by more, and by much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
