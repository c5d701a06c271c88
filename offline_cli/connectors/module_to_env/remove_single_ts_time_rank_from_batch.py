"""Takes the time axis of one step away again that stateful modules need; refuses columns that have more than one step."""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import module_of
from offline_cli.trees import map_leaves

__all__ = ["RemoveSingleTsTimeRankFromBatch"]


class RemoveSingleTsTimeRankFromBatch(ConnectorV2):
    """Items (1, ...) become items (...), in every column but `state_out`, which has no time axis.

    Only where env-to-module noted in `shared_data` (RLlib's name, `_added_single_ts_time_rank`) that it had added one, and with
    several modules only for the items of stateful ones.
    """

    slots_too = True

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: Batch,
        episodes: Episodes,
        shared_data: dict[str, Any] | None = None,
        **_: Any,
    ) -> Batch:
        """The batch without that axis. Raises BadPiece, naming the column, for items without an axis of one step."""
        if not (shared_data or {}).get("_added_single_ts_time_rank"):
            return batch
        for column in batch:
            if column == Columns.STATE_OUT:
                continue

            def squeezed(item: Any, _episode: Any, _agent: Any, module_id: Any, column: str = column) -> Any:
                if module_id is not None and not module_of(rl_module, module_id).is_stateful():
                    return item
                return map_leaves(lambda leaf: _first(leaf, column), item)

            self.foreach_batch_item_change_in_place(batch, column, squeezed)
        return batch

    def on_slots(
        self, *, batch: Batch, slots: SlotWindows, shared_data: dict[str, Any] | None = None, **call: Any
    ) -> tuple[Batch, Any]:
        """The same for columns (P, 1, ...)."""
        if not (shared_data or {}).get("_added_single_ts_time_rank"):
            return batch, slots
        if slots.is_stacked:  # for good: the helper says so
            return self(batch=batch, episodes=(), shared_data=shared_data, **call), slots
        for column in batch:
            if column != Columns.STATE_OUT:
                batch[column] = map_leaves(lambda leaf, column=column: _first(leaf, column, axis=1), batch[column])
        return batch, slots


def _first(leaf: Any, column: str, *, axis: int = 0) -> Any:
    shape = getattr(leaf, "shape", ())[axis:]
    if not shape or shape[0] != 1:
        what = f"column {column!r} has items of shape {tuple(shape)}, and (1, ...) was wanted, with an axis of one time step"
        raise BadPiece(what, where="RemoveSingleTsTimeRankFromBatch", fix="let stateful modules keep the time axis")
    return leaf[:, 0] if axis else leaf[0]
