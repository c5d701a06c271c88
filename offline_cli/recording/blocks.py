"""A policy asked in blocks of a fixed number of rows, so that a row's result is the same whatever plays beside it.

Float results differ in the last digits with the shape of a batch. So a policy always sees the same number of rows, padded,
whatever the number of slots. Two things are tried out at the start, on invented observations. In some networks a row's result
differs with its place in the block too (seen: hidden layers of odd widths): such a policy sees one row at a time. In most
networks blocks of other sizes give the same bits: then the block may be as large as the slots, which is faster. Refuses to
take that for granted, or to try it where the numbers behind an action cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.recording.actor import PolicyFailure
from offline_cli.recording.policy import Acted, Policy
from offline_cli.recording.rows import rows_of
from offline_cli.recording.slots import Index, Slots
from offline_cli.recording.uniform import sampled
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BLOCK_ROWS", "Blocks", "block_rows"]

RAISED: Final = (Exception, SystemExit)
BLOCK_ROWS: Final = 32
OTHER_ROWS: Final = (8, 16, 32, 64, 128, 256)


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
        if self._policy.chance_size:
            self._chance[: self._slots] = chance
        if self._rows == self._slots:
            return self._block(observations, 0, self._rows)
        starts = range(0, self.padded, self._rows)
        parts = [self._block(rows_of(observations, slice(at, at + self._rows)), at, self._rows) for at in starts]
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

    def _block(self, observations: Tree, start: int, rows: int) -> Acted:
        chance = self._chance[start : start + rows]
        try:
            return self._policy.act(observations, chance)
        except RAISED as err:  # some policies are a user's code
            row = self._first_bad_row(observations, chance)
            raise PolicyFailure(start + row, err) from err

    def _first_bad_row(self, observations: Tree, chance: NDArray[np.float64]) -> int:
        """The first row that the policy raises for in a block of copies of it; 0 where it minds none alone."""
        for row in range(len(chance)):
            same = np.full(len(chance), row)
            try:
                self._policy.act(rows_of(observations, same), chance[same])
            except RAISED:  # the same failure again, which is what is looked for
                return row
        return 0


def block_rows(policy: Policy, observation_space: Space, slots: int) -> int:
    """The rows of a block for so many slots, such that results do not depend on their number."""
    if policy.rows_alike:
        return BLOCK_ROWS
    if not _place_is_nothing(policy, observation_space):
        return 1
    if not policy.shows_numbers:
        return BLOCK_ROWS
    return next(rows for rows in _candidates(slots) if rows == BLOCK_ROWS or _same_bits(policy, observation_space, rows))


def _candidates(slots: int) -> Iterator[int]:
    """Sizes from the one that holds all slots, or the largest, towards BLOCK_ROWS."""
    first = next((rows for rows in OTHER_ROWS if rows >= slots), OTHER_ROWS[-1])
    at, end = OTHER_ROWS.index(first), OTHER_ROWS.index(BLOCK_ROWS)
    yield from OTHER_ROWS[at : end + 1] if at <= end else OTHER_ROWS[at : end - 1 : -1]


def _place_is_nothing(policy: Policy, observation_space: Space) -> bool:
    """Whether a row gives the same in several places of a block; no, where the policy raises for invented observations."""
    observations, chance = _invented(policy, observation_space, BLOCK_ROWS)
    try:
        straight = _outputs(policy, observations, chance, BLOCK_ROWS)
    except RAISED:
        return False
    for shift in (1, 3, 8, BLOCK_ROWS // 2):
        order = np.roll(np.arange(BLOCK_ROWS), shift)
        if not _equal([leaf[order] for leaf in straight], _outputs(policy, rows_of(observations, order), chance[order])):
            return False
    return True


def _same_bits(policy: Policy, observation_space: Space, rows: int) -> bool:
    """Whether blocks of `rows` rows give what blocks of BLOCK_ROWS give."""
    observations, chance = _invented(policy, observation_space, max(rows, BLOCK_ROWS))
    return _equal(*(_outputs(policy, observations, chance, size) for size in (rows, BLOCK_ROWS)))


def _invented(policy: Policy, observation_space: Space, count: int) -> tuple[Tree, NDArray[np.float64]]:
    return sampled(observation_space, count), np.random.default_rng(0).random((count, policy.chance_size))


def _outputs(policy: Policy, observations: Tree, chance: NDArray[np.float64], rows: int = BLOCK_ROWS) -> list[NDArray[Any]]:
    """Every leaf of what the policy gives, by blocks of `rows` rows."""
    blocks = [slice(start, start + rows) for start in range(0, len(chance), rows)]
    found = [policy.act(rows_of(observations, block), chance[block]) for block in blocks]
    parts = [[leaf for tree in (it.actions, it.for_env, *it.extras.values()) for leaf in leaves(tree)] for it in found]
    return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]


def _equal(here: list[NDArray[Any]], there: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in zip(here, there, strict=True))
