"""What can play: run folders, Python code, models of stable-baselines3; and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, SpaceMismatch, StorageNotFound
from offline_cli.policies.run_policy import load_policy

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def test_a_run_plays_greedily_and_keeps_its_model_outputs(
    recorded: Record, read: Read, run_folder: Callable[..., Path]
) -> None:
    run = str(run_folder("CartPole-v1"))
    batch = read(recorded("CartPole-v1", policy=run, episodes=4))
    module = load_policy(run).module
    with torch.no_grad():
        wanted = module.forward_inference({"obs": torch.as_tensor(np.array(batch.acted_obs()))})["action_dist_inputs"].numpy()
    np.testing.assert_allclose(batch.extra["action_dist_inputs"], wanted, atol=1e-6)
    np.testing.assert_array_equal(batch.actions, batch.extra["action_dist_inputs"].argmax(-1))
    assert not batch.extra["action_logp"].any()


def test_a_run_that_explores_draws_by_its_own_likelihoods(
    recorded: Record, read: Read, run_folder: Callable[..., Path]
) -> None:
    batch = read(recorded("CartPole-v1", policy=str(run_folder("CartPole-v1")), explore=True, episodes=60))
    logits = torch.as_tensor(np.array(batch.extra["action_dist_inputs"]))
    chance = torch.log_softmax(logits, -1)
    picked = chance[torch.arange(len(chance)), torch.as_tensor(np.array(batch.actions))]
    np.testing.assert_allclose(batch.extra["action_logp"], picked.numpy(), atol=1e-6)
    share, expected = float((batch.actions == 1).mean()), float(chance.exp()[:, 1].mean())
    assert abs(share - expected) < 4 * np.sqrt(0.25 / len(chance))


def test_functions_of_one_observation_and_of_batches_play_alike(recorded: Record, read: Read) -> None:
    one = read(recorded(policy="python:recording_envs:one_at_a_time"))
    many = read(recorded(policy="python:recording_envs:batched"))
    np.testing.assert_array_equal(one.actions, many.actions)
    np.testing.assert_array_equal(one.obs, many.obs)


def test_a_function_gets_the_flag_and_the_chance_that_it_asks_for(recorded: Record, read: Read) -> None:
    policy = "python:recording_envs:by_chance"
    assert not read(recorded(policy=policy)).actions.any()
    assert set(read(recorded(policy=policy, explore=True)).actions.tolist()) == {0, 1, 2}


def test_a_model_that_saw_images_of_a_dict_with_channels_first_plays(recorded: Record, read: Read) -> None:
    batch = read(recorded("recording_envs:Pictures-v0", policy="python:recording_envs:Viewer"))
    np.testing.assert_array_equal(batch.actions, batch.timesteps() % 3)


def test_a_policy_for_other_spaces_is_refused_with_both(recorded: Record, run_folder: Callable[..., Path]) -> None:
    cases = {
        "python:recording_envs:Stranger": r"Discrete\(4\).*Discrete\(3\)",
        "python:recording_envs:too_many": r"\(3, 3, 2\).*Discrete\(3\)",
    }
    cases[str(run_folder("CartPole-v1"))] = r"Box\(4, float32\).*Box\(3, float32\)"
    for policy, told in cases.items():
        with pytest.raises(SpaceMismatch, match=told) as caught:
            recorded(policy=policy)
        assert caught.value.exit_code == 4


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.integration)])
def test_a_policy_that_raises_is_named_with_the_episodes_it_was_asked_for(runners: int, recorded: Record) -> None:
    failing: dict[str, Any] = {"policy": "python:recording_envs:failing", "num_env_runners": runners, "episodes": 200}
    with pytest.raises(BadData, match="no idea") as caught:
        recorded(**failing, num_envs=40)
    assert caught.value.where.startswith("recording_envs:Count-v0, episodes ")
    with pytest.raises(BadData, match="no idea") as caught:
        recorded(**failing, num_envs=1)
    name, _, step = caught.value.where.split(", ")
    assert (name, step) == ("recording_envs:Count-v0", "step 2")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("python:recording_envs:nobody", BadConfig),
        ("python:nowhere_at_all:policy", BadConfig),
        ("rllib:missing", StorageNotFound),
        ("onnx:missing.onnx", StorageNotFound),
        ("sb3:missing.zip", StorageNotFound),
        ("no-such-run", StorageNotFound),
    ],
)
def test_what_is_no_policy_is_refused_by_name(policy: str, error: type[Exception], recorded: Record, tmp_path: Path) -> None:
    with pytest.raises(error):
        recorded(policy=policy)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("algorithm", "explore"), [("PPO", False), ("DQN", True), ("TD3", True)])
def test_models_of_stable_baselines3_play(
    algorithm: str, explore: bool, recorded: Record, read: Read, tmp_path: Path, same: Same
) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    env = "recording_envs:Aim-v0" if algorithm == "TD3" else "recording_envs:Count-v0"
    options = {"buffer_size": 100} if algorithm != "PPO" else {}
    model = getattr(sb3, algorithm)("MlpPolicy", gym.make(env), device="cpu", seed=0, **options)
    model.save(tmp_path / "model")
    few, again = (read(recorded(env, policy=f"sb3:{tmp_path / 'model'}", explore=explore, num_envs=5)) for _ in range(2))
    same(few, again)
    if not explore:
        wanted, _ = model.predict(np.array(few.acted_obs()), deterministic=True)
        np.testing.assert_allclose(few.actions, wanted, atol=1e-5)
