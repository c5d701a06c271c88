"""The learner pipeline, from episodes to a train batch: its default pieces, its builders, and copies of episodes.

Pieces may write into episodes. Where one of ours does (`writes_episodes`), or two episodes share a name, all work on copies, so
that a second call gives the same batch. What pieces of your own write into a list of episodes stays in it, as in RLlib, unless
there are such copies.

Each copy (`own_episodes`) has a unique name: two chunks of one episode in one call, or the same chunk twice, need two, because
items are filed by name, and sequences must not run from one chunk into another. Arrays are copied only on the
first write.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Batch, is_filed
from offline_cli.connectors.common.batch_columns import AddObservationsFromEpisodesToBatch, NumpyToTensor
from offline_cli.connectors.common.batching import AgentToModuleMapping, BatchIndividualItems
from offline_cli.connectors.common.states_and_time import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, Episodes
from offline_cli.connectors.learner.added_columns import AddColumnsFromEpisodesToBatch
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = [
    "LearnerConnectorPipeline",
    "default_pieces",
    "have_names_of_their_own",
    "learner_pipeline",
    "own_episodes",
]

ROWS_OF_STEPS: Final = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.LOSS_MASK,
)


def have_names_of_their_own(episodes: Iterable[Any]) -> bool:
    """Whether no two episodes share an id, and multi-agent ones, taken apart, are distinguished by theirs."""
    names = [(episode.id_, getattr(episode, "agent_id", None)) for episode in episodes]
    return len(set(names)) == len(names)


def own_episodes(episodes: Sequence[Any]) -> list[Any]:
    """A copy of each; where an id comes again, `_2`, `_3`, ... is added to it."""
    taken = {episode.id_ for episode in episodes}
    seen: Counter[Any] = Counter()
    copies = []
    for episode in episodes:
        single = isinstance(episode, SingleAgentEpisode)
        copied = _copy_of(episode) if single else _copy_of_agents(episode)
        kind = (episode.id_, episode.agent_id if single else None)
        seen[kind] += 1
        if seen[kind] > 1:
            copied.id_ = _free_name(episode.id_, taken)
            _rename_agents(copied)
        copies.append(copied)
    return copies


def _free_name(id_: str, taken: set[str]) -> str:
    number = 2
    while f"{id_}_{number}" in taken:
        number += 1
    taken.add(f"{id_}_{number}")
    return f"{id_}_{number}"


def _copy_of(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    copied = copy.copy(episode)
    copied.observations = _shared(episode.observations)
    copied.actions = _shared(episode.actions)
    copied.rewards = _shared(episode.rewards)
    copied.extra_model_outputs = {name: _shared(buffer) for name, buffer in episode.extra_model_outputs.items()}
    if episode._infos is not None:
        copied._infos = _shared(episode._infos)
    return copied


def _copy_of_agents(episode: Any) -> Any:
    copied = copy.copy(episode)
    copied.agent_episodes = {agent: _copy_of(part) for agent, part in episode.agent_episodes.items()}
    return copied


def _rename_agents(episode: Any) -> None:
    """The name under which items are filed is the multi-agent episode's, where there is one."""
    if not isinstance(episode, SingleAgentEpisode):
        for part in episode.agent_episodes.values():
            part.multi_agent_episode_id = episode.id_
    elif episode.multi_agent_episode_id is not None:
        episode.multi_agent_episode_id = episode.id_


def _shared(buffer: InfiniteLookbackBuffer) -> InfiniteLookbackBuffer:
    return buffer.part(0, buffer.len_incl_lookback(), buffer.lookback, space=buffer.space)


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
    pieces = [] if custom is None else custom_pieces(custom, "learner", observation_space, action_space)
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

    def _prepared(self, episodes: Episodes) -> Episodes:
        if isinstance(episodes, EpisodeBatch):
            if not self.multi_agent:
                return episodes
            episodes = list(episodes)
        elif not any(piece.writes_episodes for piece in self.pieces()) and have_names_of_their_own(episodes):
            return episodes
        return own_episodes(episodes)

    def _steps(self, batch: Batch, episodes: Episodes, call: dict[str, Any]) -> Iterator[tuple[str, Batch, Episodes]]:
        for name, after, left in super()._steps(batch, episodes, call):
            batch = after
            yield name, after, left
        for columns in _parts(batch):
            _check_rows(columns)


def _parts(batch: Batch) -> Iterator[Batch]:
    """The batch, or each module's part of it."""
    if any(column in batch for column in ROWS_OF_STEPS):
        yield batch
    else:
        yield from (part for part in batch.values() if isinstance(part, dict) and not is_filed(part))


def _check_rows(columns: Batch) -> None:
    """Raise BadPiece where columns that have a row per step disagree; items that are not stacked yet are left alone."""
    counts = {}
    for column in ROWS_OF_STEPS:
        held = columns.get(column)
        if held is not None and not isinstance(held, list) and not is_filed(held):
            counts[column] = len(leaves(held)[0])
    if len(set(counts.values())) > 1:
        fix = "one item per timestep of every episode, in each column that a piece adds"
        raise BadPiece(f"columns of different lengths: {counts}", where="learner pipeline", fix=fix)
