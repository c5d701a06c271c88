"""From items under keys to what a vector of environments takes: one entry each, in order; refuses gaps and leftovers."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.connectors.batch_forms import is_multi_agent
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.errors import BadPiece
from offline_cli.trees import map_leaves

__all__ = ["ListifyDataForVectorEnv"]


class ListifyDataForVectorEnv(ConnectorV2):
    """Columns become lists with an item per episode, in the order of the episodes; `actions` and `actions_for_env` stacked.

    With several agents an entry is a dict by agent, in every column. Columns that are not filed by episode stay as they are.
    """

    slots_too = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece where a column has an item too many, too few or for an unknown episode."""
        for column, held in batch.items():
            if is_multi_agent(episodes) and (held == {} or is_filed(held)):
                batch[column] = _by_agent(column, held, [episode.id_ for episode in episodes])
            elif is_filed(held):
                items = _in_order(column, held, [episode.id_ for episode in episodes])
                stacked = column in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
                batch[column] = map_leaves(lambda *leaves: np.stack(leaves), *items) if stacked else items
        return batch

    def on_slots(self, *, batch: Batch, slots: SlotWindows, **_: Any) -> tuple[Batch, Any]:
        """The same; columns that no piece took apart are stacked in the order of the slots already."""
        if any(map(is_filed, batch.values())):
            return self(batch=batch, episodes=slots.episodes()), slots
        return batch, slots


def _in_order(column: str, held: dict[tuple[Any, ...], list[Any]], ids: list[str]) -> list[Any]:
    if set(held) != {(id_,) for id_ in ids} or any(len(items) != 1 for items in held.values()):
        counts = {key[0]: len(items) for key, items in held.items()}
        raise _bad(f"column {column!r} has items {counts}, and one each was wanted for the episodes {ids}")
    return [held[(id_,)][0] for id_ in ids]


def _by_agent(column: str, held: dict[tuple[Any, ...], list[Any]], ids: list[str]) -> list[dict[Any, Any]]:
    entries: dict[str, dict[Any, Any]] = {id_: {} for id_ in ids}
    for (episode_id, agent_id, _module_id), items in held.items():
        if episode_id not in entries or len(items) != 1:
            raise _bad(f"column {column!r} has {len(items)} items for agent {agent_id!r} of episode {episode_id}, of {ids}")
        entries[episode_id][agent_id] = items[0]
    return list(entries.values())


def _bad(what: str) -> BadPiece:
    return BadPiece(what, where="ListifyDataForVectorEnv", fix="give each episode, or agent that acts, one item per column")
