"""The example classes of RLlib's documents on connectors, taken over with their import lines changed: they run, and do what the
text around them promises.

What is mended in them is said at each place, and is nothing but: names that are not defined, bounds that were not tiled along
with the shape, indices per step on the learner side, a shape that is no tuple, bounds given as lists (gymnasium takes arrays).
"""

# ruff: noqa: PT018, B905  the examples are left as they were written
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor, env_to_module_pipeline
from offline_cli.connectors.learner.added_columns import learner_pipeline
from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline
from offline_cli.connectors.pipeline_player import PipelinePlayer
from offline_cli.modules import build_module

VECTOR = gym.spaces.Box(np.array([-99.0, -100.0], np.float32), np.array([99.0, 100.0], np.float32))
CHOICES = gym.spaces.Discrete(2)


# ---- the examples ----


class OneHot(ObservationPreprocessor):
    # Converts int observations (Discrete) into one-hot tensors (Box).
    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        # Based on the input observation space (), return the output observation
        # space. Implementing this method is crucial for the pipeline to know its output
        # spaces, which are an important piece of information to construct the succeeding
        # RLModule.
        return gym.spaces.Box(0.0, 1.0, (in_obs_space.n,), np.float32)

    def preprocess(self, observation):
        # Convert an input observation (int) into a one-hot (float) tensor.
        # Note that 99% of all connectors in RLlib operator in the "numpy space".
        new_obs = np.zeros(shape=self.observation_space.shape, dtype=np.float32)
        new_obs[observation] = 1.0
        return new_obs


class OlderOneHot(ObservationPreprocessor):
    # Converts int observations (Discrete) into one-hot tensors (Box).
    def recompute_observation_space_from_input_spaces(self):
        # Mended: the shape was (n), which is no tuple.
        return gym.spaces.Box(0.0, 1.0, (self.input_observation_space.n,), np.float32)

    def preprocess(self, observation):
        # Convert an input observation (int) into a one-hot (float) tensor.
        # Note that 99% of all connectors in RLlib operator in the "numpy space".
        new_obs = np.zeros(shape=(self.input_observation_space.n,), dtype=np.float32)
        new_obs[observation] = 1.0
        return new_obs


class AddLastRewardToObservations(ConnectorV2):
    # Define how the observation space will change because of this connector piece.
    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        # For simplicity, assert input obs space is a 1D Box
        assert isinstance(in_obs_space, gym.spaces.Box) and len(in_obs_space.shape) == 1
        return gym.spaces.Box(
            low=np.append(in_obs_space.low, float("-inf")),  # mended: was list(low) + [...]
            high=np.append(in_obs_space.high, float("inf")),  # mended likewise
            shape=(in_obs_space.shape[0] + 1,),
            dtype=in_obs_space.dtype,
        )

    # Define the actual transformation.
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        # Loop through all `episodes`.
        for single_agent_episode in self.single_agent_episode_iterator(episodes):
            # Get last reward (or 0.0 if right after `env.reset`).
            reward = single_agent_episode.get_reward(-1, fill=0.0)
            # Get last observation.
            obs = single_agent_episode.get_observation(-1)
            # Append reward to obs array.
            new_obs = np.append(obs, reward)

            # Write new observation back into the episode.
            single_agent_episode.set_observation(new_value=new_obs, at_index=-1)

        return batch


class StackLast10Observations(ConnectorV2):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):  # mended: names of arguments
        # Assume the input observation space is a Box of shape (N,).
        assert isinstance(input_observation_space, gym.spaces.Box) and len(input_observation_space.shape) == 1

        # This connector concatenates the last 10 observations at axis=0, so the
        # output space has a shape of (10*N,).
        return gym.spaces.Box(
            low=np.tile(input_observation_space.low, 10),  # mended: tiled
            high=np.tile(input_observation_space.high, 10),  # mended: tiled
            shape=(input_observation_space.shape[0] * 10,),
            dtype=input_observation_space.dtype,
        )

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        # Assume that the input `batch` is empty. Note that this may not be the case
        # if you have other custom connector pieces before this one.
        assert not batch

        # Loop through all (single-agent) episodes.
        for single_agent_episode in self.single_agent_episode_iterator(episodes):
            # Get the 10 most recent observations from the episodes.
            last_10_obs = single_agent_episode.get_observations(indices=[-10, -9, -8, -7, -6, -5, -4, -3, -2, -1], fill=0.0)
            # Concatenate the two observations.
            new_obs = np.concatenate(last_10_obs, axis=0)

            # Add the new observation to the `batch` using the
            # `ConnectorV2.add_batch_item()` utility.
            self.add_batch_item(
                batch=batch,
                column=Columns.OBS,
                item_to_add=new_obs,
                single_agent_episode=single_agent_episode,
            )

            # Note that we do not write the stacked observations back into the episode
            # as this would interfere with the next call of this same connector (it
            # would try to stack already stacked observations and thus produce a shape error).

        # Return batch (with stacked observations).
        return batch


