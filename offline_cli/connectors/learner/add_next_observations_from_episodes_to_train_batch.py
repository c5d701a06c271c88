"""Puts the observation that each step led to into a train batch; refuses nothing: a batch that has them stays as it is."""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["AddNextObservationsFromEpisodesToTrainBatch"]


class AddNextObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """`new_obs` with N rows, leaves (N, *obs_shape)."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the new column."""
        if Columns.NEXT_OBS in batch:
            return batch
        if isinstance(episodes, EpisodeBatch):
            batch[Columns.NEXT_OBS] = episodes.next_obs()
            return batch
        for episode in self.single_agent_episode_iterator(episodes, False):
            if count := len(episode):
                led_to = episode.get_observations(slice(1, count + 1))
                self.add_n_batch_items(batch, Columns.NEXT_OBS, led_to, count, episode)
        return batch
