"""A train batch as columns that files can hold: stacked, without objects, and of one number of rows.

Every column has one row for each row of the batch. Infos are JSON text, one per row, null where one is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.applying.column_summary import dtype_name
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.errors import BadPiece
from offline_cli.storage.step_tables import info_to_text
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["JSON", "TEXT", "ColumnKind", "TrainColumns", "train_columns"]

JSON: Final = "json"  # JSON text
TEXT: Final = "text"


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What every file has under one name."""

    name: str  # `obs`, `obs.camera`
    dtype: str  # `float32`, `json`, `text`
    shape: tuple[int, ...]  # of one row

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.shape else self.dtype


@dataclass(frozen=True, slots=True, eq=False)
class TrainColumns:
    """The columns of one batch, in its order."""

    columns: Mapping[str, Tree | list[str | None]]  # leaves (rows, ...), arrays or tensors on the CPU; or texts, one per row
    kinds: tuple[ColumnKind, ...]
    rows: int
    added_by: Mapping[str, str]  # the piece that put each column in

    def texts(self) -> list[str]:
        """Names of the columns that are no numbers."""
        return [name for name, column in self.columns.items() if isinstance(column, list)]


def train_columns(batch: Batch, added_by: Mapping[str, str], *, where: str, tally: Tally) -> TrainColumns:
    """The columns of `batch`. Raises BadPiece, naming column and piece; BadData for infos that have no text."""
    if not batch:
        fix = "leave defaults = true, or list pieces that add columns"
        raise BadPiece("the batch is empty: no piece has put a column in", where=where, fix=fix)
    columns = {name: _column(name, held, _by(name, added_by), where, tally) for name, held in batch.items()}
    kinds, counts = [], {}
    for name, column in columns.items():
        if isinstance(column, list):
            kinds.append(ColumnKind(name, TEXT if _is_text(batch[name]) else JSON, ()))
            counts[name] = len(column)
        for path, leaf in flatten(column, name) if not isinstance(column, list) else ():
            kinds.append(ColumnKind(path, dtype_name(leaf), tuple(leaf.shape[1:])))
            counts[path] = len(leaf)
    _check_names(kinds, where)
    if len(set(counts.values())) > 1:
        fix = "one row for each row of the batch, in every column that a piece adds"
        raise BadPiece(f"columns of different lengths: {counts}", where=where, fix=fix)
    return TrainColumns(columns, tuple(kinds), next(iter(counts.values()), 0), added_by)


def _check_names(kinds: list[ColumnKind], where: str) -> None:
    names = [kind.name for kind in kinds]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        fix = "another name for one of them, without a dot"
        raise BadPiece(f"two columns, one of them nested, are both called {twice!r}", where=where, fix=fix)


def _by(name: str, added_by: Mapping[str, str]) -> str:
    return f"column {name!r}, which piece {added_by[name]} put into the batch," if name in added_by else f"column {name!r}"


def _column(name: str, held: Any, called: str, where: str, tally: Tally) -> Tree | list[str | None]:
    if is_filed(held):
        fix = "end the pipeline with batch_individual_items, or leave defaults = true"
        raise BadPiece(f"{called} holds items by episode that nobody has stacked", where=where, fix=fix)
    if _is_text(held):
        return list(held) if isinstance(held, list) else held.tolist()
    if isinstance(held, list):
        return _infos(name, held, called, where, tally)
    return map_leaves(lambda leaf: _numbers(leaf, called, where), held)


def _is_text(held: Any) -> bool:
    if isinstance(held, list):
        return bool(held) and all(isinstance(value, str) for value in held)
    return isinstance(held, np.ndarray) and held.dtype.kind == "U" and held.ndim == 1


def _infos(name: str, held: list[Any], called: str, where: str, tally: Tally) -> list[str | None]:
    if not all(isinstance(info, Mapping) for info in held):
        fix = "arrays or tensors with one row for each row of the batch; a list may hold dicts, or texts"
        raise BadPiece(f"{called} is a list of {type(held[0]).__name__}", where=where, fix=fix)
    return [info_to_text(info, tally=tally, where=f"row {row} of {name}, {where}") for row, info in enumerate(held)]


def _numbers(leaf: Any, called: str, where: str) -> Any:
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu()
    if not _counts(leaf):
        kind = f"of {dtype_name(leaf)}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
        raise BadPiece(f"{called} is {kind}", where=where, fix="arrays or tensors of numbers or bools")
    if not leaf.ndim:
        raise BadPiece(f"{called} is a single number", where=where, fix="one row for each row of the batch")
    return leaf


def _counts(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biuf"
    return isinstance(leaf, Tensor) and not leaf.is_complex()
