"""Writes the observations of a batch back into the episodes; refuses a batch without any, and numpy'ized episodes."""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.errors import BadPiece

__all__ = ["WriteObservationsToEpisodes"]


class WriteObservationsToEpisodes(ConnectorV2):
    """The last observation of each episode becomes the one in the batch, which stays as it is. For env-to-module only."""

    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without observations and for numpy'ized episodes, ValueError for too many or too few."""
        if Columns.OBS not in batch:
            what = f"WriteObservationsToEpisodes found no column {Columns.OBS!r} among {sorted(batch)}"
            raise BadPiece(
                what, where="piece WriteObservationsToEpisodes", fix="put AddObservationsFromEpisodesToBatch before it"
            )
        for episode, observation in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[Columns.OBS]):
            if episode.is_numpy:
                what = f"episode {episode.id_} is numpy'ized, and only one that goes on is written to"
                raise BadPiece(what, where="piece WriteObservationsToEpisodes", fix="keep it in env-to-module pipelines")
            episode.observation_space = self.observation_space
            episode.set_observations(at_indices=-1, new_data=observation)
        return batch
