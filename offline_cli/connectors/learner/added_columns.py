"""The default learner pipeline, from episodes to a train batch, and the pieces that add columns to that batch.

Pieces may write into episodes. Where one of ours does (`writes_episodes`), or two episodes share a name, all work on copies, so
that a second call gives the same batch. What pieces of your own write into a list of episodes stays in it, as in RLlib, unless
there are such copies. Each copy has a name of its own, because items are filed by name: two chunks of one episode in one call
need two, so that sequences do not run from one chunk into another.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STATE_COLUMNS, Columns
from offline_cli.connectors.batch_items import Batch, is_filed, owned
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
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

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


# ---- the default pipeline ----


FLAGS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)
ROWS_OF_STEPS: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, *FLAGS)


def learner_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: Custom = None,
    mapping: AgentToModuleMapping | None = None,
    device: Any = None,
    add_default_connectors_to_learner_pipeline: bool = True,
) -> LearnerConnectorPipeline:
    """Custom pieces first (a builder: `lambda obs_space, act_space`), then, unless turned off, the default ones.

    `mapping` (made with `as_learner_connector=True`): which module learns from each agent's data, for several agents. `device`:
    where tensors go, the CPU by default. Raises BadPiece where `custom` gives something else than pieces, SpaceMismatch where
    spaces do not fit.
    """
    pieces = custom_pieces(custom, "learner", observation_space, action_space)
    if add_default_connectors_to_learner_pipeline:
        pieces += default_pieces(mapping, device)
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=pieces)
    pipeline.multi_agent = mapping is not None
    return pipeline


def default_pieces(mapping: AgentToModuleMapping | None = None, device: Any = None) -> list[ConnectorV2]:
    """The default pieces, in order; those for stateful modules are always there, and do nothing for others."""
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
    """`pipeline(episodes=...)` gives the train batch of episodes: a list, or an `EpisodeBatch`, which is much faster."""

    multi_agent: bool = False  # whether columns go by module in the end: agents' episodes are then taken one by one

    def takes_arrays(self) -> bool:
        """For a single agent, where each piece does."""
        return not self.multi_agent and super().takes_arrays()

    def _prepared(self, episodes: Episodes) -> Episodes:
        found = super()._prepared(episodes)
        if isinstance(found, EpisodeBatch):
            return found
        writes = any(piece.writes_episodes for piece in self.pieces()) and found is episodes
        return _copies(found) if writes or len(set(map(_name, found))) < len(found) else found

    def stepwise(self, *, episodes: Episodes, batch: Batch | None = None, **call: Any) -> Iterator[tuple[str, Batch, Episodes]]:
        """As of any pipeline; at the end columns that have a row per step have to have as many rows, else raises BadPiece."""
        after = {} if batch is None else batch
        for name, after, left in super().stepwise(episodes=episodes, batch=batch, **call):
            yield name, after, left
        by_module = [part for part in after.values() if isinstance(part, dict) and not is_filed(part)]
        for columns in [after] if any(column in after for column in ROWS_OF_STEPS) else by_module:
            held = {column: columns[column] for column in ROWS_OF_STEPS if columns.get(column) is not None}
            stacked = {column: tree for column, tree in held.items() if not (isinstance(tree, list) or is_filed(tree))}
            counts = {column: len(tree if hasattr(tree, "shape") else leaves(tree)[0]) for column, tree in stacked.items()}
            if len(set(counts.values())) > 1:
                fix = "one item per timestep of every episode, in each column that a piece adds"
                raise BadPiece(f"columns of different lengths: {counts}", where="learner pipeline", fix=fix)


def _name(episode: Any) -> tuple[Any, Any]:
    return episode.id_, getattr(episode, "agent_id", None)


def _copies(episodes: Sequence[Any]) -> list[Any]:
    """A copy of each; where an id comes again, `_2`, `_3`, ... is added to it."""
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
            for part in parts:  # the name under which their items are filed is the multi-agent episode's, where there is one
                if part is not copied or part.multi_agent_episode_id is not None:
                    part.multi_agent_episode_id = copied.id_
    return copies
