"""A piece that remembers, and its torch form, for docs/howto/export.md."""

import gymnasium as gym
import numpy as np
import torch

from offline_cli import Columns, ConnectorV2
from offline_cli.connectors.torch_forms import RememberingForm


class RunningMax(ConnectorV2):
    """The observation, and beside it the largest value so far in the episode."""

    per_episode = True

    def __init__(self, as_learner_connector=False, **kwargs):
        super().__init__(**kwargs)
        self.learns = as_learner_connector

    def recompute_output_observation_space(self, observations, actions):
        return gym.spaces.Box(-np.inf, np.inf, (2 * observations.shape[0],), np.float32)

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=not self.learns):
            seen = np.asarray(episode.get_observations(), np.float32)  # (T + 1, n)
            rows = np.concatenate([seen, np.maximum.accumulate(seen)], 1)
            if self.learns:  # a row for each step: the last observation was never acted on
                self.add_n_batch_items(batch, Columns.OBS, rows[:-1], num_items=len(rows) - 1, single_agent_episode=episode)
            else:  # a row for the latest observation
                self.add_batch_item(batch, Columns.OBS, item_to_add=rows[-1], single_agent_episode=episode)
        return batch

    def to_torch(self):
        return RunningMaxInTorch(self.input_observation_space.shape)


class RunningMaxInTorch(RememberingForm):
    """The same for observations (B, n); its state is all zeros where an episode begins."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def states(self):
        return {"largest": (self.shape, np.float32), "begun": ((1,), np.float32)}

    def forward(self, observations, state, rewards, after):
        largest = torch.where(state["begun"] > 0, torch.maximum(state["largest"], observations), observations)
        after["largest"], after["begun"] = largest, torch.ones_like(state["begun"])
        return torch.cat([observations, largest], 1)
