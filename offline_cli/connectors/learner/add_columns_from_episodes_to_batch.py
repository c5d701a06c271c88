"""Puts actions, rewards, end flags and extra model outputs into a train batch; refuses observations, infos and states.

Those have pieces of their own. An extra output that some episodes have and others lack is an error that names one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.batch_items import filed_rows, key_of
from offline_cli.connectors.common.episode_rows import first_rows
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.trees import map_leaves

__all__ = ["AddColumnsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"]


class AddColumnsFromEpisodesToBatch(ConnectorV2):
    """N rows each of `actions`, `rewards`, `terminateds`, `truncateds` and every extra output; a column that is there stays."""

    whole_arrays = True
    aliases: ClassVar[tuple[str, ...]] = ("AddColumnsFromEpisodesToTrainBatch",)  # RLlib's class; its documents have ours

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with these columns. Raises EpisodeKeyError for an extra output that an episode lacks."""
        if isinstance(episodes, EpisodeBatch):
            for column, tree in episodes.step_columns().items():
                if column not in batch:
                    batch[column] = map_leaves(np.array, tree)  # pieces may write into it, and the recording stays
            return batch
        singles = [episode for episode in self.single_agent_episode_iterator(episodes, False) if len(episode)]
        if singles:
            batch |= {column: held for column, held in _columns_of_episodes(singles, batch).items() if column not in batch}
        return batch


AddColumnsFromEpisodesToTrainBatch = AddColumnsFromEpisodesToBatch


def _columns_of_episodes(episodes: list[SingleAgentEpisode], batch: Batch) -> dict[str, Any]:
    """Every column filed by episode; those that are in the batch need not be."""
    keys, lengths = [key_of(episode) for episode in episodes], [len(episode) for episode in episodes]
    terminateds = _last_flags(lengths, [episode.is_terminated for episode in episodes])
    truncateds = _last_flags(lengths, [episode.is_truncated for episode in episodes])
    columns = {
        Columns.ACTIONS: filed_rows(keys, map(first_rows, (episode.actions for episode in episodes), lengths), lengths),
        Columns.REWARDS: filed_rows(keys, map(first_rows, (episode.rewards for episode in episodes), lengths), lengths),
        Columns.TERMINATEDS: filed_rows(keys, terminateds, lengths),
        Columns.TRUNCATEDS: filed_rows(keys, truncateds, lengths),
    }
    for name, modules in _extras(episodes).items():
        if name not in batch:
            own = [episode for episode in episodes if episode.module_id in modules]
            rows = (episode.get_extra_model_outputs(name, slice(0, len(episode))) for episode in own)
            columns[name] = filed_rows(map(key_of, own), rows, map(len, own))
    return columns


def _last_flags(lengths: list[int], flags: list[bool]) -> list[NDArray[np.bool_]]:
    """(T,) for each episode, its flag at the last step: views of one array."""
    ends = np.cumsum(lengths)
    rows = np.zeros(ends[-1], np.bool_)
    rows[ends - 1] = flags
    return [rows[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True)]


def _extras(episodes: list[SingleAgentEpisode]) -> dict[str, set[Any]]:
    """The modules that put out each extra output: all episodes of those have to have it, and others need not."""
    modules: dict[str, set[Any]] = {}
    for episode in episodes:
        for name in episode.extra_model_outputs:
            if name not in STATE_COLUMNS:
                modules.setdefault(name, set()).add(episode.module_id)
    return modules
