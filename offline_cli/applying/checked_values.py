"""Whether values can be learned from: finite numbers, choices inside their spaces; errors name the first that cannot.

Of episodes before the learner pipeline by episode, step and column, of its columns by name.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten

__all__ = [
    "UNREWARDED",
    "check_choices",
    "check_finite",
    "check_finite_rewards",
    "check_values",
    "choices_of",
    "place_of_first",
]

UNREWARDED: Final = "or learn with `train-bc`, which needs no rewards"


def check_finite(tree: Tree, name: str, where: str) -> None:
    """Raise BadData for a number that is not finite."""
    for path, leaf in flatten(tree, name):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            fix = "fix its pieces, or scale the data: numbers are float32 here"
            raise BadData(f"after the learner pipeline {path} hold NaN or infinity", where=where, fix=fix)


def check_choices(tree: Tree, space: Space, name: str, where: str) -> None:
    """Raise BadData for a choice outside `space`."""
    for (path, leaf), part in zip(flatten(tree, name), leaf_spaces(space).values(), strict=True):
        low, high = choices_of(part)
        if low is not None and bool(((leaf < torch.as_tensor(low)) | (leaf > torch.as_tensor(high))).any()):
            what = f"after the learner pipeline {path} hold choices outside {part}"
            raise BadData(what, where=where, fix="fix its pieces, or the spaces that they announce")


def check_finite_rewards(episodes: EpisodeBatch, where: str) -> None:
    """Raise BadData, naming the first episode and step, for rewards that are not finite."""
    wrong = ~np.isfinite(episodes.rewards)
    if wrong.any():
        counted = f"in {np.count_nonzero(wrong):,} of {wrong.size:,} steps" if not wrong.all() else "in every step"
        what = f"rewards hold NaN or infinity {counted}, first in {place_of_first(episodes, wrong)}"
        raise BadData(what, where=where, fix=f"take such episodes out of the recording; {UNREWARDED}")


def check_values(episodes: EpisodeBatch, tree: Tree, space: Space, name: str, where: str, meanings: Meanings) -> None:
    """Raise BadData, naming episode and step, for a value of `tree` (leaves (N, ...)) that is not finite, or not a choice."""
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), leaf_spaces(space).values(), strict=True):
        low, high = choices_of(part)
        if leaf.dtype.kind == "f":
            wrong, what = ~np.isfinite(leaf), "NaN or infinity"
            fix = "take such steps out of the recording: a policy cannot learn from them"
        elif low is not None:
            wrong, what = (leaf < low) | (leaf > high), f"choices outside {part}"
            fix = "--env with the environment the data is from, or convert again with the right space"
        else:
            continue
        if wrong.any():
            at = [int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape)[1:]]
            which = meanings.column(path, at, wrong.shape[1:])  # `, column joint_a`, where columns have names
            raise BadData(f"{path} hold {what}, first in {place_of_first(episodes, wrong)}{which}", where=where, fix=fix)


def place_of_first(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"


def choices_of(space: Space) -> tuple[Any, Any]:
    """The least and the largest choice of a leaf space; None for both where it has no choices."""
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            return space.start, np.add(space.start, space.nvec, dtype=np.int64) - 1
        case spaces.MultiBinary():
            return 0, 1
    return None, None
