"""Adds one artificial step to each episode, so that a value function sees the last observation, too.

An episode without a step has nothing to repeat, and stays as it is. The artificial step repeats the last observation, info,
action and extra outputs, with a reward of 0. It is never marked as an end: the flags stay at the last real step, and
`loss_mask` is False for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.trees import map_leaves

__all__ = ["AddOneTsToEpisodesAndTruncate"]


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Episodes of T steps get T + 1; those not done become truncated. Adds `loss_mask`, `terminateds`, `truncateds`."""

    whole_arrays = True
    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the three columns; the episodes are longer. Raises TypeError for an EpisodeBatch."""
        if isinstance(episodes, EpisodeBatch):
            raise TypeError("an EpisodeBatch cannot be written to: call on_episode_batch, or call a pipeline")
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                lengthen(episode)
                steps = np.array([len(episode)])
                flags = np.array([[episode.is_terminated], [episode.is_truncated]])
                for column, values in _columns(steps, *flags).items():
                    self.add_n_batch_items(batch, column, values, len(episode), episode)
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, Episodes]:
        """The batch with the three columns, and the longer episodes."""
        longer = _lengthened(episodes)
        return batch | _columns(longer.lengths, longer.terminated, longer.truncated), longer


def _columns(lengths: NDArray[np.int64], terminated: NDArray[Any], truncated: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
    """(N,) each, for episodes that are longer already; all have at least two steps, or none."""
    ends = np.cumsum(lengths)[lengths > 0]
    mask = np.ones(int(lengths.sum()), np.bool_)
    mask[ends - 1] = False
    flags = np.zeros((2, len(mask)), np.bool_)
    flags[0, ends - 2], flags[1, ends - 2] = terminated[lengths > 0], truncated[lengths > 0]
    return {Columns.LOSS_MASK: mask, Columns.TERMINATEDS: flags[0], Columns.TRUNCATEDS: flags[1]}


def lengthen(episode: SingleAgentEpisode) -> None:
    """Give one episode its artificial step, in place."""
    infos = episode.infos  # first: where all are empty they are made to the number of observations
    for buffer in (infos, episode.observations, episode.actions, *episode.extra_model_outputs.values()):
        buffer.append(buffer.get(-1))
    episode.rewards.append(0.0)
    episode.t += 1
    episode.is_truncated = not episode.is_terminated or episode.is_truncated


def _lengthened(episodes: EpisodeBatch) -> EpisodeBatch:
    moving = episodes.lengths > 0
    step_ends, obs_ends = episodes.starts[1:][moving], episodes.obs_starts[1:][moving]

    def steps(leaf: NDArray[Any]) -> NDArray[Any]:
        return np.insert(leaf, step_ends, leaf[step_ends - 1], axis=0)

    rows = np.insert(np.arange(int(episodes.obs_starts[-1])), obs_ends, obs_ends - 1)
    infos = episodes.infos
    return replace(
        episodes,
        starts=np.concatenate([[0], np.cumsum(episodes.lengths + moving)]),
        obs=map_leaves(lambda leaf: leaf.take(rows, axis=0), episodes.obs),
        actions=map_leaves(steps, episodes.actions),
        rewards=np.insert(episodes.rewards, step_ends, 0.0),
        truncated=episodes.truncated | (moving & ~episodes.terminated),
        extra={name: map_leaves(steps, tree) for name, tree in episodes.extra.items()},
        infos=None if infos is None else [infos[row] for row in rows.tolist()],
    )
