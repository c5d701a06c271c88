"""Whether several sources can be one dataset: structures, spaces and action scales, as `convert` compares them.

Less strict than within one source: an extra model output may have numbers of two dtypes, and gets one that holds both.
"""

from __future__ import annotations

from offline_cli.converting.fitting import extra_kinds
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space, describe, same_space
from offline_cli.trees import flatten

__all__ = ["CommonForm", "difference"]

Spaces = tuple[Space | None, Space | None]


class CommonForm:
    """What the first source has, with which each later one is compared; one for all sources."""

    def __init__(self, *, compare_spaces: bool) -> None:
        """`compare_spaces`: the spaces that sources declare count, because no environment is named."""
        self._compare_spaces = compare_spaces
        self._first: tuple[str, dict[str, str], dict[str, str], Spaces] | None = None
        self._scale: tuple[str, str] | None = None

    def other_structure(self, source: str, batch: EpisodeBatch, spaces: Spaces) -> str:
        """How `batch`, whose source has `spaces`, differs from the first source, in words; empty where it does not.

        Shapes are compared where a space is not known; where both are, `other_spaces` says it.
        """
        extra, shapes = extra_kinds(batch.extra), _shapes(batch)
        self._first = self._first or (source, extra, shapes, spaces)
        first, first_extra, first_shapes, first_spaces = self._first
        if source == first:
            return ""
        known = None not in spaces and None not in first_spaces
        found = difference(extra, first_extra, "extra ") or ("" if known else difference(shapes, first_shapes))
        return found and f"{found} in {first}"

    def other_spaces(self, source: str, spaces: Spaces) -> str:
        """How declared `spaces` differ from those of the first source, in words; after `other_structure`."""
        if not self._compare_spaces or self._first is None or source == self._first[0]:
            return ""
        for mine, theirs in zip(spaces, self._first[3], strict=True):
            if mine is not theirs and mine is not None and theirs is not None and not same_space(mine, theirs):
                return f"{describe(mine)}, before {describe(theirs)} in {self._first[0]}"
        return ""

    def other_scale(self, source: str, scale: str) -> str:
        """How the scale of a source with Box actions differs from the first such one's, in words."""
        self._scale = self._scale or (source, scale)
        return "" if scale == self._scale[1] else f"{scale}, before {self._scale[1]} in {self._scale[0]}"


def difference(mine: dict[str, str], first: dict[str, str], name: str = "") -> str:
    """The first path at which two structures differ, in words; empty where they do not."""
    path = next((path for path in {**mine, **first} if mine.get(path) != first.get(path)), None)
    return "" if path is None else f"{name}{path} is {mine.get(path, 'absent')}, before {first.get(path, 'absent')}"


def _shapes(batch: EpisodeBatch) -> dict[str, str]:
    trees = (("obs", batch.obs), ("actions", batch.actions))
    return {path: f"of shape {list(leaf.shape[1:])}" for name, tree in trees for path, leaf in flatten(tree, name)}
