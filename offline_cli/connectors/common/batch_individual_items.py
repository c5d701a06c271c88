"""Stacks the individual items of each column into arrays with a leading axis; refuses items of different shapes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Items
from offline_cli.trees import Tree, map_leaves

__all__ = ["BatchIndividualItems"]


class BatchIndividualItems(ConnectorV2):
    """Each column becomes a tree of arrays (N, ...); columns that are one already stay as they are."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch. Raises ValueError, naming the column, where items do not stack."""
        for column, held in batch.items():
            if isinstance(held, list) or _is_by_episode(held):
                entries = held if isinstance(held, list) else [item for items in held.values() for item in items]
                try:
                    batch[column] = _stacked(entries)
                except ValueError as err:
                    raise ValueError(f"column {column!r}: {err}") from err
        return batch


def _is_by_episode(column: Any) -> bool:
    """Whether a column is filed by episode; the keys of a Dict observation are strings."""
    return isinstance(column, dict) and bool(column) and all(isinstance(key, tuple) for key in column)


def _stacked(entries: Iterable[Any]) -> Tree:
    parts: list[Tree] = []
    for already, group in groupby(entries, lambda entry: isinstance(entry, Items)):
        run = list(group)
        parts += [entry.tree for entry in run] if already else [map_leaves(lambda *leaves: np.stack(leaves), *run)]
    if not parts:
        raise ValueError("no items")
    return map_leaves(lambda *leaves: np.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]
