"""The recorded `action_dist_inputs` are the distribution that was played: every `action_logp` follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from recording_answers import ANSWERS
from safetensors.torch import save_file

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.meanings import NO_MEANINGS
from offline_cli.modules.distributions import LOG_STD_RANGE
from offline_cli.spaces import Space
from offline_cli.training.config import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.run_folder import describe_policy
from offline_cli.training.training_data import DataFacts
from offline_cli.trees import Tree, map_leaves

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
File = Callable[..., str]
ENV = "recording_answers:Answering-v0"
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
STEEP = torch.tensor([0.3, -0.2, -60.0, 60.0])  # what the last layer adds: log standard deviations far beyond both limits
SCALED: dict[str, Any] = {"use": "odd_pieces:Scaled"}


def run_folder(folder: Path, space: Space, scale: str) -> Path:
    """A finished run whose network puts out log standard deviations beyond the limits."""
    config = BCConfig(hidden=(16,))
    learner = Setup.of(config).learner(OBSERVATIONS, space, scale)
    data: Any = SimpleNamespace(observation_space=OBSERVATIONS, action_space=space, action_scale=scale, learner=learner)
    data.recorded_in, data.trained, data.facts, data.meanings = None, None, DataFacts(), NO_MEANINGS
    module = learner.policy
    with torch.no_grad():
        last = list(module.parameters())[-1]
        last += STEEP.repeat(len(last))[: len(last)]
    folder.mkdir()
    (folder / "config.toml").touch()
    (folder / "policy.json").write_text(json.dumps(describe_policy(data, config)))
    save_file(module.state_dict(), folder / "policy.safetensors")
    return folder


def played(recorded: Record, read: Read, run: Path, name: str, **options: Any) -> EpisodeBatch:
    batch = read(recorded(ENV, env_kwargs={"name": name}, policy=str(run), explore=True, episodes=15, **options))
    assert batch.num_steps > 100
    return batch


def textbook(space: Space, inputs: NDArray[np.float64], actions: Tree) -> NDArray[np.float64]:
    """(N,) log-likelihoods of actions (N, ...) under rows (N, k) of distribution inputs, as they stand."""
    rows = np.arange(len(inputs))
    match space:
        case spaces.Discrete():
            return np.asarray(inputs[rows, actions - space.start] - np.logaddexp.reduce(inputs, axis=1))
        case spaces.MultiDiscrete():
            cuts = np.split(inputs, np.cumsum(space.nvec)[:-1], axis=1)
            choices = [spaces.Discrete(int(count)) for count in space.nvec]
            parts = [textbook(*part) for part in zip(choices, cuts, actions.T, strict=True)]
            return np.sum(parts, axis=0)
        case spaces.MultiBinary():
            return np.asarray(-np.logaddexp(0, np.where(actions == 1, -inputs, inputs)).sum(1))
        case spaces.Box():
            mean, log_std = np.split(inputs, 2, axis=1)
            z = (actions.reshape(len(rows), -1) - mean) / np.exp(log_std)
            return np.asarray((-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1))
    keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
    total, first = np.zeros(len(rows)), 0
    for key in keys:
        size = inputs_of(space[key])
        total += textbook(space[key], inputs[:, first : first + size], actions[key])
        first += size
    return total


def inputs_of(space: Space) -> int:
    """How many distribution inputs an action of `space` takes."""
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.MultiBinary():
            return int(np.prod(space.shape))
        case spaces.Box():
            return 2 * int(np.prod(space.shape))
    return sum(map(inputs_of, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))


def check(space: Space, batch: EpisodeBatch) -> None:
    wanted = textbook(space, np.asarray(batch.extra["action_dist_inputs"], np.float64), batch.actions)
    np.testing.assert_allclose(batch.extra["action_logp"], wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_likelihood_of_every_drawn_action_follows_from_the_recorded_inputs(
    name: str, recorded: Record, read: Read, tmp_path: Path
) -> None:
    check(ANSWERS[name], played(recorded, read, run_folder(tmp_path / "run", ANSWERS[name], "normalized"), name))


@pytest.mark.parametrize("name", ["box", "dict"])
def test_it_follows_too_where_the_policy_plays_through_pieces(
    name: str, recorded: Record, read: Read, pipeline_file: File, tmp_path: Path
) -> None:
    run, file = run_folder(tmp_path / "run", ANSWERS[name], "env"), pipeline_file(SCALED, kind="env_to_module")
    check(ANSWERS[name], played(recorded, read, run, name, env_to_module=file))


def test_a_greedy_recording_has_the_inputs_that_exploring_would_have_played(
    recorded: Record, read: Read, tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", ANSWERS["box"], "env")
    batch = read(recorded(ENV, env_kwargs={"name": "box"}, policy=str(run)))
    inputs = batch.extra["action_dist_inputs"]
    np.testing.assert_array_equal(batch.actions, inputs[:, :2])
    assert np.unique(inputs[:, 2:], axis=0).tolist() == [list(LOG_STD_RANGE)]


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "tuple with bits"])  # RLlib has no distribution of bits
def test_rllibs_own_distributions_give_every_recorded_likelihood(
    name: str, recorded: Record, read: Read, tmp_path: Path
) -> None:
    from ray.rllib.core.models.catalog import Catalog

    space = ANSWERS[name]
    batch = played(recorded, read, run_folder(tmp_path / "run", space, "normalized"), name)
    inputs = torch.as_tensor(np.array(batch.extra["action_dist_inputs"]))
    flat = spaces.utils.flatten_space(space) if isinstance(space, spaces.Box) else space  # RLlib's boxes are vectors
    theirs = Catalog._get_dist_cls_from_action_space(flat, framework="torch").from_logits(inputs)
    actions = map_leaves(lambda leaf: torch.as_tensor(np.array(leaf)), batch.actions)
    if isinstance(space, spaces.Discrete):
        actions = actions - int(space.start)  # RLlib counts from 0
    elif isinstance(space, spaces.Box):
        actions = actions.flatten(1)
    np.testing.assert_allclose(batch.extra["action_logp"], theirs.logp(actions), rtol=1e-4, atol=1e-3)
