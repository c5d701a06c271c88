"""RLlib's policies both ways: RLlib loads what `export --to rllib` wrote, and its checkpoints play here as they play there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from exported_policies import KINDS, Exports

from offline_cli import Columns, export, load_policy
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.policies.policy import reset_seed as environment_seed
from offline_cli.recording.record import record

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("local_ray")]

MODULE = "learner_group/learner/rl_module/default_policy"
ROWS = 10_000


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, random_batch: Callable[..., Any]) -> Exports:
    return Exports(tmp_path_factory.mktemp("exports"), random_batch)


def loaded(folder: Path) -> Any:
    from ray.rllib.core.rl_module.rl_module import RLModule

    return RLModule.from_checkpoint(str(folder))


# ---- from here to RLlib ----


@pytest.mark.parametrize("name", ["continuous", "several", "lstm alone"])
def test_rllibs_module_has_the_actions_and_log_probabilities_of_the_run(name: str, exports: Exports, tmp_path: Path) -> None:
    run, kind = exports.run(name), KINDS[name]
    export(run, tmp_path / "checkpoint", to="rllib")
    theirs, ours = loaded(tmp_path / "checkpoint"), load_policy(run).module
    assert ours is not None
    kind.observations.seed(5)
    seen = torch.from_numpy(np.stack([kind.observations.sample() for _ in range(ROWS)]))
    here, there = {Columns.OBS: seen}, {"obs": seen.float()}
    if ours.is_stateful():
        state = {name: torch.randn(ROWS // 10, *first.shape) for name, first in ours.get_initial_state().items()}
        steps = seen.reshape(ROWS // 10, 10, -1)
        here, there = {Columns.OBS: steps, Columns.STATE_IN: state}, {"obs": steps, "state_in": state}
    with torch.inference_mode():
        wanted = ours.forward_inference(here)[Columns.ACTION_DIST_INPUTS].flatten(0, -2)
        found = theirs.forward_inference(there)["action_dist_inputs"].flatten(0, -2)
    assert found.std(0).max() > 0.02, "the policy looks at what it is given"
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    distribution = theirs.get_inference_action_dist_cls().from_logits(found)
    drawn = distribution.sample()
    torch.testing.assert_close(distribution.logp(drawn), ours.action_head.logp(wanted, drawn), rtol=1e-4, atol=1e-4)
    greedy = distribution.to_deterministic().sample()
    same = (greedy == ours.action_head.greedy(wanted)).float().mean() if greedy.dtype == torch.int64 else torch.tensor(1.0)
    assert same == 1.0
    assert not theirs.compute_values(there).any()


def config_of_ppo(**model: Any) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(train_batch_size=200, minibatch_size=64, num_epochs=1)
        .debugging(seed=1)
        .rl_module(model_config=DefaultModelConfig(**model))
    )


def test_ppo_goes_on_from_the_clone(told: Callable[..., Any], tmp_path: Path) -> None:
    told("record", "CartPole-v1", "--out", tmp_path / "data", "--policy", "random", "--episodes", 10)
    learn = ("--updates", 20, "--hidden", "32,32", "--device", "cpu")
    told("train-bc", tmp_path / "data", "--out", tmp_path / "run", *learn)
    export(tmp_path / "run", tmp_path / "checkpoint", to="rllib")
    algorithm = config_of_ppo(fcnet_hiddens=[32, 32], fcnet_activation="relu").build_algo()
    try:
        algorithm.restore_from_path(str(tmp_path / "checkpoint"), component=MODULE)
        seen = torch.randn(100, 4)
        ours = load_policy(tmp_path / "run").module
        assert ours is not None
        wanted = ours.forward_inference({Columns.OBS: seen})[Columns.ACTION_DIST_INPUTS]
        theirs = algorithm.learner_group._learner.module["default_policy"]
        torch.testing.assert_close(theirs.forward_inference({"obs": seen})["action_dist_inputs"], wanted)
        result = algorithm.train()
        assert result["learners"]["default_policy"]["total_loss"] is not None
        changed = theirs.forward_inference({"obs": seen})["action_dist_inputs"]
        assert not torch.equal(changed, wanted)
        assert (changed - wanted).abs().max() < 1.0  # it went on from there
    finally:
        algorithm.stop()


# ---- from RLlib to here ----


class Seeded(gym.Wrapper):
    """Resets with the next of these seeds, whatever it is told."""

    def __init__(self, env: Any, seeds: Iterator[int]) -> None:
        super().__init__(env)
        self._seeds = seeds

    def reset(self, **_: Any) -> Any:
        return super().reset(seed=next(self._seeds))


def played_there(algorithm: Any, env: str, episodes: int) -> list[Any]:
    """Greedy episodes by RLlib's own env runner and pipelines, from the seeds of a recording of ours."""
    runner = algorithm.env_runner
    seeds = (environment_seed(0, number) for number in range(episodes * 3))
    runner.env.close()
    from gymnasium.vector import SyncVectorEnv
    from ray.rllib.env.single_agent_env_runner import DictInfoToList

    made = SyncVectorEnv([lambda: Seeded(gym.make(env), seeds)])
    runner.env, runner.num_envs = DictInfoToList(made), 1
    return list(runner.sample(num_episodes=episodes, explore=False))