class StackFourObservations(ConnectorV2):
    """A connector piece that stacks the previous four observations into one.

    Works both as Learner connector as well as env-to-module connector.
    """

    def recompute_output_observation_space(
        self,
        input_observation_space,
        input_action_space,
    ):
        # Assume the input observation space is a Box of shape (x,).
        assert isinstance(input_observation_space, gym.spaces.Box) and len(input_observation_space.shape) == 1

        # This connector concatenates the last four observations at axis=0, so the
        # output space has a shape of (4*x,).
        return gym.spaces.Box(
            low=np.tile(input_observation_space.low, 4),  # mended: tiled
            high=np.tile(input_observation_space.high, 4),  # mended: tiled
            shape=(input_observation_space.shape[0] * 4,),
            dtype=input_observation_space.dtype,
        )

    def __init__(
        self,
        input_observation_space,
        input_action_space,
        *,
        as_learner_connector,
        **kwargs,
    ):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._as_learner_connector = as_learner_connector

    def __call__(self, *, rl_module, batch, episodes, **kwargs):

        # Loop through all (single-agent) episodes.
        for sa_episode in self.single_agent_episode_iterator(episodes):
            # Mended: on the learner side once for each step that was acted on.
            for ts in range(len(sa_episode)) if self._as_learner_connector else [None]:
                # Get the four most recent observations from the episodes.
                last_4_obs = sa_episode.get_observations(
                    indices=[-4, -3, -2, -1] if ts is None else [ts - 3, ts - 2, ts - 1, ts],
                    fill=0.0,  # Left-zero-fill in case you reach beginning of episode.
                    neg_index_as_lookback=ts is not None,
                )
                # Concatenate all stacked observations.
                new_obs = np.concatenate(last_4_obs, axis=0)

                # Add the stacked observations to the `batch` using the
                # `ConnectorV2.add_batch_item()` utility.

                # Note that you don't change the episode here, which means, if `self` is
                # the env-to-module connector piece (as opposed to the Learner connector
                # piece), the episode collected still has only single, non-stacked
                # observations, which the Learner pipeline must stack again for the
                # `forward_train()` pass through the model.
                self.add_batch_item(
                    batch=batch,
                    column=Columns.OBS,
                    item_to_add=new_obs,
                    single_agent_episode=sa_episode,
                )

        # Return batch (with stacked observations).
        return batch


class CountBasedIntrinsicRewards(ConnectorV2):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

        # Observation counter to compute state visitation frequencies.
        self._counts = Counter()

    def __call__(
        self,
        *,
        rl_module,
        batch,
        episodes,
        explore=None,
        shared_data=None,
        **kwargs,
    ):
        for sa_episode in self.single_agent_episode_iterator(episodes=episodes, agents_that_stepped_only=False):
            # Loop through all observations, except the last one.
            observations = sa_episode.get_observations(slice(None, -1))
            # Get all respective extrinsic rewards.
            rewards = sa_episode.get_rewards()

            for i, (obs, rew) in enumerate(zip(observations, rewards)):
                # Add 1 to obs counter.
                obs = tuple(obs)
                self._counts[obs] += 1
                # Compute the count-based intrinsic reward and add it to the extrinsic
                # reward.
                rew += 1 / self._counts[obs]
                # Store the new reward back to the episode (under the correct
                # timestep/index).
                sa_episode.set_rewards(new_data=rew, at_indices=i)

        return batch


# ---- what the text promises ----


def going_on(steps: int, id_: str = "e") -> SingleAgentEpisode:
    """An episode of `steps` steps whose observation t is [t, -t] and whose reward t is 10 + t."""
    episode = SingleAgentEpisode(id_=id_, observation_space=VECTOR, action_space=CHOICES)
    episode.add_env_reset(np.array([0, 0], np.float32))
    for t in range(steps):
        episode.add_env_step(np.array([t + 1, -t - 1], np.float32), t % 2, 10.0 + t)
    return episode


def stacked(first: int, last: int, count: int) -> list[float]:
    """Observations `first` to `last` in a row, after zeros for those before the episode."""
    rows = [[t, -t] for t in range(first, last + 1)]
    return np.concatenate([[0.0, 0.0]] * (count - len(rows)) + rows).tolist()


def obs_in_batch(pipeline: Any, episodes: list[Any]) -> list[list[float]]:
    return pipeline(episodes=episodes, rl_module=None, explore=False)[Columns.OBS].tolist()


