"""Stacks the individual items of each column into arrays with a leading axis; refuses items of different shapes."""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.common.stacking import stacked
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Items
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID, is_multi
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["BatchIndividualItems"]


class BatchIndividualItems(ConnectorV2):
    """Each column becomes a tree of arrays (N, ...); columns that are one already stay as they are, `infos` stay a list.

    With `multi_agent`, that happens to the columns of each module, after AgentToModuleMapping. For a single agent of several
    modules (RLlib's learners have it) the columns end up under the default module's id. Which episode each single item of
    `obs` is from is noted in `shared_data["memorized_map_structure"]` (RLlib's name), for module-to-env.
    """

    whole_arrays = True
    slots_too = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool = False,
        **kwargs: Any,
    ) -> None:
        self._multi_agent = multi_agent
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, shared_data: dict[str, Any] | None = None, **_: Any) -> Batch:
        """The batch. Raises BadPiece, naming the column, where items do not stack."""
        if self._multi_agent:
            return {
                name: _stack_columns(held) if isinstance(held, dict) else _stacked(name, held) for name, held in batch.items()
            }
        if shared_data is not None and is_filed(batch.get(Columns.OBS)):
            _note_rows(batch[Columns.OBS], shared_data)
        if not is_multi(rl_module):
            return _stack_columns(batch)
        own = {column: held for column, held in batch.items() if column not in rl_module}
        kept = {module_id: part for module_id, part in batch.items() if module_id in rl_module}
        return kept | {DEFAULT_MODULE_ID: kept.get(DEFAULT_MODULE_ID, {}) | _stack_columns(own)}

    def on_slots(
        self, *, batch: Batch, slots: SlotWindows, shared_data: dict[str, Any] | None = None, **call: Any
    ) -> tuple[Batch, Any]:
        """The same; most columns are stacked already."""
        slots.is_stacked = True
        if shared_data is not None and slots.has_episodes:
            shared_data["memorized_map_structure"] = slots.ids
        return self(batch=batch, **call), slots


def _stack_columns(columns: Batch) -> Batch:
    return {column: _stacked(column, held) for column, held in columns.items()}


def _stacked(column: str, held: Any) -> Tree:
    entries = [item for items in held.values() for item in items] if is_filed(held) else held
    if not isinstance(entries, list) or column == Columns.INFOS:
        return entries
    try:
        return stacked(entries)
    except ValueError as err:
        raise BadPiece(
            f"column {column!r}: {err}",
            where="BatchIndividualItems",
            fix="items of one structure, shape and type in each column",
        ) from err


def _note_rows(observations: dict[tuple[Any, ...], list[Any]], shared_data: dict[str, Any]) -> None:
    """The episode's id for each row. Not for stacked items: those are train batches, which nobody takes apart again."""
    if not any(isinstance(item, Items) for items in observations.values() for item in items):
        rows = [id_ for (id_, *_), items in observations.items() for id_ in [id_] * len(items)]
        shared_data["memorized_map_structure"] = rows
