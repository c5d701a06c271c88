"""Observations of environments into rows of arrays; refuses what the space cannot hold.

numpy alone would repeat values to fill a shape, and cut numbers to fit a type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, map_leaves

__all__ = ["fitted", "row_writer", "rows_of", "zero_rows"]


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def zero_rows(space: Space, count: int) -> Tree:
    """Zeros for `count` values of `space`: leaves (count, *shape)."""
    parts = iter([np.zeros((count, *(leaf.shape or ())), leaf.dtype) for leaf in leaf_spaces(space).values()])
    return _shaped_like(space, parts)


def _shaped_like(space: Space, parts: Any) -> Tree:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return next(parts)
    if hasattr(inner, "items"):
        return {key: _shaped_like(part, parts) for key, part in inner.items()}
    return tuple(_shaped_like(part, parts) for part in inner)


def row_writer(rows: Tree) -> Callable[[int, Tree], None]:
    """What puts one value into its row of `rows`, leaves (B, *shape).

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    if not isinstance(rows, np.ndarray):
        return lambda row, value: _write_tree(rows, row, value)
    shape, dtype = rows.shape[1:], rows.dtype

    def write(row: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            rows[row] = value
        else:
            _write(rows, row, value)

    return write


def _write_tree(rows: Tree, row: int, value: Tree) -> None:
    map_leaves(lambda target, leaf: _write(target, row, leaf), rows, value)


def _write(target: NDArray[Any], row: int, value: Any) -> None:
    value = np.asarray(value)
    if value.shape != target.shape[1:]:
        raise ValueError(f"an observation of shape {value.shape}, and the space says {target.shape[1:]}")
    target[row] = fitted(value, target.dtype)


def fitted(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """`values` as `dtype`, rounded where both are floats. Raises ValueError where that changes what they say."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufO":
        raise ValueError(f"an observation of {values.dtype}, which is no numbers")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN is no integer, which the comparison finds
        turned = values.astype(dtype)
    rounded = values.dtype.kind == turned.dtype.kind == "f"
    if not rounded and not np.array_equal(turned, values):
        raise ValueError(f"an observation of {values.dtype}, and the space's {np.dtype(dtype)} cannot hold its values")
    return turned
