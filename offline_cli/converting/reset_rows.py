"""Detect resets of auto-resetting vector environments that were recorded as steps, and remove them on request.

An episode *follows* an earlier one if its first observation equals the other's final one. Independent episodes never do. With
gymnasium's `AutoresetMode` it happens as follows:

* `NEXT_STEP`: the episode starts with a reset row: the action was ignored, the reward is 0, and the observation jumps to the
  true first one. Without next observations, an episode repeats its last observation, and the next row of the source has the
  final one.
* `SAME_STEP`: the recorder stored the reset's observation as the final observation of the earlier episode.

A continuing process that was split into episodes follows itself too, but does not jump: of the four changes around the border
(the last two of an episode, the first two of the next) each is equally often the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.tally import MISSING_FINAL, Tally
from offline_cli.trees import leaves, map_leaves

FEWEST: Final = 3  # minimum number of episodes that follow another one
LOOKED_AT: Final = 1000  # episodes whose changes are compared
ELEMENTS: Final = 256  # elements of an observation whose changes are compared


class ResetKind(StrEnum):
    """Kinds of recorded resets: the problem code in `validate`, and the assumption kind when they are removed."""

    ROW = "reset-row"  # NEXT_STEP
    OBSERVATION = "reset-observation"  # SAME_STEP


class _Ends(NamedTuple):
    """The compared properties of E episodes."""

    first: NDArray[np.uint64]  # (E,) hash of the first observation
    final: NDArray[np.uint64]  # (E,) hash of the final observation
    repeats: NDArray[np.bool_]  # (E,) the final observation equals the previous one
    unrewarded: NDArray[np.bool_]  # (E,) the first reward is 0 or NaN
    lengths: NDArray[np.int64]  # (E,) steps


@dataclass(slots=True)
class Resets:
    """Recorded resets in the episodes of one source; `see` all episodes, in order, before calling `found`."""

    ids: list[str] = field(default_factory=list)  # of the first episodes
    _ends: list[_Ends] = field(default_factory=list)  # of each batch
    _near: list[NDArray[np.float64]] = field(default_factory=list)  # observations at the ends of the first episodes
    _room: int = LOOKED_AT
    _found: tuple[ResetKind, NDArray[np.bool_]] | None = None
    _passed: int = 0  # episodes passed to `without`

    def see(self, batch: EpisodeBatch) -> None:
        """Add episodes with at least one step."""
        ends, near = _ends_of(batch)
        if self._near and self._near[0].shape[1:] != near.shape[1:]:
            self._room = 0  # mixed structures, reported elsewhere
        self._ends.append(ends)
        if self._room:
            self._near.append(near[: self._room].copy())
            self.ids += batch.ids[: self._room]
            self._room -= len(self._near[-1])

    def found(self) -> tuple[ResetKind, NDArray[np.bool_]] | None:
        """The kind of reset that most episodes have, and which (E,) have it, if most observation values jump; else None."""
        if not self._ends:
            return None
        ends, near = _Ends(*map(np.concatenate, zip(*self._ends, strict=True))), np.concatenate(self._near)
        before = _first_before(ends.final, ends.first)
        unknown = np.flatnonzero((before < 0) & np.append(False, ends.repeats[:-1]))
        before[unknown] = unknown - 1
        followed = _first_before(ends.first[::-1], ends.final[::-1])[::-1] >= 0
        last, first = _jumps(near, before[: len(near)], ends.lengths)
        others = len(before) - 1
        for kind, marked, share in (
            (ResetKind.ROW, (before >= 0) & ends.unrewarded, first),
            (ResetKind.OBSERVATION, followed, last),
        ):
            count = np.count_nonzero(marked)
            if count >= FEWEST and 2 * count > others and share > 0.5 + 0.5 / others:
                return kind, marked
        return None

    def look(self) -> None:
        """Compute what `without` removes, and restart it at the first episode."""
        self._found, self._passed = self.found(), 0

    def without(self, batch: EpisodeBatch, tally: Tally) -> EpisodeBatch:
        """Remove and count the resets in the next episodes, in the order of `see`.

        An episode loses its reset row, and is dropped if it has no other. A final observation from a reset becomes a missing
        one.
        """
        if self._found is None:
            return batch
        kind, marked = self._found
        here = marked[self._passed : self._passed + len(batch)]
        self._passed += len(batch)
        rest, count = without_reset(batch, kind, here), int(np.count_nonzero(here))
        tally.assume(kind.value, count)
        tally.assume("zero-length-episode", int(np.count_nonzero(rest.lengths == 0)))
        tally.assume(MISSING_FINAL, count if kind is ResetKind.OBSERVATION else 0)
        return rest if rest.lengths.all() else rest.select(rest.lengths > 0)


def without_reset(batch: EpisodeBatch, kind: ResetKind, here: NDArray[np.bool_]) -> EpisodeBatch:
    """Remove the reset of the masked episodes (E,); every episode needs at least one step."""
    if kind is ResetKind.ROW:
        return batch.without_first_steps(here)
    rows = np.arange(batch.num_steps + len(batch))
    rows[batch.obs_starts[1:][here] - 1] -= 1  # final observations repeat the previous ones
    return replace(batch, obs=map_leaves(lambda leaf: leaf[rows], batch.obs)).with_assumed_finals(here)


def _ends_of(batch: EpisodeBatch) -> tuple[_Ends, NDArray[np.float64]]:
    """Compared properties, and (E, 6, elements): each episode's first three and last three observations (may overlap)."""
    first, last = batch.obs_starts[:-1], batch.obs_starts[1:] - 1
    inner = np.minimum(first + 2, last), np.maximum(last - 2, first)
    rows = np.stack([first, first + 1, *inner, last - 1, last], axis=1).reshape(-1)
    parts = [leaf.take(rows, axis=0).reshape(len(batch), 6, -1) for leaf in leaves(batch.obs)]
    obs = np.concatenate(parts, axis=2).astype(np.float64) + 0.0  # -0.0 becomes 0.0, whose bits differ
    begun, before, final = (_hashes(obs[:, at]) for at in (0, 4, 5))
    unrewarded = np.nan_to_num(batch.rewards[batch.starts[:-1]]) == 0
    return _Ends(begun, final, before == final, unrewarded, batch.lengths), obs[:, :, :: 1 + obs.shape[2] // ELEMENTS]


def _hashes(rows: NDArray[np.float64]) -> NDArray[np.uint64]:
    """(E,) hashes of rows (E, elements)."""
    bits: NDArray[Any] = np.ascontiguousarray(rows).view(np.uint64)
    factors = np.random.default_rng(0).integers(1, 1 << 63, rows.shape[1], np.uint64) | np.uint64(1)
    return np.asarray(((bits ^ (bits >> np.uint64(29))) * factors).sum(axis=1, dtype=np.uint64))


def _first_before(known: NDArray[np.uint64], asked: NDArray[np.uint64]) -> NDArray[np.int64]:
    """(E,) index of the first occurrence of each of `asked` in `known`, both (E,), if it is before its own index; else -1."""
    values, places = np.unique(known, return_index=True)
    at = np.minimum(np.searchsorted(values, asked), len(values) - 1)
    is_before = (values[at] == asked) & (places[at] < np.arange(len(asked)))
    return np.where(is_before, places[at], -1)


def _jumps(near: NDArray[np.float64], before: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[float, float]:
    """The shares of changing values for which the last change of an episode, and the first of the one that follows it, is the
    unique largest of the four changes. `before` (E,): the episode that each one follows, or -1.
    """
    after = np.flatnonzero((before >= 0) & (lengths[: len(before)] > 1))
    after = after[lengths[before[after]] > 1]
    earlier, later = near[before[after]], near[after]
    path = np.stack([earlier[:, 3], earlier[:, 4], later[:, 0], later[:, 1], later[:, 2]], axis=1)
    changes = np.abs(np.diff(path, axis=1))  # (episodes, 4, elements)
    largest = changes == changes.max(axis=1, keepdims=True)
    alone = largest & (largest.sum(axis=1, keepdims=True) == 1)
    _, last, first, _ = alone.sum(axis=(0, 2)) / max(1, np.count_nonzero(changes.any(axis=1)))
    return float(last), float(first)
