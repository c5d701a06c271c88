"""Whether one row goes on from another by its observations, whole columns at a time; refuses no values: NaN equals NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.trees import Tree, flatten

__all__ = ["chained"]


def chained(obs: Tree, next_obs: Tree) -> NDArray[np.bool_]:
    """(N-1,) whether the observation that row i led to is the one that row i + 1 acted on; both trees have N rows."""
    theirs = dict(flatten(next_obs))
    return np.asarray(np.logical_and.reduce([_equal_rows(leaf[1:], theirs[path][:-1]) for path, leaf in flatten(obs)]))


def _equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    equal = left == right
    if left.dtype.kind in "fc" and not equal.all():
        equal |= np.isnan(left) & np.isnan(right)
    return np.asarray(equal.all(axis=tuple(range(1, equal.ndim))))
