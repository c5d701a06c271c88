"""The default learner pipeline, from episodes to a train batch, and the pieces that add columns to that batch.

If a piece declares `writes_episodes`, or two episodes share an id, the pipeline works on copies, so that a second call gives
the same batch. Otherwise pieces change the caller's episodes, as in RLlib. Each copy has a unique id, because items are grouped
by id: otherwise sequences would run from one chunk of an episode into another.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.batch_items import Batch, owned
from offline_cli.connectors.common.batching import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
    StepColumns,
)
from offline_cli.connectors.common.frame_stacking import FRAMES
from offline_cli.connectors.common.states_and_time import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, Episodes
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.spaces import Space
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
    "LearnerConnectorPipeline",
    "learner_pipeline",
    "lengthen",
]


NEXT_ACTIONS: Final = "next_actions"
IS_FOLLOWED: Final = "is_followed"
ENDS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


class AddColumnsFromEpisodesToBatch(StepColumns):
    """Add N rows of `actions`, `rewards`, `terminateds`, `truncateds` and each extra model output; existing columns stay."""

    aliases: ClassVar[tuple[str, ...]] = (
        "AddColumnsFromEpisodesToTrainBatch",
    )  # RLlib's class name; its documentation uses ours

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """The batch with these columns. Raises EpisodeKeyError if some episodes of a module lack an extra output of others."""
        if not isinstance(episodes, EpisodeBatch):
            moving = [one for one in self.single_agent_episode_iterator(episodes, False) if len(one)]
            for name, module_id in {(name, one.module_id) for one in moving for name in one.extra_model_outputs}:
                for episode in moving if name not in batch and name not in STATE_COLUMNS else ():
                    if episode.module_id == module_id:
                        episode.get_extra_model_outputs(name, slice(0, 0))
        return super().__call__(batch=batch, episodes=episodes, **call)

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        columns = episodes.step_columns()  # end flags are new arrays; other columns are views
        return {name: tree if name in ENDS else map_leaves(np.array, tree) for name, tree in columns.items()}


AddColumnsFromEpisodesToTrainBatch = AddColumnsFromEpisodesToBatch


class AddInfosFromEpisodesToTrainBatch(StepColumns):
    """Add `infos`: a list of the N dicts of the observations acted on; it never gets a time axis."""

    column = Columns.INFOS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        infos = episodes.infos
        return {Columns.INFOS: [{} if infos is None else owned(infos[row]) for row in episodes.step_rows().tolist()]}


class AddNextObservationsFromEpisodesToTrainBatch(StepColumns):
    """Add `new_obs`, leaves (N, *obs_shape); `by_rows`: as in FrameStacking."""

    column = Columns.NEXT_OBS
    by_rows: bool = False

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        is_by_rows = self.by_rows and FRAMES in batch
        return {Columns.NEXT_OBS: episodes.step_rows() + 1 if is_by_rows else episodes.next_obs()}


class AddNextActionsFromEpisodesToTrainBatch(StepColumns):
    """Add `next_actions` (N, *action_shape) and `is_followed` (N,), which is False at last steps; they repeat their action."""

    column = NEXT_ACTIONS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        followed = np.ones(episodes.num_steps, np.bool_)
        followed[episodes.starts[1:][episodes.lengths > 0] - 1] = False
        rows = np.arange(len(followed)) + followed
        return {NEXT_ACTIONS: map_leaves(lambda leaf: leaf[rows], episodes.actions), IS_FOLLOWED: followed}


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Append an artificial step to each episode, so that a value function sees the last observation; truncate ongoing episodes.

    The artificial step repeats the last observation, info, action and extra outputs, with reward 0. The end flags stay at the
    last real step. Adds `loss_mask`, which is False for the artificial step, `terminateds` and `truncateds`. An empty episode
    stays unchanged.
    """

    whole_arrays = True
    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """Lengthen the episodes in place; return the batch with the three columns."""
        assert not isinstance(episodes, EpisodeBatch), "arrays are read-only: call on_episode_batch, or a pipeline"
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                lengthen(episode)
                flags = np.array([[episode.is_terminated], [episode.is_truncated]])
                for column, values in _columns_of_longer(np.array([len(episode)]), *flags).items():
                    self.add_n_batch_items(batch, column, values, len(episode), episode)
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, EpisodeBatch]:
        """The batch with the three columns, and the lengthened episodes."""
        longer = _lengthened(episodes)
        return batch | _columns_of_longer(longer.lengths, longer.terminated, longer.truncated), longer


