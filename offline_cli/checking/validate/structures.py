"""What episodes must share to be one dataset: structure, spaces, action scale.

All episodes of one source have one structure and one pair of spaces. Dtypes of observations and actions may differ (they get
those of the spaces); an extra model output has no space to say which dtype is right, so a dtype that differs is another
structure. Between sources it is not: numbers of two dtypes get one that holds both, as `convert` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from offline_cli.checking.validate.values import Found, Spaces
from offline_cli.converting.fitting import difference, extra_kinds, shapes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import describe, same_space
from offline_cli.trees import flatten

Forms = dict[str, str]  # of leaves, by path


class _First(NamedTuple):
    """The first batch of all sources."""

    source: str
    extra: Forms
    shapes: Forms
    spaces: Spaces


class Structures:
    """Compares every batch with the first of its source, and of all sources."""

    def __init__(self, *, by_env: bool) -> None:
        """`by_env`: an environment is named, so that the spaces that sources and episodes declare do not count."""
        self._by_env = by_env
        self._first_of: dict[str, tuple[Forms, Spaces]] = {}  # by source, with the spaces that its episodes declare
        self._first: _First | None = None
        self._scale: tuple[str, str] | None = None

    def problems(self, source: str, batch: EpisodeBatch, spaces: Spaces, *, declared: bool, inferred: bool) -> Iterator[Found]:
        """How `batch` differs. `spaces`: those of its source, or else its own; `declared`: the source has both, and shapes are
        compared with those instead; `inferred`: they were inferred.
        """
        shaped, extra = shapes(batch), extra_kinds(batch)
        mine = {**({} if declared else shaped), **_dtypes(batch)}
        own = batch.observation_space, batch.action_space
        structure, said = self._first_of.setdefault(source, (mine, own))
        first = self._first = self._first or _First(source, extra, shaped, spaces)
        is_later = first.source != source
        other = difference(mine, structure)
        if not other and is_later:
            known = None not in spaces and None not in first.spaces
            other = difference(extra, first.extra) or ("" if known else difference(shaped, first.shapes))
            other = other and f"{other} in {first.source}"
        if other:
            yield Found.of_all("mixed-structures", batch, other)
        if self._by_env:
            return
        other = "" if inferred else _other_spaces(own, said)
        if not other and is_later:
            other = _other_spaces(spaces, first.spaces, known=True)
            other = other and f"{other} in {first.source}"
        if other:
            yield Found.of_all("mixed-spaces", batch, other)

    def other_scale(self, source: str, scale: str) -> str:
        """How the scale of a source with Box actions differs from the first such one's, as text."""
        self._scale = self._scale or (source, scale)
        return "" if scale == self._scale[1] else f"{scale}, before {self._scale[1]} in {self._scale[0]}"


def _other_spaces(mine: Spaces, first: Spaces, *, known: bool = False) -> str:
    """How two pairs of spaces differ, as text; `known`: only where both are."""
    for one, other in zip(mine, first, strict=True):
        if not (known and (one is None or other is None)) and not same_space(one, other):
            return f"{describe(one)}, before {describe(other)}"
    return ""


def _dtypes(batch: EpisodeBatch) -> Forms:
    leaves = (leaf for name, tree in batch.extra.items() for leaf in flatten(tree, f"extra {name}"))
    return {path: f"{leaf.dtype} of shape {leaf.shape[1:]}" for path, leaf in leaves}