@pytest.mark.parametrize("piece", [OneHot, OlderOneHot])
def test_both_spellings_of_one_hot_play_frozen_lake(piece: type[ConnectorV2]) -> None:
    env = gym.make("FrozenLake-v1", desc=["SF", "FG"], is_slippery=False)
    to_module = env_to_module_pipeline(env.observation_space, env.action_space, custom=lambda env: piece(), env=env)
    assert to_module.observation_space == gym.spaces.Box(0.0, 1.0, (4,), np.float32)
    module = build_module(to_module.observation_space, env.action_space, hidden=[8])
    player = PipelinePlayer(module, to_module, module_to_env_pipeline(env.observation_space, env.action_space), explore=True)
    episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
    observation, _ = env.reset(seed=0)
    episode.add_env_reset(observation)
    generator = torch.Generator().manual_seed(0)
    while not episode.is_done and len(episode) < 20:
        before = observation
        acts = player.act([episode], generator=generator)
        np.testing.assert_array_equal(episode.get_observations(-1), np.eye(4, dtype=np.float32)[before])
        observation, reward, terminated, truncated, _ = env.step(acts.actions_for_env[0])
        done = {"terminated": terminated, "truncated": truncated}
        extra = {name: items[0] for name, items in acts.extra.items()}
        episode.add_env_step(observation, acts.actions[0], reward, extra_model_outputs=extra, **done)
    assert len(episode) > 0
    assert episode.get_observations(0).shape == (4,), "what the preprocessor gave stays in the episode"


def test_the_model_receives_observations_with_the_most_recent_reward_attached() -> None:
    pipeline = env_to_module_pipeline(VECTOR, CHOICES, custom=lambda env: AddLastRewardToObservations())
    assert pipeline.observation_space.shape == (3,)
    assert np.isneginf(pipeline.observation_space.low[-1])
    assert obs_in_batch(pipeline, [going_on(0, "a"), going_on(2, "b")]) == [[0, 0, 0], [2, -2, 11]]


def test_ten_observations_are_stacked_and_zeros_stand_before_the_beginning() -> None:
    pipeline = env_to_module_pipeline(VECTOR, CHOICES, custom=lambda env: StackLast10Observations())
    assert pipeline.observation_space.shape == (20,)
    assert pipeline.observation_space.high.tolist() == [99.0, 100.0] * 10
    episodes = [going_on(2, "a"), going_on(12, "b")]
    assert obs_in_batch(pipeline, episodes) == [stacked(0, 2, 10), stacked(3, 12, 10)]
    assert episodes[0].get_observations(-1).tolist() == [2, -2], "the episodes keep their single observations"


def four(observation_space: Any, action_space: Any, *, as_learner: bool) -> StackFourObservations:
    return StackFourObservations(observation_space, action_space, as_learner_connector=as_learner)


def test_four_observations_are_stacked_on_the_side_of_the_environment() -> None:
    pipeline = env_to_module_pipeline(
        VECTOR, CHOICES, custom=lambda env, spaces, device: four(*spaces["__env_single__"], as_learner=False)
    )
    assert pipeline.observation_space.shape == (8,)
    assert obs_in_batch(pipeline, [going_on(1, "a"), going_on(5, "b")]) == [stacked(0, 1, 4), stacked(2, 5, 4)]


def finished(steps: int, id_: str) -> SingleAgentEpisode:
    episode = going_on(steps, id_)
    episode.is_terminated = True
    return episode.to_numpy()


def test_four_observations_are_stacked_on_the_side_of_the_learner_for_every_step() -> None:
    pipeline = learner_pipeline(
        VECTOR, CHOICES, custom=lambda obs_space, act_space: four(obs_space, act_space, as_learner=True)
    )
    rows = obs_in_batch(pipeline, [finished(5, "a"), finished(1, "b")])
    assert rows == [stacked(max(0, t - 3), t, 4) for t in range(5)] + [stacked(0, 0, 4)]


BUILDERS: dict[str, Callable[..., Any]] = {
    "lambda env": lambda env: CountBasedIntrinsicRewards(),
    "lambda obs_space, act_space": lambda obs_space, act_space: [CountBasedIntrinsicRewards()],
}


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_the_loss_receives_rewards_with_the_inverse_number_of_visits_added(builder: Callable[..., Any]) -> None:
    pipeline = learner_pipeline(VECTOR, CHOICES, custom=builder)
    batch = pipeline(episodes=[finished(2, "a"), finished(3, "b")], rl_module=None)
    # Observations 0 and 1 come in both episodes, 2 in the second only.
    assert batch[Columns.REWARDS].tolist() == [11, 12, 10.5, 11.5, 13]
    again = pipeline(episodes=[finished(1, "c")], rl_module=None)
    assert again[Columns.REWARDS].tolist() == pytest.approx([10 + 1 / 3])