def _columns_of_longer(
    lengths: NDArray[np.int64], terminated: NDArray[Any], truncated: NDArray[Any]
) -> dict[str, NDArray[np.bool_]]:
    """The three columns (N,) of lengthened episodes, which have at least two steps, or none."""
    ends = np.cumsum(lengths)[lengths > 0]
    mask = np.ones(int(lengths.sum()), np.bool_)
    mask[ends - 1] = False
    flags = np.zeros((2, len(mask)), np.bool_)
    flags[0, ends - 2], flags[1, ends - 2] = terminated[lengths > 0], truncated[lengths > 0]
    return {Columns.LOSS_MASK: mask, Columns.TERMINATEDS: flags[0], Columns.TRUNCATEDS: flags[1]}


def lengthen(episode: SingleAgentEpisode) -> None:
    """Append the artificial step to one episode, in place."""
    infos = episode.infos  # first: empty infos are filled up to the number of observations
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


# ---- the default pipeline ----


def learner_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: Custom = None,
    mapping: AgentToModuleMapping | None = None,
    device: Any = None,
    add_default_connectors_to_learner_pipeline: bool = True,
) -> LearnerConnectorPipeline:
    """Build a pipeline of custom pieces (builder: `lambda obs_space, act_space`) and, unless turned off, the default ones.

    `mapping` (with `as_learner_connector=True`): the module that learns from each agent's data, for several agents. `device`:
    of tensors, default CPU. Raises BadPiece if `custom` contains anything but pieces, SpaceMismatch if spaces do not fit.
    """
    pieces = custom_pieces(custom, "learner", observation_space, action_space)
    if add_default_connectors_to_learner_pipeline:
        pieces += default_pieces(mapping, device)
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=pieces)
    pipeline.multi_agent = mapping is not None
    return pipeline


def default_pieces(mapping: AgentToModuleMapping | None = None, device: Any = None) -> list[ConnectorV2]:
    """The default pieces, in order; those for stateful modules are always present, and do nothing for others."""
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
        *([] if mapping is None else [mapping]),
        BatchIndividualItems(multi_agent=mapping is not None),
        NumpyToTensor(device=device),
    ]


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """`pipeline(episodes=...)` returns the train batch of a list of episodes, or of an `EpisodeBatch`, which is much faster."""

    multi_agent: bool = False  # columns end up grouped by module; agents' episodes are processed as a list

    def takes_arrays(self) -> bool:
        """True for a single agent if each piece takes arrays."""
        return not self.multi_agent and super().takes_arrays()

    def _prepared(self, episodes: Episodes) -> Episodes:
        prepared = super()._prepared(episodes)
        if isinstance(prepared, EpisodeBatch):
            return prepared
        writes = any(piece.writes_episodes for piece in self.pieces()) and prepared is episodes
        return _copies(prepared) if writes or len(set(map(_name, prepared))) < len(prepared) else prepared


def _name(episode: Any) -> tuple[Any, Any]:
    return episode.id_, getattr(episode, "agent_id", None)


def _copies(episodes: Sequence[Any]) -> list[Any]:
    """Copy each episode; `_2`, `_3`, ... is appended to repeated ids."""
    taken = {episode.id_ for episode in episodes}
    seen: Counter[Any] = Counter()
    copies = [copy.deepcopy(episode) for episode in episodes]
    for copied in copies:
        name = _name(copied)
        seen[name] += 1
        if seen[name] > 1:
            copied.id_ = next(new for n in count(2) if (new := f"{name[0]}_{n}") not in taken)
            taken.add(copied.id_)
            parts = [copied] if isinstance(copied, SingleAgentEpisode) else copied.agent_episodes.values()
            for part in parts:  # their items are grouped by the multi-agent episode's id
                if part is not copied or part.multi_agent_episode_id is not None:
                    part.multi_agent_episode_id = copied.id_
    return copies
