"""Rows of a batch that have a problem, and where they stand in words; refuses to make words of more than are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch

__all__ = ["BadRows"]


@dataclass(slots=True)
class BadRows:
    """Rows with one kind of problem among those of a tree, whose leaves are looked at one after the other."""

    batch: EpisodeBatch
    starts: NDArray[np.int64]  # (E+1,): rows of each episode; those of observations, or of steps
    _rows: NDArray[np.bool_] | None = None  # None: no bad one so far
    _first: list[tuple[str, NDArray[Any], NDArray[np.bool_]]] = field(default_factory=list)  # leaves that have some

    def mark(self, path: str, leaf: NDArray[Any], bad: NDArray[np.bool_]) -> None:
        """Take in the bad values (rows, *shape) of one leaf."""
        rows = np.asarray(bad.reshape(len(bad), -1).any(axis=1))
        if rows.any():
            self._rows = rows if self._rows is None else np.logical_or(self._rows, rows)
            self._first.append((path, leaf, bad))

    @property
    def count(self) -> int:
        """How many rows are bad in any leaf."""
        return 0 if self._rows is None else int(np.count_nonzero(self._rows))

    def places(self) -> Iterator[str]:
        """Episode, step and the first bad value of each bad row, in order within each leaf."""
        for path, leaf, bad in self._first:
            for row in np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist():
                at = np.unravel_index(int(bad[row].argmax()), leaf.shape[1:]) if leaf.ndim > 1 else ()
                element = f"[{', '.join(map(str, at))}]" if at else ""
                yield f"{self._place(row)}: {path}{element} is {leaf[(row, *at)]!s}"

    def _place(self, row: int) -> str:
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        start = 0 if self.batch.t_started is None else int(self.batch.t_started[episode])
        return f"episode {self.batch.ids[episode]}, step {row - int(self.starts[episode]) + start}"
