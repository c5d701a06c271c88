"""The rows of single episodes without the cost of general indices; refuses to know lookback buffers but by leaving them out.

Puts observations of episodes into a batch; refuses nothing: a batch that has them already stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import filed_rows, key_of
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.spaces import Space

__all__ = ["AddObservationsFromEpisodesToBatch", "first_rows"]


def first_rows(buffer: InfiniteLookbackBuffer, count: int) -> Any:
    """The first `count` records after the lookback buffer: leaves (count, ...), views, or a list where not numpy'ized."""
    if buffer.finalized and type(buffer.data) is np.ndarray:
        return buffer.data[buffer.lookback : buffer.lookback + count]
    return buffer.get(slice(0, count))


class AddObservationsFromEpisodesToBatch(ConnectorV2):
    """`obs`: in a learner pipeline the T observations that were acted on, else the last one of each episode."""

    whole_arrays = True
    slots_too = True
    fills_obs = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        as_learner_connector: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._as_learner_connector = as_learner_connector

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """`obs` with N rows in a learner pipeline, one per episode otherwise."""
        if Columns.OBS in batch:
            return batch
        if self._as_learner_connector and isinstance(episodes, EpisodeBatch):
            batch[Columns.OBS] = episodes.acted_obs()
            return batch
        singles = self.single_agent_episode_iterator(episodes, not self._as_learner_connector)
        if not self._as_learner_connector:
            for episode in singles:
                self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
            return batch
        moved = [(key_of(episode), episode.observations, len(episode)) for episode in singles if len(episode)]
        if moved:
            rows = (first_rows(held, count) for _, held, count in moved)
            batch[Columns.OBS] = filed_rows((key for key, *_ in moved), rows, (count for *_, count in moved))
        return batch

    def on_slots(self, *, batch: Batch, slots: SlotWindows, **_: Any) -> tuple[Batch, Any]:
        """The latest observations (P, ...)."""
        batch.setdefault(Columns.OBS, slots.obs)
        return batch, slots