@pytest.mark.parametrize(
    ("env", "pieces", "model"),
    [("CartPole-v1", True, {}), ("Pendulum-v1", False, {"use_lstm": True, "lstm_cell_size": 8})],
)
def test_a_ppo_checkpoint_records_here_what_it_records_there(
    env: str, pieces: bool, model: dict[str, Any], tmp_path: Path
) -> None:
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    config = config_of_ppo(fcnet_hiddens=[16, 16], **model).environment(env)
    if pieces:
        config = config.env_runners(env_to_module_connector=lambda env, spaces, device: [MeanStdFilter()])
    algorithm = config.build_algo()
    try:
        algorithm.train()
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
        for piece in algorithm.env_runner._env_to_module.connectors:
            if isinstance(piece, MeanStdFilter):
                piece._update_stats = False  # here a filter counts no further observations
        theirs = played_there(algorithm, env, 5)
    finally:
        algorithm.stop()
    policy = f"rllib:{tmp_path / 'checkpoint'}"
    found = record(env, tmp_path / "here", policy=policy, episodes=5, trust_pickle=True, vectorize="sync", device="cpu")
    assert found.action_scale == ("normalized" if env == "Pendulum-v1" else "env")
    ours = list(EpisodeBatch.concat(list(open_dataset(str(tmp_path / "here")).batches())))
    for here, there in zip(ours, theirs, strict=True):
        raw = np.asarray(there.get_observations())
        assert len(here) == len(there)
        np.testing.assert_allclose(here.get_actions(), np.asarray(there.get_actions()), rtol=0, atol=1e-5)
        np.testing.assert_allclose(here.get_rewards(), np.asarray(there.get_rewards()), rtol=0, atol=1e-4)
        if not pieces:  # RLlib's filter writes over what it keeps
            np.testing.assert_allclose(here.get_observations(), raw, rtol=0, atol=1e-4)
    drawn = [tmp_path / name for name in ("drawn", "again")]
    for out in drawn:
        record(env, out, policy=policy, episodes=2, explore=True, seed=4, trust_pickle=True, device="cpu")
    assert len({next((out / "data").iterdir()).read_bytes() for out in drawn}) == 1


def test_a_module_that_puts_out_actions_plays_them(tmp_path: Path) -> None:
    from ray.rllib.algorithms.dqn import DQNConfig

    env = gym.make("CartPole-v1")
    spec = DQNConfig().get_default_rl_module_spec()
    spec.observation_space, spec.action_space, spec.inference_only = env.observation_space, env.action_space, False
    spec.model_config = DQNConfig().model_config
    made = spec.build()
    made.save_to_path(str(tmp_path / "checkpoint"))
    record("CartPole-v1", tmp_path / "here", policy=f"rllib:{tmp_path / 'checkpoint'}", episodes=3, trust_pickle=True)
    here = EpisodeBatch.concat(list(open_dataset(str(tmp_path / "here")).batches()))
    wanted = made.forward_inference({"obs": torch.from_numpy(here.acted_obs())})["actions"]
    np.testing.assert_array_equal(here.actions, wanted)
