"""Pieces of a pipeline, for docs/howto/pipelines.md."""

import gymnasium as gym
import numpy as np

from offline_cli import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor


class Angle(ObservationPreprocessor):
    """The pole's angle and its speed, and nothing of the cart."""

    def recompute_output_observation_space(self, observations, actions):
        return gym.spaces.Box(observations.low[2:], observations.high[2:], dtype=np.float32)

    def preprocess(self, observation):
        return observation[2:]


class StepCost(ConnectorV2):
    """Rewards minus a cost for each step; changes made to an episode end up in the batch."""

    per_episode = True  # an episode's result depends on that episode alone: so it also streams

    def __init__(self, cost=0.0, **kwargs):
        super().__init__(**kwargs)
        self.cost = cost

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            episode.set_rewards(new_data=episode.get_rewards() - self.cost)
        return batch


class DivideByLargest(ConnectorV2):
    """Observations divided by the largest number among the training observations."""

    per_episode = True

    def __init__(self, as_learner_connector=False, **kwargs):
        super().__init__(**kwargs)
        self.at = None if as_learner_connector else -1  # all observations; beside the environment the last one
        self.largest = 0.0

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            seen = np.asarray(episode.get_observations(self.at))
            if not self.frozen:  # training data is passing: learn
                self.largest = max(self.largest, float(np.abs(seen).max()))
            episode.set_observations(new_data=seen / np.float32(self.largest or 1.0), at_indices=self.at)
        return batch

    def get_state(self, components=None, **kwargs):
        return {"largest": self.largest}

    def set_state(self, state):
        self.largest = state["largest"]
