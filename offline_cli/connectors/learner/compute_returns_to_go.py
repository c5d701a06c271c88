"""Adds to each step the discounted sum of rewards from there on; refuses to guess what comes after the last step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.learner.discounting import discounted, factors
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space

__all__ = ["ComputeReturnsToGo"]


class ComputeReturnsToGo(ConnectorV2):
    """`returns_to_go` (N,) float64, in the units of rewards: r[t] + gamma * r[t+1] + ... up to the end of the chunk."""

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        gamma: float,
        **kwargs: Any,
    ) -> None:
        self.gamma = gamma
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the new column."""
        if isinstance(episodes, EpisodeBatch):
            batch[Columns.RETURNS_TO_GO] = discounted(episodes.rewards, factors(episodes.lengths, self.gamma))
            return batch
        for episode in self.single_agent_episode_iterator(episodes, False):
            rewards: NDArray[np.float64] = np.asarray(episode.get_rewards(), np.float64)
            sums = discounted(rewards, np.full(len(rewards), float(self.gamma)))
            self.add_n_batch_items(batch, Columns.RETURNS_TO_GO, sums, len(sums), episode)
        return batch
