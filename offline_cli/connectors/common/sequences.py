"""Rows of timesteps cut into sequences of one length; refuses columns whose rows are not the episodes' timesteps.

Every episode begins a sequence of its own; its last one is filled up with zeros on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadPiece
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["Cut"]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How N timesteps of several episodes lie in B sequences of T."""

    rows: NDArray[np.int64]  # (B, T) which timestep; 0 where there is none
    there: NDArray[np.bool_]  # (B, T) whether there is one
    seq_lens: NDArray[np.int64]  # (B,)
    timesteps: int  # N

    @classmethod
    def of(cls, lengths: Sequence[int] | NDArray[np.int64], max_seq_len: int) -> Cut:
        """For episodes of these lengths, one after the other; an episode without a step makes no sequence."""
        steps = np.asarray(lengths, np.int64)
        counts = -(-steps // max_seq_len)
        episode = np.repeat(np.arange(len(steps)), counts)
        nth = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
        seq_lens = np.minimum(max_seq_len, steps[episode] - nth * max_seq_len)
        first = (np.cumsum(steps) - steps)[episode] + nth * max_seq_len
        offsets = np.arange(max_seq_len)
        there = offsets < seq_lens[:, None]
        return cls(np.where(there, first[:, None] + offsets, 0), there, seq_lens, int(steps.sum()))

    def __len__(self) -> int:
        """B."""
        return len(self.seq_lens)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """(B,) the timestep that each sequence begins with."""
        return self.rows[:, 0]

    def check(self, column: str, rows: int) -> None:
        """Raise BadPiece, naming the column, unless it has a row for each timestep."""
        if rows != self.timesteps:
            raise BadPiece(
                f"column {column!r} has {rows} rows, and the episodes {self.timesteps} timesteps",
                where="AddTimeDimToBatchAndZeroPad",
                fix="add one row per timestep of every episode, or add the column after the default pieces",
            )

    def pad(self, column: str, tree: Tree) -> Tree:
        """Leaves (B, T, ...) of leaves (N, ...). Raises BadPiece, naming the column, for another number of rows."""
        for _, leaf in flatten(tree):
            self.check(column, len(leaf))
        return map_leaves(self._padded, tree)

    def _padded(self, leaf: NDArray[Any]) -> NDArray[Any]:
        if not len(self):
            return np.zeros((*self.rows.shape, *leaf.shape[1:]), leaf.dtype)
        padded = leaf.take(self.rows, axis=0)
        padded[~self.there] = np.zeros((), leaf.dtype)
        return padded

    def unpad(self, rows: NDArray[Any]) -> NDArray[Any]:
        """(N, ...) of (B, T, ...)."""
        return rows[self.there]
