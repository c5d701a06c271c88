"""A note on vector observations whose elements are far from 1, or differ much in scale: networks learn badly from them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium.spaces import Box
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import flatten

LARGE: Final = 10.0  # root mean square
RATIO: Final = 1000.0  # largest to smallest root mean square
SHOWN: Final = 8


class ObservationScale:
    """The root mean square of each element of the float vectors that the policy is given."""

    def __init__(self, space: Space) -> None:
        leaves = leaf_spaces(space, Columns.OBS).items()
        boxes = {path: leaf for path, leaf in leaves if isinstance(leaf, Box) and len(leaf.shape) == 1}
        self._sizes = {path: box.shape[0] for path, box in boxes.items() if np.dtype(box.dtype).kind == "f"}
        self._squares, self._rows = dict[str, Tensor](), dict[str, int]()  # sums of squares (D,), by path

    def see(self, observations: Any) -> None:
        """Add observations, leaves (N, D), or (N, T, D) for sequences; other leaves are ignored."""
        for path, leaf in flatten(observations, Columns.OBS):
            if path in self._sizes and isinstance(leaf, Tensor):  # not frame stacks
                rows = leaf.reshape(-1, self._sizes[path])
                self._squares[path] = rows.norm(dim=0).double().square() + self._squares.get(path, 0.0)
                self._rows[path] = self._rows.get(path, 0) + len(rows)

    def notes(self, meanings: Meanings) -> list[str]:
        """A note that names the elements, by `meanings`; elements that are always 0 do not count."""
        found = {
            meanings.named(path, (at,), squares.shape): (value / self._rows[path]) ** 0.5
            for path, squares in self._squares.items()
            for at, value in enumerate(squares.tolist())
            if value
        }
        largest = max(found.values(), default=0.0)
        odd = [name for name, one in found.items() if one > LARGE or one * RATIO < largest]
        odd.sort(key=lambda name: -found[name])
        if not odd:
            return []
        named = ", ".join(f"{name} {found[name]:.3g}" for name in odd[:SHOWN])
        more = f", and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        note = "observations are far from 1 or differ much in scale"
        return [f"{note} (root mean square: {named}{more}); scale them with mean_std_filter"]
