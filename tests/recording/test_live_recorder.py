"""What a program's own loop plays becomes a dataset: every step once, whole episodes whatever ends the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_envs import Aim, Count, Nested

from offline_cli import Recorder, SingleAgentEpisode, inspect, open_dataset, validate
from offline_cli.errors import BadData, UsageError


def episodes_of(folder: Path) -> list[SingleAgentEpisode]:
    with open_dataset(folder) as dataset:
        return [episode.to_numpy() for episode in dataset]


def played(env: gym.Env[Any, Any], seeds: range, leave_at: dict[int, int] | None = None) -> list[SingleAgentEpisode]:
    """The loop of a program, which writes down by itself what it sees; `leave_at`: steps after which an episode is left."""
    found = []
    env.action_space.seed(seeds.start)
    for seed in seeds:
        episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
        episode.add_env_reset(*env.reset(seed=seed))
        while not episode.is_done and len(episode) != (leave_at or {}).get(seed):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            episode.add_env_step(observation, action, reward, info, terminated=terminated, truncated=truncated)
        found.append(episode.to_numpy())
    return found


def assert_same(ours: list[SingleAgentEpisode], theirs: list[SingleAgentEpisode]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for get in ("get_observations", "get_actions", "get_rewards"):
            left, right = (flat(getattr(episode, get)()) for episode in (one, other))
            assert [leaf.tolist() for leaf in left] == [leaf.tolist() for leaf in right]
        assert (one.is_terminated, one.is_truncated) == (other.is_terminated, other.is_truncated)
        assert [info or {} for info in one.get_infos()] == [info or {} for info in other.get_infos()]


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in flat(value[name])]
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, tuple) else [np.asarray(value)]


@pytest.mark.parametrize("format", ["episodes", "columns"])
@pytest.mark.parametrize("make", [Aim, Nested])
def test_every_step_of_a_loop_is_recorded_once(make: Any, format: str, tmp_path: Path) -> None:
    with Recorder(make(), tmp_path / "D", format=format) as env:
        theirs = played(env, range(1, 40))
    assert_same(episodes_of(tmp_path / "D"), theirs)
    assert [problem.code for problem in validate(tmp_path / "D").problems if problem.severity != "note"] == []


def test_what_the_loop_does_to_an_observation_is_not_recorded(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D") as env:
        observation, _ = env.reset(seed=1)
        first = observation.copy()
        observation[:] = 99
        done = False
        while not done:
            observation, _, terminated, truncated, _ = env.step(1)
            observation[:] = 99
            done = terminated or truncated
    observations = episodes_of(tmp_path / "D")[0].get_observations()
    assert (observations[0] == first).all()
    assert (observations < 99).all()


@settings(max_examples=5, deadline=None)
@given(left=st.dictionaries(st.integers(0, 9), st.integers(0, 30), max_size=10))
def test_episodes_left_before_their_end_are_kept_as_truncated(left: dict[int, int], tmp_path_factory: Any) -> None:
    out = tmp_path_factory.mktemp("left") / "D"
    with Recorder(Count(), out) as env:
        theirs = played(env, range(10), leave_at=left)
    kept = [episode for episode in theirs if len(episode)]
    unfinished = sum(not episode.is_done for episode in kept)
    if not kept:
        assert not out.exists()
        return
    for episode in kept:
        episode.is_truncated = episode.is_truncated or not episode.is_done
    assert_same(episodes_of(out), kept)
    found = inspect(out)
    assert (found.episodes, found.assumptions.get("unfinished-episode", 0)) == (len(kept), unfinished)


def test_extra_model_outputs_are_recorded_beside_the_step(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D") as env:
        env.reset(seed=3)
        done, count = False, 0
        while not done:
            env.add_outputs(action_logp=-0.5 * count, action_dist_inputs=np.full(3, count, np.float32))
            _, _, terminated, truncated, _ = env.step(0)
            done, count = terminated or truncated, count + 1
    episode = episodes_of(tmp_path / "D")[0]
    assert episode.get_extra_model_outputs("action_logp").tolist() == [-0.5 * t for t in range(count)]
    assert episode.get_extra_model_outputs("action_dist_inputs").tolist() == [[t] * 3 for t in range(count)]


class Odd(Count):
    reward: Any = 1.0
    observation: Any = None

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation if self.observation is None else self.observation, self.reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("reward", None, "reward.*None"),
        ("reward", "1.0", "reward.*'1.0'"),
        ("observation", np.zeros(2, np.float32), r"observation.*\(2,\)"),
    ],
)
def test_values_that_no_dataset_can_hold_are_named(name: str, value: Any, named: str, tmp_path: Path) -> None:
    env = Odd()
    setattr(env, name, value)
    with pytest.raises(BadData, match=named), Recorder(env, tmp_path / "D") as recorder:
        recorder.reset(seed=1)
        for _ in range(40):
            recorder.step(0)


def test_a_step_after_the_end_is_refused(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D") as env:
        played(env, range(1))
        with pytest.raises(UsageError):
            env.step(0)
    assert len(episodes_of(tmp_path / "D")) == 1


def test_what_the_environment_raises_comes_through_and_whole_episodes_stay(tmp_path: Path) -> None:
    env = Count()
    env.reset(seed=5)
    env.fail_at = env.length
    with pytest.raises(RuntimeError, match="on fire"), Recorder(env, tmp_path / "D") as recorder:
        played(recorder, range(6))
    found = inspect(tmp_path / "D")
    assert found.episodes == 5
    assert found.complete is False
    assert found.assumptions == {}


def test_resume_continues_what_was_left_incomplete(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Recorder(Count(), tmp_path / "D") as recorder:
        first = played(recorder, range(5))
        raise KeyboardInterrupt
    with Recorder(Count(), tmp_path / "D", resume=True) as recorder:
        second = played(recorder, range(5, 9))
    assert_same(episodes_of(tmp_path / "D"), [*first, *second])
    assert inspect(tmp_path / "D").complete


def test_append_adds_to_a_dataset(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D") as recorder:
        first = played(recorder, range(5))
    with Recorder(Count(), tmp_path / "D", append=True) as recorder:
        second = played(recorder, range(5))  # the same episodes again, which are others by their ids
    assert_same(episodes_of(tmp_path / "D"), [*first, *second])


def test_the_manifest_says_how_gymnasium_made_the_environment(tmp_path: Path) -> None:
    made = gym.make("CartPole-v1", max_episode_steps=20, sutton_barto_reward=True)
    with Recorder(gym.wrappers.TimeAwareObservation(made), tmp_path / "D") as env:
        played(env, range(2))
    with open_dataset(tmp_path / "D") as dataset:
        environment = dataset.manifest.environment
    assert environment is not None
    assert (environment.id, environment.kwargs) == ("CartPole-v1", {"max_episode_steps": 20, "sutton_barto_reward": True})
    assert [text.partition(":")[0] for text in environment.wrappers] == ["TimeAwareObservation"]


def test_an_environment_that_gymnasium_does_not_know_has_the_name_that_is_given(tmp_path: Path) -> None:
    with Recorder(Count(), tmp_path / "D", env_id="python:recording_envs:Count", policy="by hand") as env:
        played(env, range(2))
    with open_dataset(tmp_path / "D") as dataset:
        manifest = dataset.manifest
    assert manifest.environment is not None
    assert manifest.environment.id == "python:recording_envs:Count"
    assert manifest.provenance["policy"] == "by hand"


SCRIPT = """
import sys
import gymnasium as gym
from offline_cli import Recorder
env = Recorder(gym.make("CartPole-v1"), sys.argv[1])
for seed in range(3):
    env.reset(seed=seed)
    done = False
    while not done:
        _, _, terminated, truncated, _ = env.step(0)
        done = terminated or truncated
env.reset(seed=9)
env.step(0)
"""


@pytest.mark.integration
def test_a_program_that_forgets_to_close_keeps_its_whole_episodes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "D")], capture_output=True, text=True, check=True)
    assert "the recorder was not closed; 3 episodes are saved as incomplete" in done.stderr
    found = inspect(tmp_path / "D")
    assert (found.episodes, found.complete) == (3, False)
