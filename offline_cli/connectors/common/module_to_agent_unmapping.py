"""From columns by module back to columns by episode and agent; refuses columns that are not filed by agent."""

from __future__ import annotations

from typing import Any

from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2
from offline_cli.errors import BadPiece

__all__ = ["ModuleToAgentUnmapping"]


class ModuleToAgentUnmapping(ConnectorV2):
    """`{module: {column: {key: items}}}` becomes `{column: {key: items}}`, keys being (episode id, agent id, module id)."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch by column. Raises BadPiece for a column that UnBatchToIndividualItems has not taken apart."""
        columns: Batch = {}
        for module_id, part in batch.items():
            for column, filed in part.items():
                if filed and not is_filed(filed):
                    what = f"column {column!r} of module {module_id!r} is not filed by agent"
                    raise BadPiece(what, where="ModuleToAgentUnmapping", fix="put UnBatchToIndividualItems before it")
                columns.setdefault(column, {}).update(filed)
        return columns
