"""A policy in a program: what it does is what `evaluate` plays, one observation or many at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import recording_pieces
from gymnasium import spaces
from recordings import FILTER, STACK

from offline_cli import load_policy
from offline_cli.connectors.learner import FrameStackingLearner
from offline_cli.environments import open_environment
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.modules import build_module
from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.returns import play
from offline_cli.policies.module_policy import ModulePolicy
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Purpose, reset_seed, stand_in
from offline_cli.policies.policy_in_use import PolicyInUse
from offline_cli.training.train import train_bc

SEED = 5


def played_one_by_one(policy: PolicyInUse, env: Any, episodes: int, *, seed: int = SEED) -> list[float]:
    """Returns of the episodes of an evaluation, one after the other."""
    returns = []
    for number in range(episodes):
        observation, _ = env.reset(seed=reset_seed(seed, number, Purpose.EVALUATE))
        total, done, reward = 0.0, False, None
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation, reward=reward))
            total, done = total + reward, terminated or truncated
        policy.reset()
        returns.append(total)
    return returns


def played_side_by_side(policy: PolicyInUse, make: Callable[[], Any], episodes: int, rows: int) -> list[float]:
    """The same in `rows` environments, each of which takes the next episode when its own ends."""
    envs, returns = [make() for _ in range(rows)], [0.0] * episodes
    numbers, begun = list(range(rows)), rows
    seen = [env.reset(seed=reset_seed(SEED, number, Purpose.EVALUATE))[0] for env, number in zip(envs, numbers, strict=True)]
    rewards = np.zeros(rows)
    ended = 0
    while ended < episodes:
        actions = policy.act(np.stack(seen), reward=rewards)
        over = np.zeros(rows, np.bool_)
        for row, env in enumerate(envs):
            seen[row], rewards[row], terminated, truncated, _ = env.step(actions[row])
            if numbers[row] < episodes:
                returns[numbers[row]] += rewards[row]
            if terminated or truncated:
                ended += numbers[row] < episodes
                numbers[row], begun, over[row] = begun, begun + 1, True
                seen[row] = env.reset(seed=reset_seed(SEED, numbers[row], Purpose.EVALUATE))[0]
        policy.reset(over)
    return returns


def told_of(returns: list[float]) -> tuple[float, float, float, float]:
    found = np.asarray(returns)
    return float(found.mean()), float(found.std(ddof=1)), float(found.min()), float(found.max())


def evaluated(run: Any, **options: Any) -> tuple[float, float, float, float]:
    found = evaluate(run, seed=SEED, **options)
    return found.return_mean, found.return_std, found.return_min, found.return_max


@pytest.mark.parametrize("explore", [False, True])
def test_pendulum_played_by_hand_returns_what_evaluate_measures(run_folder: Callable[..., Path], explore: bool) -> None:
    run = run_folder("Pendulum-v1")
    policy = load_policy(run, explore=explore, seed=SEED)
    found = played_one_by_one(policy, gym.make("Pendulum-v1"), 6)
    assert told_of(found) == pytest.approx(evaluated(run, env="Pendulum-v1", episodes=6, explore=explore), rel=1e-4)
    assert not policy.has_memory


@pytest.mark.parametrize("explore", [False, True])
def test_stacked_frames_and_a_filter_are_inside_one_by_one_and_side_by_side(
    run_through_pieces: Callable[..., str], explore: bool
) -> None:
    run = run_through_pieces(FILTER, STACK, env="CartPole-v1")
    measured = evaluated(run, env="CartPole-v1", episodes=20, explore=explore)
    policy = load_policy(run, explore=explore, seed=SEED)
    assert policy.has_memory
    assert policy.observation_space.shape == (4,)  # not what the network sees
    assert told_of(played_one_by_one(policy, gym.make("CartPole-v1"), 20)) == measured
    policy.reset(seed=SEED)
    assert told_of(played_side_by_side(policy, lambda: gym.make("CartPole-v1"), 20, 5)) == measured


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("name", ["memory", "memory_stacked"])
def test_a_network_with_memory_returns_what_the_play_engine_measures(name: str, explore: bool, tmp_path: Path) -> None:
    pieces = tmp_path / "stack.toml"
    pieces.write_text('kind = "env_to_module"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n')
    given: dict[str, Any] = {"env_to_module": pieces} if name == "memory_stacked" else {}
    env = "recording_envs:Count-v0"
    policy = load_policy(f"python:recording_pieces:{name}", env=env, explore=explore, seed=SEED, **given)
    with open_environment(env) as environment:
        spec: dict[str, Any] = {"pieces": PlaySpec.of(given.get("env_to_module")), "explore": explore}
        module = getattr(recording_pieces, name)
        measured = play(module, environment, 16, seed=SEED, purpose=Purpose.EVALUATE, **spec).returns.tolist()
    assert played_one_by_one(policy, gym.make(env), 16) == measured
    assert policy.has_memory


NESTED = spaces.Dict({"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, ())])})


@pytest.fixture
def nested() -> PolicyInUse:
    """Observations in Dict and Tuple, actions in boxes that are not the network's."""
    acts = spaces.Dict({"go": spaces.Box(2.0, 6.0, (2,), np.float32), "pick": spaces.Discrete(3, start=4)})
    module = build_module(NESTED, acts, hidden=[8], action_scale="normalized", seed=1)
    return PolicyInUse(ModulePolicy(module, stand_in("nested", (NESTED, acts)), device="cpu", fingerprint=""))


