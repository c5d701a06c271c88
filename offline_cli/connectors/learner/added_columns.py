"""Pieces that add columns of the episodes to a train batch, and a step to the episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.batch_items import owned
from offline_cli.connectors.common.batch_columns import StepColumns
from offline_cli.connectors.common.frame_stacking import FRAMES
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "IS_FOLLOWED",
    "NEXT_ACTIONS",
    "AddColumnsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextActionsFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddOneTsToEpisodesAndTruncate",
    "lengthen",
]

NEXT_ACTIONS: Final = "next_actions"
IS_FOLLOWED: Final = "is_followed"
ENDS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


class AddColumnsFromEpisodesToBatch(StepColumns):
    """Adds N rows of `actions`, `rewards`, `terminateds`, `truncateds` and each extra output; present columns stay."""

    aliases: ClassVar[tuple[str, ...]] = ("AddColumnsFromEpisodesToTrainBatch",)  # RLlib's class; its documents have ours

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """The batch with these columns. Raises EpisodeKeyError for an extra output that an episode of a module lacks, while
        others of that module have it."""
        if not isinstance(episodes, EpisodeBatch):
            moving = [one for one in self.single_agent_episode_iterator(episodes, False) if len(one)]
            for name, module_id in {(name, one.module_id) for one in moving for name in one.extra_model_outputs}:
                for episode in moving if name not in batch and name not in STATE_COLUMNS else ():
                    if episode.module_id == module_id:
                        episode.get_extra_model_outputs(name, slice(0, 0))
        return super().__call__(batch=batch, episodes=episodes, **call)

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        columns = episodes.step_columns()  # of which the end flags are made for the caller
        return {name: tree if name in ENDS else map_leaves(np.array, tree) for name, tree in columns.items()}


AddColumnsFromEpisodesToTrainBatch = AddColumnsFromEpisodesToBatch


class AddInfosFromEpisodesToTrainBatch(StepColumns):
    """Adds `infos`: a list of the N dicts that came with the observations acted on; it never gets a time axis."""

    column = Columns.INFOS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        infos = episodes.infos
        return {Columns.INFOS: [{} if infos is None else owned(infos[row]) for row in episodes.step_rows().tolist()]}


class AddNextObservationsFromEpisodesToTrainBatch(StepColumns):
    """Adds `new_obs`, leaves (N, *obs_shape); `by_rows`: as in FrameStacking."""

    column = Columns.NEXT_OBS
    by_rows: bool = False

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        is_by_rows = self.by_rows and FRAMES in batch
        return {Columns.NEXT_OBS: episodes.step_rows() + 1 if is_by_rows else episodes.next_obs()}


class AddNextActionsFromEpisodesToTrainBatch(StepColumns):
    """Adds `next_actions` (N, *action_shape) and `is_followed` (N,), False at last steps, whose own action is repeated."""

    column = NEXT_ACTIONS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        followed = np.ones(episodes.num_steps, np.bool_)
        followed[episodes.starts[1:][episodes.lengths > 0] - 1] = False
        rows = np.arange(len(followed)) + followed
        return {NEXT_ACTIONS: map_leaves(lambda leaf: leaf[rows], episodes.actions), IS_FOLLOWED: followed}


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Appends an artificial step to each episode, so that a value function sees the last observation; truncates those not done.

    The artificial step repeats the last observation, info, action and extra outputs, with a reward of 0. It is never marked as
    an end: the flags stay at the last real step. Adds `loss_mask`, which is False for it, `terminateds` and `truncateds`. An
    episode without a step has nothing to repeat, and stays as it is.
    """

    whole_arrays = True
    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the three columns; the episodes are longer."""
        assert not isinstance(episodes, EpisodeBatch), "arrays are read-only: call on_episode_batch, or a pipeline"
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                lengthen(episode)
                flags = np.array([[episode.is_terminated], [episode.is_truncated]])
                for column, values in _columns_of_longer(np.array([len(episode)]), *flags).items():
                    self.add_n_batch_items(batch, column, values, len(episode), episode)
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, EpisodeBatch]:
        """The batch with the three columns, and the longer episodes."""
        longer = _lengthened(episodes)
        return batch | _columns_of_longer(longer.lengths, longer.terminated, longer.truncated), longer


def _columns_of_longer(
    lengths: NDArray[np.int64], terminated: NDArray[Any], truncated: NDArray[Any]
) -> dict[str, NDArray[np.bool_]]:
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
