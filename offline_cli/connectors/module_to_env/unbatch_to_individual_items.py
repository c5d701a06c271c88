"""Takes stacked outputs apart, one item per episode and agent; refuses rows that belong to nobody."""

from __future__ import annotations

from typing import Any

from offline_cli.connectors.batch_forms import keys_of, module_parts
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.episodes.buffers.stacking import row_count, unstack
from offline_cli.errors import BadPiece

__all__ = ["UnBatchToIndividualItems"]


class UnBatchToIndividualItems(ConnectorV2):
    """Each column from leaves (B, ...) to items under the keys that their rows had before they were stacked.

    Items are views of the rows. Columns that are made of items already stay as they are.
    """

    whole_arrays = True
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
        """The batch in items. Raises BadPiece where a column has another number of rows than were put in."""
        for module_id, _module, part in module_parts(batch, rl_module, episodes):
            keys = keys_of(episodes, shared_data, module_id)
            for column, held in part.items():
                if not isinstance(held, list) and not is_filed(held):
                    part[column] = _filed(column, unstack(held), keys)
        return batch

    def on_slots(self, *, batch: Batch, slots: SlotWindows, **_: Any) -> tuple[Batch, Any]:
        """The batch as it is: columns stay stacked until a piece wants items. Raises BadPiece as above."""
        for column, held in batch.items():
            if not isinstance(held, list) and not is_filed(held):
                _check(column, row_count(held), len(slots.live))
        slots.is_stacked = False
        return batch, slots


def _check(column: str, rows: int, wanted: int) -> None:
    if rows != wanted:
        what = f"column {column!r} has {rows} rows, and {wanted} observations were put in"
        raise BadPiece(what, where="UnBatchToIndividualItems", fix="let the module put out one row per row put in")


def _filed(column: str, items: list[Any], keys: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Any]]:
    _check(column, len(items), len(keys))
    filed: dict[tuple[Any, ...], list[Any]] = {}
    for key, item in zip(keys, items, strict=True):
        filed.setdefault(key, []).append(item)
    return filed
