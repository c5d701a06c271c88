"""What a recorded episode is: whole, in order, with its real last observation, and nothing after its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing import loop
from offline_cli.policies.policy import reset_seed as environment_seed
from offline_cli.spaces import same_space

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def lengths_by_seed(count: int, seed: int = 0) -> list[int]:
    return [int(np.random.default_rng(environment_seed(seed, i)).integers(1, 31)) for i in range(count)]


def test_the_episodes_are_those_that_began_first_in_that_order(recorded: Record, read: Read) -> None:
    batch = read(recorded(episodes=40, num_envs=8))
    assert batch.lengths.tolist() == lengths_by_seed(40)


def test_an_episode_holds_every_observation_from_the_reset_to_the_real_last_one(recorded: Record, read: Read) -> None:
    batch = read(recorded(num_envs=5))
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        length = int(batch.lengths[e])
        assert batch.obs[start : start + length + 1, 0].tolist() == list(range(length + 1))
        assert set(batch.obs[start : start + length + 1, 1].tolist()) == {float(length)}


def test_rewards_flags_actions_and_extra_outputs_belong_to_their_steps(recorded: Record, read: Read) -> None:
    batch = read(recorded(num_envs=5))
    t = batch.timesteps()
    np.testing.assert_array_equal(batch.actions, t % 3)
    np.testing.assert_array_equal(batch.extra["guess"], np.stack([t % 3, -(t % 3)], 1))
    np.testing.assert_allclose(batch.rewards, t + 1 + 0.1 * (t % 3))
    np.testing.assert_array_equal(batch.terminated, batch.lengths % 2 == 0)
    np.testing.assert_array_equal(batch.truncated, batch.lengths % 2 == 1)


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_infos_belong_to_their_observations(format: str, recorded: Record, read: Read) -> None:
    batch = read(recorded(num_envs=5, format=format))
    assert batch.infos is not None
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        length = int(batch.lengths[e])
        assert batch.infos[start] == {"seed": environment_seed(0, e)}
        later = [dict(info) for info in batch.infos[start + 1 : start + length + 1]]
        assert later == [{"t": t, "over": t == length} if t % 2 else {} for t in range(1, length + 1)]


def test_steps_give_the_fewest_episodes_that_have_so_many(recorded: Record, read: Read) -> None:
    sums = np.cumsum(lengths_by_seed(60)).tolist()
    for steps in (1, sums[7], sums[7] + 1, sums[30] - 1):
        batch = read(recorded(steps=steps, num_envs=7))
        assert batch.num_steps == min(total for total in sums if total >= steps)


def test_nested_observations_and_actions_keep_structure_and_dtypes(recorded: Record, read: Read) -> None:
    env = gym.make("recording_envs:Nested-v0")
    for format in ("episodes", "columns"):
        batch = read(recorded("recording_envs:Nested-v0", policy="random", format=format, num_envs=3))
        assert same_space(batch.observation_space, env.observation_space)
        np.testing.assert_array_equal(batch.acted_obs()["pair"][0], batch.timesteps())
        assert all(env.action_space.contains(action) for action in zip(*batch.actions, strict=True))


def test_arrays_that_an_environment_fills_again_are_recorded_as_they_were(recorded: Record, read: Read) -> None:
    batch = read(recorded("recording_envs:Reusing-v0", policy="random", num_envs=3))
    assert batch.infos is not None
    counted = batch.obs[:, 0].tolist()
    assert [info["place"].tolist() for info in batch.infos] == [[t, t] for t in counted]
    assert [info["nested"]["t"] for info in batch.infos] == counted


def test_an_environment_is_named_by_a_function_made_with_arguments_and_wrapped(recorded: Record, read: Read) -> None:
    out = recorded("python:recording_envs:make_count", env_kwargs={"shift": 10}, wrappers=["recording_envs:Doubled"])
    first = read(out).obs[0]
    assert first[0] == 20.0
    manifest = json.loads((out / "manifest.json").read_text())
    environment = {"id": "python:recording_envs:make_count", "kwargs": {"shift": 10}, "wrappers": ["recording_envs:Doubled"]}
    assert manifest["environment"] == environment


def test_the_manifest_tells_policy_environment_scale_and_seeds(recorded: Record) -> None:
    manifest = open_dataset(str(recorded(seed=9))).manifest
    assert manifest.complete
    assert manifest.action_scale == "env"
    assert manifest.environment is not None
    assert manifest.environment.id == "recording_envs:Count-v0"
    assert manifest.provenance["policy"] == "python:recording_envs:batched"
    assert manifest.provenance["seeds"] == [9]
    assert manifest.provenance["recording"]["first_environment_seed"] == environment_seed(9, 0)


def test_shards_are_cut_by_rows(recorded: Record, read: Read, same: Same) -> None:
    whole, cut = recorded(), recorded(max_rows_per_file=5)
    assert [shard.rows for shard in open_dataset(str(cut)).manifest.shards] == [5, 5, 2]
    same(read(whole), read(cut))


def test_long_episodes_hold_back_new_ones_and_change_nothing(
    recorded: Record, read: Read, same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = read(recorded(episodes=50, num_envs=8))
    monkeypatch.setattr(loop, "HELD_BYTES", 1500)
    same(plain, read(recorded(episodes=50, num_envs=8)))


def test_the_same_command_gives_the_same_bytes(recorded: Record) -> None:
    shards = [next((recorded(policy="random", num_envs=5) / "data").iterdir()) for _ in range(2)]
    assert (shards[0].name, shards[0].read_bytes()) == (shards[1].name, shards[1].read_bytes())
