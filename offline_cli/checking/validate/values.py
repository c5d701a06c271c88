"""Checks of values, whole arrays at a time: NaN, infinities, spaces, dtypes, flags; it only reports.

Decisions:

* Spaces are those of `env` where the caller names one, else those that the source declares, else those that the episodes do.
  Where no space is given, nothing lies outside (`spaces-inferred`).
* A Box has no tolerance: one step beyond its bound is outside. NaN and infinities have codes of their own.
* A Box action outside its space is an error where the scale is said to be the environment's, and a warning otherwise: raw
  outputs of a policy may lie there. A Box observation is a warning: what was seen was seen. A category that does not exist is
  an error in both.

The parts:

* `BadRows`: rows of a batch that have a problem, and their places in words, made only for those that are shown.
* `Bounds`: the smallest and largest value that a space allows, element by element. Actions of the scale `normalized` lie in
  [-1, 1] where their Box has a bound on every side and holds floats; no other leaf has more than one scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.checking.validate.findings import Findings
from offline_cli.checking.validate.problem_codes import Severity
from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, UNKNOWN_SCALE
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import flatten

__all__ = ["BadRows", "Bounds", "ValueChecks", "bounds_of"]

Leaf = tuple[str, NDArray[Any]]


@dataclass(slots=True)
class BadRows:
    """Rows with one kind of problem among those of a tree, whose leaves are checked one after the other."""

    batch: EpisodeBatch
    starts: NDArray[np.int64]  # (E+1,): rows of each episode; those of observations, or of steps
    meanings: Meanings = NO_MEANINGS
    _rows: NDArray[np.bool_] | None = None  # None: no bad one so far
    _first: list[tuple[str, NDArray[Any], NDArray[np.bool_]]] = field(default_factory=list)  # leaves that have some

    def mark(self, path: str, leaf: NDArray[Any], bad: NDArray[np.bool_]) -> None:
        """Add the bad values (rows, *shape) of one leaf."""
        rows = np.asarray(bad.reshape(len(bad), -1).any(axis=1))
        if rows.any():
            self._rows = rows if self._rows is None else np.logical_or(self._rows, rows)
            self._first.append((path, leaf, bad))

    @property
    def count(self) -> int:
        """How many rows are bad in any leaf."""
        return 0 if self._rows is None else int(np.count_nonzero(self._rows))

    @property
    def episodes(self) -> list[str]:
        """Ids of the episodes with a bad row."""
        if self._rows is None:
            return []
        found = np.unique(np.searchsorted(self.starts, np.flatnonzero(self._rows), side="right") - 1)
        return [self.batch.ids[episode] for episode in found.tolist()]

    def places(self) -> Iterator[str]:
        """Episode, step and the first bad value of each bad row, in order within each leaf."""
        for path, leaf, bad in self._first:
            for row in np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist():
                at = np.unravel_index(int(bad[row].argmax()), leaf.shape[1:]) if leaf.ndim > 1 else ()
                name = self.meanings.named(path, [int(index) for index in at], leaf.shape[1:])
                yield f"{self._place(row)}: {name} is {leaf[(row, *at)]!s}"

    def _place(self, row: int) -> str:
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        start = 0 if self.batch.t_started is None else int(self.batch.t_started[episode])
        return f"episode {self.batch.ids[episode]}, step {row - int(self.starts[episode]) + start}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one leaf space allows."""

    low: NDArray[Any]  # shape of one value, or ()
    high: NDArray[Any]
    categories: bool  # whole numbers, each of which is a category

    @property
    def is_finite(self) -> bool:
        """Whether values can lie on a bound at all."""
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def outside(self, leaf: NDArray[Any]) -> NDArray[np.bool_] | None:
        """(rows, *shape) values beyond a bound or between categories, but for NaN and infinities; None where there are none."""
        values = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
        floats = values.dtype.kind == "f"
        with np.errstate(invalid="ignore"):
            if len(values) and not (self.categories and floats):
                low, high = values.min(axis=0), values.max(axis=0)  # NaN where there is one: then check every value
                if not (low != low).any() and not ((low < self.low) | (high > self.high)).any():
                    return None
            bad = (values < self.low) | (values > self.high)
            if self.categories and floats:
                bad |= values != np.floor(values)
        if floats:
            bad &= np.isfinite(values)
        return np.asarray(bad) if bad.any() else None


