"""What the choices of an action are called: texts of categories, where the data that a policy learned from has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.episode_spaces import category_bounds
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["DiscreteElement", "discrete_elements", "with_names"]


@dataclass(frozen=True, slots=True)
class DiscreteElement:
    """One number of an action that is one of several choices."""

    place: str  # actions, actions[1], actions.gear
    name: str  # its own, else its place
    start: int  # the number of its first choice
    count: int
    texts: tuple[str, ...] | None  # of all choices; the number itself for one beyond the categories. None: there are none

    @property
    def labels(self) -> tuple[str, ...]:
        """A different text for each choice: its category, else its number."""
        numbers = tuple(str(self.start + choice) for choice in range(self.count))
        return numbers if self.texts is None or len(set(self.texts)) < self.count else self.texts


def discrete_elements(action_space: Space, meanings: Meanings) -> dict[str, list[DiscreteElement]]:
    """The elements of each leaf that is no Box, in C order, by the leaf's path (`actions`, `actions.gear`).

    The i-th category is the text of the i-th choice, whatever number the space gives it.
    """
    found: dict[str, list[DiscreteElement]] = {}
    for path, leaf in leaf_spaces(action_space, Columns.ACTIONS).items():
        if isinstance(leaf, spaces.Box):
            continue
        shape, known, elements = leaf.shape or (), meanings.by_path.get(path, ()), found.setdefault(path, [])
        starts, ends = (np.broadcast_to(bound, shape) for bound in category_bounds(leaf))
        for number, at in enumerate(np.ndindex(shape)):
            start, count = int(starts[at]), int(ends[at] - starts[at]) + 1
            said = known[number].categories if len(known) == starts.size else None
            texts = said and (*said[:count], *(str(start + choice) for choice in range(len(said), count)))
            place = f"{path}[{', '.join(map(str, at))}]" if at else path
            elements.append(DiscreteElement(place, meanings.named(path, at, shape), start, count, texts))
    return found


def with_names(actions: Tree, elements: Mapping[str, Sequence[DiscreteElement]]) -> Tree:
    """`actions`, leaves (B, ...), with the texts of choices in place of their numbers: leaves that have some are of objects."""

    def named(path: str, leaf: NDArray[Any]) -> NDArray[Any]:
        known = elements.get(path, ())
        if all(one.texts is None for one in known):
            return leaf
        numbers = leaf.reshape(len(leaf), len(known))
        found = numbers.astype(object)
        for column, one in enumerate(known):
            if one.texts is not None:
                found[:, column] = np.array(one.texts, object)[numbers[:, column] - one.start]
        return found.reshape(leaf.shape)

    return unflatten_like(actions, [named(path, leaf) for path, leaf in flatten(actions, Columns.ACTIONS)])
