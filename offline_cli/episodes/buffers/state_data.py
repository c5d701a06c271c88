"""The data of a lookback buffer as states hold it, checked; refuses leaves that are no arrays, or of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_cli.episodes.buffers.stacking import has_tuple, tuples_for
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten

__all__ = ["arrays_from_state", "records_from_state"]


def records_from_state(data: Any, space: Space | None) -> list[Any]:
    """The list of single steps; lists in them become tuples where `space` says so. Raises BadEpisode for no list."""
    if not isinstance(data, (list, tuple, np.ndarray)):
        raise BadEpisode(f"records in a {type(data).__name__}", where="data", fix="a list of records, or finalized: true")
    if has_tuple(space):
        return list(tuples_for(data, space))
    return data if isinstance(data, list) else list(data)


def arrays_from_state(data: Any) -> Tree:
    """Leaves (length, *shape) of numpy'ized data, lists as tuples: here they can only be structure. Raises BadEpisode."""
    tree = _lists_to_tuples(data)
    sizes = {}
    for path, leaf in flatten(tree):
        if not isinstance(leaf, np.ndarray) or not leaf.ndim:
            raise BadEpisode(f"{path or 'data'} is a {type(leaf).__name__}, not an array", where="data", fix="finalized: false")
        sizes[path] = len(leaf)
    if not sizes or len(set(sizes.values())) > 1:
        raise BadEpisode(f"leaves of lengths {sizes}", where="data", fix="write the file again from its source")
    return tree


def _lists_to_tuples(tree: Any) -> Tree:
    if isinstance(tree, dict):
        return {key: _lists_to_tuples(part) for key, part in tree.items()}
    return tuple(map(_lists_to_tuples, tree)) if isinstance(tree, (list, tuple)) else tree
