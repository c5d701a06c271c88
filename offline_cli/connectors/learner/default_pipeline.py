"""The learner pipeline, from episodes to a train batch: its default pieces and its builder.

Pieces may write into episodes. Where one of ours does (`writes_episodes`), or two episodes share a name, all work on copies, so
that a second call gives the same batch. What pieces of your own write into a list of episodes stays in it, as in RLlib, unless
there are such copies. Each copy has a name of its own, because items are filed by name: two chunks of one episode in one call
need two, so that sequences do not run from one chunk into another.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
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
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = ["LearnerConnectorPipeline", "learner_pipeline"]

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
