"""The scale of Box actions, from recording to environment: the same episodes in either scale teach the same policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.playing.evaluate import evaluate
from offline_cli.recording.record import record
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.training.config import resolve_config
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import load_data
from offline_cli.trees import Tree, flatten, map_leaves

Write = Callable[..., Path]
SMALL = "hidden = [16]\nbatch_size = 64\nlr = 0.01\n"
ASYMMETRIC = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))
SPACES: dict[str, Space] = {
    "asymmetric": ASYMMETRIC,
    "float64": spaces.Box(-3.0, 11.0, (2,), np.float64),
    "integer": spaces.Box(-3, 8, (2,), np.int32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "nested": spaces.Dict({"aim": ASYMMETRIC, "more": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (1,), np.int64)])}),
}
GIVEN: list[Tree] = []  # every action that an environment was given since the test began


class Taking(gym.Env[Any, Any]):
    """Takes actions of `SPACES[name]` only, ten to an episode."""

    def __init__(self, name: str) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = SPACES[name]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._seen(), {}

    def _seen(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        GIVEN.append(action)
        self._left -= 1
        return self._seen(), 1.0, self._left == 0, False, {}


@pytest.fixture(autouse=True)
def environments() -> Iterator[None]:
    """`Taking-<name>-v0` for every space."""
    GIVEN.clear()
    for name in SPACES:
        gym.register(f"Taking-{name}-v0", Taking, kwargs={"name": name})
    yield
    for name in SPACES:
        del gym.registry[f"Taking-{name}-v0"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def recorded(tmp_path: Path, name: str) -> Path:
    """Random actions, as the environment took them."""
    record(f"Taking-{name}-v0", tmp_path / "env", policy="random", episodes=12, vectorize="sync", device="cpu")
    return tmp_path / "env"


def batch_of(folder: Path) -> EpisodeBatch:
    return EpisodeBatch.concat(list(open_dataset(str(folder)).batches()))


def normalised(batch: EpisodeBatch) -> EpisodeBatch:
    """The same episodes as a recorder of normalized actions had written them: RLlib's formula, which skips integers."""
    parts = leaf_spaces(batch.action_space)

    def one(leaf: Any, space: Any) -> Any:
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not np.isfinite(space.high).all():
            return leaf
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return ((leaf - low) * 2 / (high - low) - 1).astype(leaf.dtype)

    changed = iter([one(leaf, parts[path]) for path, leaf in flatten(batch.actions)])
    return replace(batch, actions=map_leaves(lambda _: next(changed), batch.actions))


@pytest.mark.parametrize("name", SPACES)
def test_the_same_episodes_in_either_scale_give_the_same_weights_and_the_same_played_actions(
    name: str, write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    source = recorded(tmp_path, name)
    other = write_dataset(normalised(batch_of(source)), name="other", action_scale="normalized")
    weights, played = [], []
    for data, run in ((source, tmp_path / "run-env"), (other, tmp_path / "run-normalized")):
        train_bc(data, run, config=config, env=f"Taking-{name}-v0", epochs=5, eval_episodes=1)
        weights.append(load_file(run / "policy.safetensors"))
        GIVEN.clear()
        evaluate(run, episodes=3)
        played.append(list(GIVEN))
    assert weights[0].keys() == weights[1].keys()
    for key, tensor in weights[0].items():
        np.testing.assert_array_equal(tensor, weights[1][key])
    assert len(played[0]) == 30
    for one, two in zip(*played, strict=True):
        for (path, left), (_, right) in zip(flatten(one), flatten(two), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=path)


def test_a_run_is_recorded_in_its_own_outputs_and_the_recording_teaches_the_same_actions(
    config: Path, write_dataset: Write, tmp_path: Path
) -> None:
    batch = batch_of(recorded(tmp_path, "asymmetric"))
    constant = np.broadcast_to(np.array([-1.5, 7.5], np.float32), batch.actions.shape)
    data = write_dataset(replace(batch, actions=constant), action_scale="env")
    train_bc(data, tmp_path / "run", config=config, epochs=200)
    out, again = tmp_path / "recorded", tmp_path / "again"
    record("Taking-asymmetric-v0", out, policy=str(tmp_path / "run"), episodes=12, vectorize="sync", device="cpu")
    assert open_dataset(str(out)).manifest.action_scale == "normalized"
    np.testing.assert_allclose(batch_of(out).actions.mean(0), [-0.6, 0.5], atol=0.1)
    train_bc(out, again, config=config, epochs=200)
    GIVEN.clear()
    evaluate(again, env="Taking-asymmetric-v0", episodes=3)
    np.testing.assert_allclose(np.mean(GIVEN, axis=0), [-1.5, 7.5], atol=0.4)


def test_box_actions_of_unknown_scale_are_refused_before_training_and_whole_numbers_are_not(
    write_dataset: Write, tmp_path: Path
) -> None:
    unknown = write_dataset(batch_of(recorded(tmp_path, "asymmetric")), name="unknown")
    with pytest.raises(BadConfig):
        load_data(str(unknown), resolve_config({}), on_progress=lambda progress: None)
    with pytest.raises(BadConfig) as caught:
        train_bc(unknown, tmp_path / "run", updates=1)
    assert "--action-scale env" in caught.value.fix
    assert not (tmp_path / "run").exists()
    whole = write_dataset(batch_of(recorded(tmp_path / "whole", "integer")), name="integers")
    train_bc(whole, tmp_path / "run", updates=1)
    assert json.loads((tmp_path / "run" / "policy.json").read_text())["action_scale"] == "env"
