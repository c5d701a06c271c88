"""Puts info dicts into a train batch; refuses to make arrays of them: they stay a list through the whole pipeline."""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import owned
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["AddInfosFromEpisodesToTrainBatch"]


class AddInfosFromEpisodesToTrainBatch(ConnectorV2):
    """`infos`: N dicts, those that came with the observations that were acted on; never with a time axis."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the new column, unless it is there."""
        if Columns.INFOS in batch:
            return batch
        if isinstance(episodes, EpisodeBatch):
            infos = episodes.infos
            batch[Columns.INFOS] = [{} if infos is None else owned(infos[row]) for row in episodes.step_rows().tolist()]
            return batch
        for episode in self.single_agent_episode_iterator(episodes, False):
            if count := len(episode):
                self.add_n_batch_items(batch, Columns.INFOS, episode.get_infos(slice(0, count)), count, episode)
        return batch