def observations(count: int) -> list[Any]:
    NESTED.seed(0)
    return [NESTED.sample() for _ in range(count)]


def test_one_observation_and_a_batch_of_dicts_and_tuples_get_the_same_actions_in_the_environments_units(
    nested: PolicyInUse,
) -> None:
    seen = observations(21)
    batch = {"a": [np.stack([one["a"][i] for one in seen]) for i in range(2)], "b": np.stack([one["b"] for one in seen])}
    many, single = nested.act(batch), [nested.act(one) for one in seen]
    for row, one in enumerate(single):
        assert nested.action_space.contains(one)
        np.testing.assert_allclose(many["go"][row], one["go"], rtol=1e-5)
        assert many["pick"][row] == one["pick"]
    assert nested.act({"a": (np.zeros(0, np.int64), np.zeros(0)), "b": np.zeros((0, 2))})["go"].shape == (0, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        [0.0, 0.0],
        {"b": np.zeros(2)},
        {"a": (0, 1.0), "b": np.zeros(3)},
        {"a": (np.zeros(2, int), np.zeros(2)), "b": np.zeros((3, 2))},
        {"a": (0.5, 1.0), "b": np.zeros(2)},
    ],
)
def test_what_is_not_of_the_space_is_refused_with_the_space(nested: PolicyInUse, wrong: Any) -> None:
    with pytest.raises(SpaceMismatch) as caught:
        nested.act(wrong)
    assert "Dict(a: Tuple(Discrete(3), Box(scalar, float32)), b: Box(2, float32))" in caught.value.what
    assert caught.value.exit_code == 4


def test_the_answer_of_reset_is_refused_with_what_to_pass(nested: PolicyInUse) -> None:
    observation = nested.observation_space.sample()
    with pytest.raises(SpaceMismatch) as caught:
        nested.act((observation, {}))
    assert "(observation, info)" in caught.value.fix
    assert "Box" in repr(nested)


@pytest.fixture
def sb3_model(tmp_path: Path) -> tuple[Any, Path]:
    """A model of stable-baselines3 and its file."""
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu", seed=0)
    model.save(tmp_path / "ppo.zip")
    return model, tmp_path / "ppo.zip"


def test_a_model_of_stable_baselines3_acts_without_an_environment(sb3_model: tuple[Any, Path]) -> None:
    model, file = sb3_model
    rows = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    policy = load_policy(f"sb3:{file}")
    np.testing.assert_array_equal(policy.act(rows), model.predict(rows, deterministic=True)[0])
    assert policy.run is None


def test_a_run_trained_through_python_objects_plays_between_the_pieces_that_are_named(
    recorded: Callable[..., Path], pipeline_file: Callable[..., str], tmp_path: Path
) -> None:
    def pieces(observation_space: Any, action_space: Any) -> Any:
        return FrameStackingLearner(num_frames=4)

    beside, run, env = pipeline_file(STACK, kind="env_to_module"), tmp_path / "run", "recording_envs:Count-v0"
    train_bc(recorded(episodes=4), run, pipeline=pieces, env_to_module=beside, updates=2, batch_size=8)
    with pytest.raises(BadConfig, match="FrameStacking"):
        load_policy(run)
    policy = load_policy(run, env_to_module=beside)
    assert told_of(played_one_by_one(policy, gym.make(env), 16)) == evaluated(run, env=env, episodes=16, env_to_module=beside)


def test_an_observation_that_is_not_finite_is_refused_with_leaf_and_row(nested: PolicyInUse) -> None:
    seen = {"a": (np.zeros(3, int), np.zeros(3)), "b": np.zeros((3, 2), np.float32)}
    seen["b"][1, 0] = np.nan  # type: ignore[call-overload, index]
    with pytest.raises(BadData, match=r"observation\.b.* row 1 of 3"):
        nested.act(seen)
