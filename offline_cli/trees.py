"""Nested values as trees of arrays: dicts and tuples with leaves; lists are data, not structure.

A tree mirrors a gymnasium space: a Dict is a dict, a Tuple a tuple, anything else a leaf. All functions keep the order of
keys; errors describe the mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tree = Any  # recursive: Mapping[str, Tree] | tuple[Tree, ...] | leaf; mypy cannot follow numpy leaves through the recursion


def map_leaves(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """A tree of the same structure with leaves `fn(leaf, *other leaves)`. Raises ValueError if structures differ."""
    if isinstance(tree, dict):
        for other in others:
            if not isinstance(other, dict) or other.keys() != tree.keys():
                raise ValueError(f"keys {_describe(tree)} against {_describe(other)}")
        return {key: map_leaves(fn, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        for other in others:
            if not isinstance(other, tuple) or len(other) != len(tree):
                raise ValueError(f"{_describe(tree)} against {_describe(other)}")
        return tuple(map_leaves(fn, *parts) for parts in zip(tree, *others, strict=True))
    for other in others:
        if isinstance(other, (dict, tuple)):
            raise ValueError(f"a leaf against {_describe(other)}")
    return fn(tree, *others)


def flatten(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each (dotted path, leaf), depth first: `camera.left`, `joints.0`; the path of a bare leaf is `prefix`."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, tuple):
        for index, value in enumerate(tree):
            yield from flatten(value, f"{prefix}.{index}" if prefix else str(index))
    else:
        yield prefix, tree


def leaves(tree: Tree) -> list[Any]:
    """The leaves, depth first."""
    if not isinstance(tree, (dict, tuple)):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


def paths(tree: Tree, prefix: str = "") -> list[str]:
    """The dotted paths of the leaves, depth first."""
    return [path for path, _ in flatten(tree, prefix)]


def unflatten_like(tree: Tree, new_leaves: list[Any]) -> Tree:
    """A tree with the structure of `tree` and `new_leaves`, depth first. Raises ValueError if their number differs."""
    if len(new_leaves) != len(leaves(tree)):
        raise ValueError(f"{len(new_leaves)} leaves for a tree of {len(leaves(tree))}")
    pending = iter(new_leaves)
    return map_leaves(lambda _: next(pending), tree)


def rows_of(tree: Tree, rows: Any) -> Tree:
    """Select `rows` of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def with_rows(whole: Any, rows: Any, new: Tree, count: int) -> Any:
    """Write `new` into `rows` of `whole`, leaves (count, ...), in place; a leaf that `whole` lacks starts as zeros."""
    if isinstance(new, dict):
        whole = whole or {}
        return whole | {name: with_rows(whole.get(name), rows, part, count) for name, part in new.items()}
    if whole is None:
        whole = np.zeros((count, *new.shape[1:]), new.dtype)
    whole[rows] = new
    return whole


def stacked_rows(values: Sequence[Tree]) -> Tree:
    """Stack B values of one structure into leaves (B, ...)."""
    return np.array(values) if isinstance(values[0], np.ndarray) else map_leaves(lambda *parts: np.stack(parts), *values)


def equal_values(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Elementwise equality of two arrays of one shape; NaN equals NaN."""
    equal = np.asarray(left == right)
    if left.dtype.kind in "fc" and right.dtype.kind in "fc" and not equal.all():
        equal |= np.isnan(left) & np.isnan(right)
    return equal


def same_leaf(left: Any, right: Any) -> bool:
    """Whether two leaves have equal shapes and values; NaN equals NaN."""
    one, other = np.asarray(left), np.asarray(right)
    return one.shape == other.shape and bool(equal_values(one, other).all())


def _describe(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"a dict of {sorted(map(str, tree))}"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else "a leaf"
