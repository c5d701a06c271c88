"""Individual items to arrays with a leading axis; refuses items of different shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from offline_cli.connectors.batch_items import Items
from offline_cli.trees import Tree, map_leaves

__all__ = ["joined", "stacked"]


def stacked(entries: Iterable[Any]) -> Tree:
    """One tree of leaves (N, ...) of items and `Items`. Raises ValueError where they do not stack, or there are none."""
    entries = list(entries)
    if set(map(type, entries)) == {Items}:
        trees = [entry.tree for entry in entries]
        return joined(trees) if len(trees) > 1 else map_leaves(np.array, trees[0])  # what `Items` show may be an episode's own
    parts: list[Tree] = []
    for already, group in groupby(entries, lambda entry: isinstance(entry, Items)):
        run = list(group)
        parts += [entry.tree for entry in run] if already else [map_leaves(_stack, *run)]
    return joined(parts)


def joined(parts: Sequence[Tree]) -> Tree:
    """One tree of leaves (N, ...) of several, one after the other; the same tree for one alone. Raises ValueError for none."""
    if not parts:
        raise ValueError("no items")
    if len(parts) == 1:
        return parts[0]
    if set(map(type, parts)) == {np.ndarray}:  # by far the most frequent case
        return np.concatenate(parts)
    return map_leaves(lambda *leaves: np.concatenate(leaves), *parts)


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else np.array(leaves)
