"""uint8 observations: scaled by the bounds of their space, or by 255 where a run says nothing of it; images for the MLP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from grid_recording import OBSERVATIONS, grid_episodes
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.modules.drawing import chance_size, drawn_actions
from offline_cli.modules.encoders import BY_255, BY_BOUNDS, ObservationEncoder
from offline_cli.modules.images import flattened_images
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.spaces import Space
from offline_cli.training.train import train_bc
from offline_cli.trees import Tree, flatten, map_leaves

Write = Callable[..., Path]
TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
OLD_RUN = TESTDATA / "run_by_255"  # see tests/support/grid_recording.py
KNOWN: dict[str, Any] = json.loads((TESTDATA / "run_by_255.json").read_text())  # what it played and scored when it was made


def tensors(tree: Tree) -> Tree:
    return map_leaves(lambda leaf: torch.as_tensor(np.array(leaf)), tree)


@pytest.fixture
def grids(write_dataset: Write) -> Path:
    return write_dataset(grid_episodes(), name="grids", action_scale="normalized")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\nlr = 0.02\nthreads = 1\ncheckpoint_every = 10\n")
    return tmp_path / "c.toml"


# ---- runs that say nothing of it ----


def test_a_run_from_before_the_entry_plays_as_it_was_trained() -> None:
    module = load_policy(OLD_RUN).module
    observations = tensors(grid_episodes().acted_obs())
    with torch.inference_mode():
        inputs = module.forward_exploration({"obs": observations})["action_dist_inputs"]
        size = chance_size(module.action_head)
        chance = torch.as_tensor((np.arange(len(inputs) * size).reshape(-1, size) * 0.61803398875 % 1).astype(np.float32))
        drawn = drawn_actions(module.action_head, inputs, chance)
        found = {"greedy": module.act(observations), "drawn": drawn, "logp": module.action_head.logp(inputs, drawn)}
    for path, leaf in flatten(found):
        name = path.replace("greedy.", "greedy").replace("drawn.", "drawn")
        np.testing.assert_allclose(leaf[KNOWN["rows"]], KNOWN[name], rtol=1e-4, atol=1e-5, err_msg=path)


def test_the_scaling_decides_what_the_old_run_plays(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD_RUN, tmp_path / "run"))
    told = json.loads((run / "policy.json").read_text())
    (run / "policy.json").write_text(json.dumps(told | {"uint8_scaling": BY_BOUNDS}))
    observations = tensors(grid_episodes().acted_obs())
    aims = [load_policy(folder).module.act(observations)[0] for folder in (OLD_RUN, run)]
    assert (aims[0] - aims[1]).abs().max() > 0.1


def test_a_scaling_that_is_not_known_is_refused(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD_RUN, tmp_path / "run"))
    told = json.loads((run / "policy.json").read_text())
    (run / "policy.json").write_text(json.dumps(told | {"uint8_scaling": "by the mean"}))
    with pytest.raises(BadData, match="by the mean"):
        load_policy(run)


# ---- runs begun from now on ----


@pytest.mark.parametrize("how", [{}, {"streaming": True}], ids=["in memory", "streaming"])
def test_a_new_run_stores_that_it_scales_by_the_bounds_and_resumes_so(
    how: dict[str, Any], grids: Path, config: Path, tmp_path: Path
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train_bc(grids, whole, config=config, updates=20, **how)
    train_bc(grids, parted, config=config, updates=10, **how)
    train_bc(grids, parted, updates=20, resume=True)
    assert json.loads((whole / "policy.json").read_text())["uint8_scaling"] == BY_BOUNDS
    assert (whole / "policy.safetensors").read_bytes() == (parted / "policy.safetensors").read_bytes()
    observations = grid_episodes().acted_obs()
    found = load_policy(whole).module.encoder(tensors(observations))  # type: ignore[operator]
    assert torch.equal(found[:, :4], torch.as_tensor(observations["grid"].reshape(-1, 4)).float()), "a grid of 0 and 1"
    np.testing.assert_allclose(found[:, 4:7], observations["pixels"] / 255, rtol=1e-6)


def test_a_run_on_other_observations_stores_no_scaling(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, updates=2)
    assert "uint8_scaling" not in json.loads((tmp_path / "run" / "policy.json").read_text())


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


# ---- the encoder ----


def test_every_element_goes_by_its_own_bounds() -> None:
    low, high = np.array([[0, 10], [3, 7]], np.uint8), np.array([[1, 20], [255, 7]], np.uint8)
    encoder = ObservationEncoder(spaces.Box(low, high, dtype=np.uint8))
    middle = np.array([[1, 15], [129, 7]], np.uint8)
    found = encoder(torch.as_tensor(np.stack([low, middle, high])))
    np.testing.assert_allclose(found, [[0, 0, 0, 0], [1, 0.5, 0.5, 0], [1, 1, 1, 0]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (40, 36, 3), (4, 40, 36)], ids=str)
def test_bytes_of_the_whole_range_are_divided_by_255_bit_for_bit(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    leaf = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8))
    encoders = []
    for scaling in (BY_BOUNDS, BY_255):
        torch.manual_seed(0)
        encoders.append(ObservationEncoder(space, uint8_scaling=scaling))
    with torch.inference_mode():
        assert torch.equal(encoders[0](leaf), encoders[1](leaf))


def test_an_image_of_two_colours_goes_through_the_convolutions_as_zeros_and_ones() -> None:
    image = np.random.default_rng(0).integers(0, 2, (2, 40, 40, 1), np.uint8)
    encoders = []
    for high, scaling in ((1, BY_BOUNDS), (255, BY_255)):
        torch.manual_seed(0)
        encoders.append(ObservationEncoder(spaces.Box(0, high, (40, 40, 1), np.uint8), uint8_scaling=scaling))
    with torch.inference_mode():
        assert torch.equal(encoders[0](torch.as_tensor(image)), encoders[1](torch.as_tensor(image * np.uint8(255))))


@pytest.mark.parametrize(
    ("space", "flattened"),
    [
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), []),
        (spaces.Box(0, 255, (32, 32, 3), np.uint8), ["obs"]),
        (spaces.Box(0, 255, (84, 84), np.uint8), ["obs"]),
        (spaces.Box(0, 255, (84, 3, 84), np.uint8), ["obs"]),
        (spaces.Box(0, 1, (84, 84, 3), np.float32), ["obs"]),
        (spaces.MultiBinary([8, 8]), ["obs"]),
        (spaces.Box(0, 255, (128,), np.uint8), []),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), []),
        (OBSERVATIONS, ["obs.grid"]),
    ],
    ids=str,
)
def test_leaves_with_several_axes_that_the_convolutions_do_not_take_are_named(space: Space, flattened: list[str]) -> None:
    assert [note.partition(",")[0] for note in flattened_images(space, "obs")] == flattened
    assert ObservationEncoder(space).size > 0
