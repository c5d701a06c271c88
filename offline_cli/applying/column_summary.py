"""What a batch or episodes hold at some point of a pipeline, in figures for people.

Columns come in every form that pieces leave them in (`connectors/batch_items.py`): `items`, not stacked yet; `array`; `tensor`;
`list`, of infos for instance. Nested columns are named by path, `obs.camera`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Items, is_filed
from offline_cli.connectors.connector_v2 import Batch, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.trees import Tree, flatten

__all__ = ["Seen", "dtype_name", "seen_in_batch", "seen_in_episodes"]

SHOWN: Final = 8  # values
SHOWN_OF_ONE: Final = 16  # where one row has more
SHOWN_LETTERS: Final = 60  # of a value that is no number


@dataclass(frozen=True, slots=True)
class Seen:
    """One column, or one leaf of a nested one."""

    name: str  # `obs`, `obs.camera`
    held: str  # "tensor" | "array" | "list" | "items"
    dtype: str  # `float32`; of things that are no numbers the name of their type
    shape: tuple[int, ...]  # of one row
    rows: int | None  # None: it has no axis of rows
    first: tuple[Any, ...]  # its first values, row by row

    def as_dict(self, *, values: bool = True) -> dict[str, Any]:
        """Plain values by name; without rows and values where those are invented."""
        known = {"name": self.name, "held": self.held, "dtype": self.dtype, "shape": list(self.shape)}
        return {**known, "rows": self.rows, "first": list(self.first)} if values else known

    @property
    def kind(self) -> tuple[str, str, tuple[int, ...]]:
        """What a piece may change: form, dtype and shape."""
        return self.held, self.dtype, self.shape


def seen_in_batch(batch: Batch) -> tuple[Seen, ...]:
    """Every column of `batch`, in its order."""
    return tuple(seen for column, held in batch.items() for seen in _column(str(column), held))


def seen_in_episodes(episodes: Episodes) -> tuple[Seen, ...]:
    """Observations, actions and rewards as pieces find them in the episodes; of a list, those of its first episode."""
    if isinstance(episodes, EpisodeBatch):
        trees = {Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions, Columns.REWARDS: episodes.rewards}
    elif episodes and hasattr(episodes[0], "get_rewards"):
        first = episodes[0]
        trees = {
            Columns.OBS: first.get_observations(),
            Columns.ACTIONS: first.get_actions(),
            Columns.REWARDS: first.get_rewards(),
        }
    else:
        return ()
    return tuple(seen for name, tree in trees.items() for seen in _column(name, tree))


def _column(name: str, held: Any) -> Iterator[Seen]:
    if is_filed(held):
        yield from _items(name, [item for items in held.values() for item in items])
    elif isinstance(held, list):
        yield from [_listed(name, held)] if _no_numbers(held) else _items(name, held)
    else:
        for path, leaf in flatten(held, name):
            yield _leaf(path, leaf, "tensor" if isinstance(leaf, Tensor) else "array")


def _no_numbers(held: list[Any]) -> bool:
    return not held or isinstance(held[0], (str, Mapping))


def _listed(name: str, held: list[Any]) -> Seen:
    kind = type(held[0]).__name__ if held else "nothing"
    return Seen(name, "list", kind, (), len(held), tuple(_short(value) for value in held[:2]))


def _items(name: str, entries: list[Any]) -> Iterator[Seen]:
    """Items that nobody has stacked yet, by the first one of them."""
    rows = sum(entry.count if isinstance(entry, Items) else 1 for entry in entries)
    for path, leaf in flatten(_first_rows(entries), name):
        found = _leaf(path, leaf, "items")
        yield Seen(path, "items", found.dtype, found.shape, rows, found.first)


def _first_rows(entries: list[Any]) -> Tree:
    """Leaves with an axis of rows."""
    first = entries[0]
    if isinstance(first, Items):
        return first.tree
    return _with_row_axis(first)


def _with_row_axis(item: Tree) -> Tree:
    if isinstance(item, dict):
        return {key: _with_row_axis(part) for key, part in item.items()}
    return tuple(map(_with_row_axis, item)) if isinstance(item, tuple) else np.asarray(item)[None]


def _leaf(path: str, leaf: Any, held: str) -> Seen:
    array = leaf if isinstance(leaf, Tensor) else np.asarray(leaf)
    if not array.ndim:
        return Seen(path, held, dtype_name(array), (), None, _values(array))
    return Seen(path, held, dtype_name(array), tuple(array.shape[1:]), len(array), _values(array))


def dtype_name(array: Any) -> str:
    """`float32`, of an array and of a tensor."""
    return str(array.dtype).removeprefix("torch.")


def _values(array: Any) -> tuple[Any, ...]:
    first = array.reshape(-1)[: min(max(SHOWN, math.prod(array.shape[1:])), SHOWN_OF_ONE)]
    values = first.detach().cpu().tolist() if isinstance(first, Tensor) else first.tolist()
    return tuple(value if isinstance(value, (bool, int, float)) else _short(value) for value in values)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}..."
