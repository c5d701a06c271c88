"""Pieces that add columns of the episodes to a train batch, and a step to the episodes.

* `AddColumnsFromEpisodesToBatch`: actions, rewards, end flags and extra model outputs. An extra output that some episodes have
  and others lack is an error that names one. Observations, infos and states have pieces of their own.
* `AddInfosFromEpisodesToTrainBatch`: info dicts; they stay a list through the whole pipeline and never become arrays.
* `AddNextObservationsFromEpisodesToTrainBatch`: the observation that each step led to; a batch that has them stays as it is.
* `AddNextActionsFromEpisodesToTrainBatch`: the action that was recorded after each step, for algorithms that ask about it.
* `AddOneTsToEpisodesAndTruncate`: one artificial step for each episode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.batch_items import filed_rows, key_of, owned
from offline_cli.connectors.common.batch_columns import first_rows
from offline_cli.connectors.common.frame_stacking import FRAMES
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.trees import map_leaves

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


class AddNextObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """`new_obs` with N rows, leaves (N, *obs_shape); `by_rows`: as FrameStacking has it."""

    whole_arrays = True
    by_rows: bool = False

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with the new column."""
        if Columns.NEXT_OBS in batch:
            return batch
        if isinstance(episodes, EpisodeBatch):
            batch[Columns.NEXT_OBS] = episodes.step_rows() + 1 if self.by_rows and FRAMES in batch else episodes.next_obs()
            return batch
        for episode in self.single_agent_episode_iterator(episodes, False):
            if count := len(episode):
                led_to = episode.get_observations(slice(1, count + 1))
                self.add_n_batch_items(batch, Columns.NEXT_OBS, led_to, count, episode)
        return batch


class AddNextActionsFromEpisodesToTrainBatch(ConnectorV2):
    """`next_actions` (N, *action_shape), and `is_followed` (N,): False at the last steps, which have their own action again."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with both columns."""
        if isinstance(episodes, EpisodeBatch):
            rows, followed = _following(episodes.lengths)
            batch[NEXT_ACTIONS] = map_leaves(lambda leaf: leaf[rows], episodes.actions)
            batch[IS_FOLLOWED] = followed
            return batch
        for episode in self.single_agent_episode_iterator(episodes, False):
            if count := len(episode):
                rows, followed = _following(np.array([count]))
                actions = first_rows(episode.actions, count)
                taken = map_leaves(lambda leaf, rows=rows: np.asarray(leaf)[rows], actions)
                self.add_n_batch_items(batch, NEXT_ACTIONS, taken, count, episode)
                self.add_n_batch_items(batch, IS_FOLLOWED, followed, count, episode)
        return batch


def _following(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(N,) the row after each step of its episode, of the last one its own; (N,) whether it is another."""
    followed = np.ones(int(lengths.sum()), np.bool_)
    followed[np.cumsum(lengths)[lengths > 0] - 1] = False
    return np.arange(len(followed)) + followed, followed


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Episodes of T steps get T + 1, so that a value function sees the last observation, too; those not done become truncated.

    The artificial step repeats the last observation, info, action and extra outputs, with a reward of 0. It is never marked as
    an end: the flags stay at the last real step. Adds `loss_mask`, which is False for it, `terminateds` and `truncateds`. An
    episode without a step has nothing to repeat, and stays as it is.
    """

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
                for column, values in _columns_of_longer(steps, *flags).items():
                    self.add_n_batch_items(batch, column, values, len(episode), episode)
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, Episodes]:
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
