"""Actor, what an env runner asks for actions and informs of their outcome, and policies asked in blocks of a fixed size.

Float results differ in the last digits with the shape of a batch. So `Blocks` always shows a policy the same number of rows,
padded, whatever the number of slots, and a row's result is the same whatever plays beside it. `block_rows`
(`policies/policy.py`) finds how many rows that are.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.playing.slots import Index, Slots
from offline_cli.policies.policy import RAISED, Acted, Policy, rows_of
from offline_cli.trees import Tree, map_leaves

__all__ = ["Actor", "Blocks", "PolicyFailure"]


class PolicyFailure(Exception):
    """The policy, or a piece around it, raised; `row` is the first slot that it raises for alone."""

    def __init__(self, row: int, cause: BaseException, who: str = "the policy") -> None:
        super().__init__(str(cause))
        self.row, self.cause, self.who = row, cause, who


class Actor(Protocol):
    """A policy for S slots. All methods raise PolicyFailure."""

    padded: int  # rows that it wants observations to have, at least S

    def begin(self, slots: Index, episodes: Index, at: Slots) -> None:
        """These slots begin these episodes (their indices in the recording), at the observations that `at` has."""

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (padded, ...); chance: (S, size). Gives S rows; those of idle slots are some valid actions."""

    def end(self, slots: Index, at: Slots, finals: Tree, infos: NDArray[Any] | None) -> None:
        """The last step has ended the episodes of these slots; `finals` and `infos`: see `Slots.finals`."""

    def went_on(self, at: Slots, live: NDArray[np.bool_]) -> None:
        """The last step has ended none of the episodes in slots that are `live`."""


class Blocks:
    """A policy for a fixed number of slots, whose observations come padded to whole blocks. See Actor."""

    def __init__(self, policy: Policy, slots: int, *, rows: int | None) -> None:
        """`rows`: of a block; None: all slots are one, for an environment whose results depend on their number anyway."""
        self._policy = policy
        self._slots = slots
        self._rows = slots if rows is None or policy.rows_alike else rows
        self.padded = -(-slots // self._rows) * self._rows
        self._chance = np.full((self.padded, policy.chance_size), 0.5)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (padded, ...); chance: (slots, size). Gives `slots` rows. Raises PolicyFailure."""
        if self._rows == self._slots:
            return self._block(observations, chance, 0)
        if self._policy.chance_size:
            self._chance[: self._slots] = chance
        starts = range(0, self.padded, self._rows)
        blocks = [slice(at, at + self._rows) for at in starts]
        parts = [self._block(rows_of(observations, block), self._chance[block], block.start) for block in blocks]
        return self._joined(parts)

    def begin(self, slots: Index, episodes: Index, at: Slots) -> None:
        """Nothing: it looks at observations alone."""

    def end(self, slots: Index, at: Slots, finals: Tree, infos: NDArray[Any] | None) -> None:
        """Nothing."""

    def went_on(self, at: Slots, live: NDArray[np.bool_]) -> None:
        """Nothing."""

    def _joined(self, parts: list[Acted]) -> Acted:
        """The rows of all blocks, without those that were padding."""
        actions = self._rows_of_all([part.actions for part in parts])
        apart = parts[0].for_env is not parts[0].actions
        return Acted(
            actions,
            self._rows_of_all([part.for_env for part in parts]) if apart else actions,
            {name: self._rows_of_all([part.extras[name] for part in parts]) for name in parts[0].extras},
        )

    def _rows_of_all(self, trees: list[Tree]) -> Tree:
        if len(trees) == 1:
            return rows_of(trees[0], slice(0, self._slots))
        return map_leaves(lambda *parts: np.concatenate(parts)[: self._slots], *trees)

    def _block(self, observations: Tree, chance: NDArray[np.float64], start: int) -> Acted:
        try:
            return self._policy.act(observations, chance)
        except RAISED as err:  # some policies are a user's code
            row = self._first_bad_row(observations, chance)
            raise PolicyFailure(start + row, err) from err

    def _first_bad_row(self, observations: Tree, chance: NDArray[np.float64]) -> int:
        """The first row that the policy raises for in a block of copies of it; 0 where it raises for no single row."""
        for row in range(len(chance)):
            same = np.full(len(chance), row)
            try:
                self._policy.act(rows_of(observations, same), chance[same])
            except RAISED:  # the same failure again, which is what is looked for
                return row
        return 0
