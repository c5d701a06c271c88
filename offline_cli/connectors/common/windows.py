"""The last few rows before each of many places, at once; refuses nothing: where there are no rows there are zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.trees import Tree, map_leaves

__all__ = ["windows"]


def windows(rows: Tree, ends: NDArray[np.int64], firsts: NDArray[np.int64] | int, size: int) -> Tree:
    """Leaves (K, size, ...) of rows (R, ...): for each k those up to `ends[k]`, the oldest first, zeros before `firsts[k]`."""
    wanted = ends[:, None] + np.arange(1 - size, 1)
    there = wanted >= (firsts if isinstance(firsts, int) else firsts[:, None])
    safe = np.where(there, wanted, 0)

    def gather(leaf: NDArray[Any]) -> NDArray[Any]:
        if not len(leaf):
            return np.zeros((*wanted.shape, *leaf.shape[1:]), leaf.dtype)
        found = leaf.take(safe, axis=0)
        found[~there] = np.zeros((), leaf.dtype)
        return found

    return map_leaves(gather, rows)
