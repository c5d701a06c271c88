"""The steps of one policy in some lines, as arrays; refuses to know how a line was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.sample_batch.values import Column
from offline_cli.trees import map_leaves

__all__ = ["LinePlace", "PolicyRows", "in_line_order"]


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Which line it was."""

    number: int  # in its group of lines, from 0
    where: str  # for messages
    nbytes: int


@dataclass(slots=True)
class PolicyRows:
    """The N steps of one policy in L lines that stand one after the other in a file, in their order."""

    policy: str | None  # None: SampleBatch lines, which name none
    lines: tuple[LinePlace, ...]  # (L,)
    starts: NDArray[np.int64]  # (L+1,): the steps of line i are starts[i]:starts[i+1]; none is empty but in a single line
    columns: dict[str, Column]  # obs, actions, new_obs if there, and extra model outputs by name; leaves (N, ...)
    rewards: NDArray[np.float64]  # (N,)
    terminateds: NDArray[np.bool_]  # (N,)
    truncateds: NDArray[np.bool_]  # (N,)
    eps_id: NDArray[Any] | None  # (N,) int64 or text
    agent_index: NDArray[Any]  # (N,) int64 or text
    t: NDArray[np.int64] | None  # (N,)
    infos: list[Any] | None  # (N,) of the observation that each step led to; None: all empty
    lost_before: str = ""  # where lines were lost right before the first one, without a way to tell which episodes they held

    @property
    def nbytes(self) -> int:
        """Of the lines."""
        return sum(line.nbytes for line in self.lines)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.rewards)

    def take(self, chosen: NDArray[Any]) -> PolicyRows:
        """The rows of that index array or mask, in its order, which keeps each line's rows together."""
        line = np.repeat(np.arange(len(self.lines)), np.diff(self.starts))[chosen]
        starts = np.searchsorted(line, np.arange(len(self.starts)))
        return self._part(chosen, self.lines, starts, self.lost_before)

    def by_line(self) -> Iterator[PolicyRows]:
        """Each line by itself."""
        if len(self.lines) == 1:
            yield self
            return
        lost_before = self.lost_before
        for line, (start, stop) in zip(self.lines, pairwise(self.starts.tolist()), strict=True):
            part = self._part(slice(start, stop), (line,), np.array([0, stop - start]), lost_before)
            part.infos = part.infos if part.infos and any(part.infos) else None
            yield part
            lost_before = ""

    def _part(
        self, chosen: NDArray[Any] | slice, lines: tuple[LinePlace, ...], starts: NDArray[np.int64], lost_before: str
    ) -> PolicyRows:
        def of(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[chosen]

        columns = {
            name: Column(map_leaves(of, column.tree), column.typed, column.nulls) for name, column in self.columns.items()
        }
        return PolicyRows(
            policy=self.policy,
            lines=lines,
            starts=starts,
            columns=columns,
            rewards=self.rewards[chosen],
            terminateds=self.terminateds[chosen],
            truncateds=self.truncateds[chosen],
            eps_id=of(self.eps_id),
            agent_index=self.agent_index[chosen],
            t=of(self.t),
            infos=None if self.infos is None else [self.infos[row] for row in np.arange(self.rows)[chosen]],
            lost_before=lost_before,
        )


def in_line_order(parts: Iterable[PolicyRows]) -> list[PolicyRows]:
    """Each line of each of `parts` by itself, in the order of the lines."""
    return sorted(chain.from_iterable(part.by_line() for part in parts), key=lambda part: part.lines[0].number)
