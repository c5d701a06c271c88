"""Actions as recordings have them, beside those that an environment takes; the two share no memory.

Boxes of floats are recorded as the module-to-env pipeline leaves them in `actions`, before they are fitted to the environment;
choices and integer boxes as the environment takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from offline_cli.errors import BadPiece
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["RecordedActions"]

Shapes = Mapping[str, tuple[int, ...]]


class RecordedActions:
    """Both forms of what comes out of a module-to-env pipeline, in the dtypes of an action space."""

    def __init__(self, space: Space) -> None:
        parts = leaf_spaces(space)
        self._shapes: Shapes = {path: part.shape or () for path, part in parts.items()}
        self._dtypes = {path: np.dtype(part.dtype) for path, part in parts.items()}
        self._raw = {path for path, part in parts.items() if isinstance(part, spaces.Box) and self._dtypes[path].kind == "f"}

    def __call__(self, actions: Tree, for_env: Tree) -> tuple[Tree, Tree]:
        """Recorded and taken, leaves (B, ...), of `actions` and `actions_for_env`. Raises BadPiece."""
        taken = dict(self._typed(for_env))
        recorded = {path: leaf if path in self._raw else taken[path] for path, leaf in self._typed(actions)}
        # Environments may write into what they are given.
        taken = {path: leaf.copy() if np.may_share_memory(leaf, recorded[path]) else leaf for path, leaf in taken.items()}
        return unflatten_like(actions, list(recorded.values())), unflatten_like(for_env, list(taken.values()))

    def _typed(self, actions: Tree) -> Iterator[tuple[str, Any]]:
        leaves = dict(flatten(actions))
        found = {path: leaf.shape[1:] for path, leaf in leaves.items()}
        if found != self._shapes:
            what = f"actions of the shapes {_told(found)}, and the environment takes {_told(self._shapes)}"
            raise BadPiece(
                what, where="module-to-env pipeline", fix="pieces that leave actions of the action space in the batch"
            )
        for path, leaf in leaves.items():
            yield path, leaf.astype(self._dtypes[path], copy=False)


def _told(shapes: Shapes) -> str:
    return ", ".join(f"{path} {shape}".strip() for path, shape in shapes.items())
