"""What plays: observations and chance in, actions out, in blocks of a fixed number of rows; refuses to look at neighbours.

Float results differ in the last digits with the shape of a batch. So a policy always sees the same number of rows, padded,
whatever the number of slots; and since in some networks a row's result differs with its place in the block too (seen: hidden
layers of odd widths), that is tried out at the start, and such a policy sees one row at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.recording.uniform import sampled
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BLOCK_ROWS", "Acted", "Blocks", "Policy", "PolicyFailure", "fixed_rows", "rows_of", "zero_rows"]

BLOCK_ROWS: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Acted:
    """What a policy made of B observations."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)


class Policy(Protocol):
    """A policy ready to play in one environment."""

    fingerprint: str  # tells it from others by content, where the content can be known
    action_scale: str  # "env" | "normalized": of the recorded actions
    chance_size: int  # uniform numbers that a row takes per step; 0: it leaves nothing to chance
    rows_alike: bool  # a row's result depends on the row alone, whatever the shape of the batch

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """Observations: leaves (B, ...); chance: (B, chance_size), uniform in [0, 1)."""


class PolicyFailure(Exception):
    """The policy raised; `row` is the first that it raises for alone."""

    def __init__(self, row: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.row, self.cause = row, cause


class Blocks:
    """A policy for a fixed number of slots, whose observations come padded to whole blocks."""

    def __init__(self, policy: Policy, slots: int, *, block_rows: int | None) -> None:
        """`block_rows` None: all slots in one block, for an environment whose results depend on their number anyway."""
        self._policy = policy
        self._slots = slots
        self._rows = slots if block_rows is None or policy.rows_alike else block_rows
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
        first = parts[0]
        return Acted(
            self._joined([part.actions for part in parts]),
            self._joined([part.for_env for part in parts]),
            {name: self._joined([part.extras[name] for part in parts]) for name in first.extras},
        )

    def _joined(self, trees: list[Tree]) -> Tree:
        if len(trees) == 1:
            return rows_of(trees[0], slice(0, self._slots))
        return map_leaves(lambda *parts: np.concatenate(parts)[: self._slots], *trees)

    def _block(self, observations: Tree, start: int, rows: int) -> Acted:
        chance = self._chance[start : start + rows]
        try:
            return self._policy.act(observations, chance)
        except Exception as err:  # whatever a policy raises, of which some code may be a user's
            row = self._first_bad_row(observations, chance)
            raise PolicyFailure(start + row, err) from err

    def _first_bad_row(self, observations: Tree, chance: NDArray[np.float64]) -> int:
        """The first row that the policy raises for in a block of copies of it; 0 where it minds none alone."""
        for row in range(len(chance)):
            same = np.full(len(chance), row)
            try:
                self._policy.act(rows_of(observations, same), chance[same])
            except Exception:  # noqa: BLE001  the same failure again, which is what is looked for
                return row
        return 0


def fixed_rows(policy: Policy, observation_space: Space) -> int:
    """The rows of a block in which each row's result depends on that row alone: BLOCK_ROWS, or 1."""
    if policy.rows_alike:
        return BLOCK_ROWS
    rng = np.random.default_rng(0)
    observations = sampled(observation_space, BLOCK_ROWS)
    chance = rng.random((BLOCK_ROWS, policy.chance_size))
    straight = _outputs(policy.act(observations, chance))
    for shift in (1, 3, 8, BLOCK_ROWS // 2):
        order = np.roll(np.arange(BLOCK_ROWS), shift)
        turned = _outputs(policy.act(rows_of(observations, order), chance[order]))
        if not all(np.array_equal(there, here[order], equal_nan=True) for here, there in zip(straight, turned, strict=True)):
            return 1
    return BLOCK_ROWS


def _outputs(acted: Acted) -> list[Any]:
    return [leaf for tree in (acted.actions, acted.for_env, *acted.extras.values()) for leaf in leaves(tree)]


# ---- rows ----


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return map_leaves(lambda leaf: leaf[rows], tree)


def zero_rows(space: Space, count: int) -> Tree:
    """Zeros for `count` values of `space`: leaves (count, *shape)."""
    parts = iter([np.zeros((count, *(leaf.shape or ())), leaf.dtype) for leaf in leaf_spaces(space).values()])
    return _shaped_like(space, parts)


def _shaped_like(space: Space, parts: Any) -> Tree:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return next(parts)
    if hasattr(inner, "items"):
        return {key: _shaped_like(part, parts) for key, part in inner.items()}
    return tuple(_shaped_like(part, parts) for part in inner)
