"""Puts actions, rewards, end flags and extra model outputs into a train batch; refuses observations and infos (own pieces)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.trees import Tree

__all__ = ["AddColumnsFromEpisodesToBatch"]


class AddColumnsFromEpisodesToBatch(ConnectorV2):
    """N rows each of `actions`, `rewards`, `terminateds`, `truncateds` and every extra output; a column that is there stays."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with these columns."""
        if isinstance(episodes, EpisodeBatch):
            for column, tree in _columns_of_batch(episodes).items():
                batch.setdefault(column, tree)
            return batch
        missing = [column for column in _columns_of_episodes(episodes) if column not in batch]
        for episode in self.single_agent_episode_iterator(episodes, False):
            for column in missing:
                self.add_n_batch_items(batch, column, _READERS.get(column, _extra(column))(episode), len(episode), episode)
        return batch


def _columns_of_batch(episodes: EpisodeBatch) -> dict[str, Tree]:
    terminateds, truncateds = episodes.step_flags()
    return {
        Columns.ACTIONS: episodes.actions,
        Columns.REWARDS: episodes.rewards,
        Columns.TERMINATEDS: terminateds,
        Columns.TRUNCATEDS: truncateds,
        **episodes.extra,
    }


def _columns_of_episodes(episodes: Episodes) -> list[str]:
    extras = dict.fromkeys(name for episode in episodes for name in episode.extra_model_outputs)
    return [*_READERS, *extras]


def _last_flag(episode: SingleAgentEpisode, flag: bool) -> NDArray[np.bool_]:
    flags = np.zeros(len(episode), np.bool_)
    flags[-1:] = flag
    return flags


def _extra(column: str) -> Callable[[SingleAgentEpisode], Any]:
    return lambda episode: episode.get_extra_model_outputs(column, slice(0, len(episode)))


_READERS: dict[str, Callable[[SingleAgentEpisode], Any]] = {
    Columns.ACTIONS: lambda episode: episode.get_actions(slice(0, len(episode))),
    Columns.REWARDS: lambda episode: episode.get_rewards(slice(0, len(episode))),
    Columns.TERMINATEDS: lambda episode: _last_flag(episode, episode.is_terminated),
    Columns.TRUNCATEDS: lambda episode: _last_flag(episode, episode.is_truncated),
}
