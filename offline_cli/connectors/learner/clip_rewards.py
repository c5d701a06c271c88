"""Limits rewards; refuses bounds that are no limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space

__all__ = ["ClipRewards"]


class ClipRewards(ConnectorV2):
    """Each reward within [-bound, bound], in the same units; written into the episodes. Source: Mnih et al. 2015, Methods."""

    whole_arrays = True
    writes_episodes = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        bound: float = 1.0,
        **kwargs: Any,
    ) -> None:
        if not bound > 0:
            raise BadPiece(f"bound={bound}", where="ClipRewards", fix="a number above 0")
        self.bound = float(bound)
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch as it is; the episodes have other rewards."""
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                clipped = np.clip(np.asarray(episode.get_rewards(), np.float64), -self.bound, self.bound)
                episode.set_rewards(new_data=clipped if episode.is_numpy else clipped.tolist())
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, Episodes]:
        """The batch as it is, and the episodes with other rewards."""
        return batch, replace(episodes, rewards=np.clip(episodes.rewards, -self.bound, self.bound))