def bounds_of(space: Space, *, scale: str = UNKNOWN_SCALE) -> Bounds | None:
    """The bounds of a leaf space; `scale`: that of actions. None for a space without any."""
    match space:
        case spaces.Box():
            low, high = space.low, space.high
            if scale == NORMALIZED_SCALE and low.dtype.kind == "f" and np.isfinite(low).all() and np.isfinite(high).all():
                low, high = np.full_like(low, -1), np.full_like(high, 1)
            return Bounds(low, high, categories=False)
        case spaces.Discrete():
            first, last = int(space.start), int(space.start) + int(space.n) - 1
            return Bounds(np.asarray(first), np.asarray(last), categories=True)
        case spaces.MultiDiscrete():
            return Bounds(space.start, space.start + space.nvec - 1, categories=True)
        case spaces.MultiBinary():
            return Bounds(np.asarray(0), np.asarray(1), categories=True)
    return None


class ValueChecks:
    """The checks of values of one source; a batch is seen once."""

    def __init__(
        self,
        findings: Findings,
        source: str,
        action_scale: str,
        *,
        env: str | None = None,
        scale_is_said: bool = False,
        meanings: Meanings = NO_MEANINGS,
    ) -> None:
        """`env`: the environment that the caller names; `scale_is_said`: by the caller, and not by the source."""
        self.findings, self.source, self.scale = findings, source, action_scale
        self.env, self.scale_is_said, self.meanings = env, scale_is_said, meanings
        self._known: dict[str, tuple[Space, dict[str, Space], dict[str, Bounds]]] = {}  # the last space of each tree

    def see(self, batch: EpisodeBatch, spaces: tuple[Space | None, Space | None]) -> None:
        """Check `batch`; `spaces`: of observations and actions, None where they are not known."""
        self._flags(batch)
        for name, kind, tree, starts, space in (
            (Columns.OBS, "observation", batch.obs, batch.obs_starts, spaces[0]),
            (Columns.ACTIONS, "action", batch.actions, batch.starts, spaces[1]),
        ):
            leaves = list(flatten(tree, name))
            self._finite(leaves, f"{kind}s", self._rows(batch, starts), self._rows(batch, starts))
            if space is not None:
                self._in_space(leaves, name, kind, batch, starts, space)
        self._finite([("rewards", batch.rewards)], "rewards", self._rows(batch, batch.starts), self._rows(batch, batch.starts))
        extras = [leaf for name, tree in batch.extra.items() for leaf in flatten(tree, name)]
        self._finite(extras, "extras", self._rows(batch, batch.starts), self._rows(batch, batch.starts))

    def _rows(self, batch: EpisodeBatch, starts: NDArray[np.int64]) -> BadRows:
        return BadRows(batch, starts, self.meanings)

    def _add(self, code: str, bad: BadRows, **more: Any) -> None:
        if bad.count:
            places = (f"{self.source}, {place}" for place in bad.places())
            self.findings.add(self.source, code, bad.count, places, episodes=bad.episodes, **more)

    def _flags(self, batch: EpisodeBatch) -> None:
        both = np.flatnonzero(batch.terminated & batch.truncated)
        if len(both):
            places = (f"{self.source}, episode {batch.ids[e]}" for e in both.tolist())
            self.findings.add(self.source, "both-flags", len(both), places, episodes=[batch.ids[e] for e in both.tolist()])

    def _finite(self, leaves: list[Leaf], plural: str, nan: BadRows, infinite: BadRows) -> None:
        for path, leaf in leaves:
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                nan.mark(path, leaf, np.isnan(leaf))
                infinite.mark(path, leaf, np.isinf(leaf))
        self._add(f"nan-in-{plural}", nan)
        self._add(f"infinite-in-{plural}", infinite)

    # ---- spaces ----

    def _in_space(
        self, leaves: list[Leaf], name: str, kind: str, batch: EpisodeBatch, starts: NDArray[np.int64], space: Space
    ) -> None:
        _, parts, bounds = self._parts(space, name)
        have = {path: leaf.shape[1:] for path, leaf in leaves}
        if have != {path: tuple(part.shape or ()) for path, part in parts.items()}:
            places = (f"{self.source}, episode {episode}" for episode in batch.ids)
            found = ", ".join(f"{path} of shape {list(shape)}" for path, shape in have.items())
            example = f"{name} of {describe(space)} has {found}"
            fix = "" if self.env is None else f"name the environment that was recorded in place of --env {self.env}"
            more: dict[str, Any] = {"example": example, "fix": fix, "episodes": batch.ids}
            self.findings.add(self.source, "space-mismatch", len(batch), places, **more)
            return
        for categories, severity in ((True, "error"), (False, self._severity(kind))):
            outside = self._rows(batch, starts)
            for path, leaf in leaves:
                allowed = bounds.get(path)
                if allowed is not None and allowed.categories is categories and leaf.dtype.kind in "biuf":
                    bad = allowed.outside(leaf)
                    if bad is not None:
                        outside.mark(path, leaf, bad)
            self._add(f"{kind}-outside-space", outside, severity=severity, fix=self._fix(kind, categories=categories))
        self._dtypes(leaves, parts, batch, starts)

    def _severity(self, kind: str) -> Severity:
        return "error" if kind == "action" and self.scale == ENV_SCALE else "warning"

    def _fix(self, kind: str, *, categories: bool) -> str:
        """The remedy for values outside the space, unless it has been applied; "": that of the code."""
        if categories or kind == "observation":
            if self.env is None:
                return "correct the space, or the values" if categories else ""
            return f"correct the values, or name the environment that they are from in place of --env {self.env}"
        if self.scale == NORMALIZED_SCALE:
            env = "--action-scale env in place of normalized" if self.scale_is_said else "convert with --action-scale env"
            raw = "nothing, where they are raw outputs of a policy, which may leave [-1, 1]"
            return f"{raw}; {env}, where they are in the environment's units; otherwise clip them to [-1, 1]"
        if self.scale == ENV_SCALE and self.scale_is_said:
            return "--action-scale normalized in place of env, if they are raw outputs of a policy; otherwise clip them"
        return "clip them, or correct the space" if self.scale == ENV_SCALE else ""

    def _parts(self, space: Space, name: str) -> tuple[Space, dict[str, Space], dict[str, Bounds]]:
        """A space, its leaves and their bounds, computed again only where the space is another object than before."""
        known = self._known.get(name)
        if known is None or known[0] is not space:
            parts = leaf_spaces(space, name)
            scale = self.scale if name == Columns.ACTIONS else ENV_SCALE
            bounds = {path: found for path, part in parts.items() if (found := bounds_of(part, scale=scale)) is not None}
            known = self._known[name] = space, parts, bounds
        return known

    def _dtypes(self, leaves: list[Leaf], parts: Mapping[str, Space], batch: EpisodeBatch, starts: NDArray[np.int64]) -> None:
        lost, other, strange = self._rows(batch, starts), [], False
        for path, leaf in leaves:
            dtype = np.dtype(parts[path].dtype)
            if leaf.dtype.newbyteorder("=") != dtype.newbyteorder("="):
                strange |= _kind(leaf.dtype) != _kind(dtype)
                other.append(f"{path} is {leaf.dtype}, its space {dtype}")
                lost.mark(path, leaf, _changed_by(leaf, dtype))
        self._add("value-not-in-dtype", lost)
        if other and not lost.count:
            places = (f"{self.source}, episode {episode}" for episode in batch.ids)
            severity: Severity = "warning" if strange else "note"
            more: dict[str, Any] = {"severity": severity, "example": "; ".join(other), "episodes": batch.ids}
            self.findings.add(self.source, "dtype-differs", len(batch), places, **more)


def _kind(dtype: np.dtype[Any]) -> str:
    return "integer" if dtype.kind in "iu" else dtype.kind


def _changed_by(leaf: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """(rows, *shape) values that `dtype` cannot hold."""
    if leaf.dtype.kind not in "biuf":
        return np.ones(leaf.shape, np.bool_)
    with np.errstate(all="ignore"):  # values that do not fit are what is asked for
        cast = leaf.astype(dtype)
        changed = (cast.astype(leaf.dtype) != leaf) | ((cast < 0) != (leaf < 0))
    return np.asarray(changed & np.isfinite(leaf) if leaf.dtype.kind == "f" else changed)
