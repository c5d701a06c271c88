"""Whether all episodes have one structure and one pair of spaces, as a dataset must; refuses nothing.

Dtypes of observations and actions may differ (they get those of the spaces); an extra model output has no space to say which
dtype is right, so there a dtype that differs is another structure.
"""

from __future__ import annotations

from offline_cli.datasets.validate.common_form import CommonForm, difference
from offline_cli.datasets.validate.findings import Findings
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space, describe, same_space
from offline_cli.trees import flatten

__all__ = ["Structures"]


class Structures:
    """Compares every batch of one source with its first."""

    def __init__(
        self, findings: Findings, source: str, common: CommonForm, *, spaces_known: bool, compare_spaces: bool
    ) -> None:
        """`spaces_known`: shapes are compared with those instead; `compare_spaces`: what episodes declare counts.

        `common`: what is compared between sources.
        """
        self._findings, self._source, self._common = findings, source, common
        self._spaces_known, self._compare_spaces = spaces_known, compare_spaces
        self._first: dict[str, str] | None = None
        self._spaces: tuple[Space | None, Space | None] | None = None

    def see(self, batch: EpisodeBatch, spaces: tuple[Space | None, Space | None]) -> None:
        """Compare `batch`; `spaces`: those of its source, or else its own."""
        mine = _structure(batch, shapes=not self._spaces_known)
        self._first = self._first or mine
        other = difference(mine, self._first) or self._common.other_structure(self._source, batch, spaces)
        if other:
            self._add("mixed-structures", batch, other)
        other = self._own_difference((batch.observation_space, batch.action_space)) if self._compare_spaces else ""
        other = other or self._common.other_spaces(self._source, spaces)
        if other:
            self._add("mixed-spaces", batch, other)

    def _own_difference(self, spaces: tuple[Space | None, Space | None]) -> str:
        """How the spaces of a batch differ from those of the first one, in words."""
        if self._spaces is None:
            self._spaces = spaces
        other = [pair for pair in zip(spaces, self._spaces, strict=True) if pair[0] is not pair[1] and not same_space(*pair)]
        return f"{describe(other[0][0])}, before {describe(other[0][1])}" if other else ""

    def _add(self, code: str, batch: EpisodeBatch, example: str) -> None:
        places = (f"{self._source}, episode {episode}" for episode in batch.ids)
        self._findings.add(self._source, code, len(batch), places, example=example)


def _structure(batch: EpisodeBatch, *, shapes: bool) -> dict[str, str]:
    """What two batches must share, by path."""
    trees = (("obs", batch.obs), ("actions", batch.actions)) if shapes else ()
    found = {path: f"of shape {list(leaf.shape[1:])}" for name, tree in trees for path, leaf in flatten(tree, name)}
    for name, tree in batch.extra.items():
        found |= {path: f"{leaf.dtype} of shape {list(leaf.shape[1:])}" for path, leaf in flatten(tree, f"extra {name}")}
    return found
