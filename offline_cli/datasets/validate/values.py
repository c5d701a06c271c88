"""Checks of values, whole arrays at a time: NaN, infinities, spaces, dtypes, flags; refuses nothing, it only reports.

Decisions:

* Spaces are those of `env` where the caller names one, else those that the source declares, else those that the episodes do.
  Where nobody says any, nothing lies outside (`spaces-inferred`).
* A Box has no tolerance: one step beyond its bound is outside. NaN and infinities have codes of their own.
* A Box action outside its space is an error where the scale is said to be the environment's, and a warning otherwise: raw
  outputs of a policy may lie there. A Box observation is a warning: what was seen was seen. A category that does not exist
  is an error in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.datasets.validate.bounds import Bounds, bounds_of
from offline_cli.datasets.validate.codes import Severity
from offline_cli.datasets.validate.findings import Findings
from offline_cli.datasets.validate.rows import BadRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, flatten

__all__ = ["ValueChecks"]

Leaf = tuple[str, NDArray[Any]]


class ValueChecks:
    """The checks of values of one source; a batch is seen once."""

    def __init__(
        self, findings: Findings, source: str, action_scale: str, *, env: str | None = None, scale_is_said: bool = False
    ) -> None:
        """`env`: the environment that the caller names; `scale_is_said`: by the caller, and not by the source."""
        self.findings, self.source, self.scale = findings, source, action_scale
        self.env, self.scale_is_said = env, scale_is_said
        self._known: dict[str, tuple[Space, dict[str, Space], dict[str, Bounds]]] = {}  # the last space of each tree

    def see(self, batch: EpisodeBatch, spaces: tuple[Space | None, Space | None]) -> None:
        """Look at `batch`; `spaces`: of observations and actions, None where they are not known."""
        self._flags(batch)
        for name, kind, tree, starts, space in (
            (Columns.OBS, "observation", batch.obs, batch.obs_starts, spaces[0]),
            (Columns.ACTIONS, "action", batch.actions, batch.starts, spaces[1]),
        ):
            leaves = list(flatten(tree, name))
            self._finite(leaves, f"{kind}s", BadRows(batch, starts), BadRows(batch, starts))
            if space is not None:
                self._in_space(leaves, name, kind, batch, starts, space)
        self._finite([("rewards", batch.rewards)], "rewards", *_of_steps(batch))
        self._finite(list(_extras(batch.extra)), "extras", *_of_steps(batch))

    def _add(self, code: str, bad: BadRows, **more: Any) -> None:
        if bad.count:
            self.findings.add(self.source, code, bad.count, (f"{self.source}, {place}" for place in bad.places()), **more)

    def _flags(self, batch: EpisodeBatch) -> None:
        both = np.flatnonzero(batch.terminated & batch.truncated)
        if len(both):
            places = (f"{self.source}, episode {batch.ids[e]}" for e in both.tolist())
            self.findings.add(self.source, "both-flags", len(both), places)

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
            example = f"{name} of {describe(space)} has {_in_words(have)}"
            fix = "" if self.env is None else f"name the environment that was recorded in place of --env {self.env}"
            self.findings.add(self.source, "space-mismatch", len(batch), places, example=example, fix=fix)
            return
        for categories, severity in ((True, "error"), (False, self._severity(kind))):
            outside = BadRows(batch, starts)
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
        """What to do about values outside the space, as far as that is not what has been done: "" is what the code says."""
        if categories or kind == "observation":
            if self.env is None:
                return "correct the space, or the values" if categories else ""
            return f"correct the values, or name the environment that they are from in place of --env {self.env}"
        if self.scale == NORMALIZED_SCALE:
            return "nothing, where they are raw outputs of a policy, which may leave [-1, 1]; otherwise clip them there"
        if self.scale == ENV_SCALE and self.scale_is_said:
            return "--action-scale normalized in place of env, if they are raw outputs of a policy; otherwise clip them"
        return "clip them, or correct the space" if self.scale == ENV_SCALE else ""

    def _parts(self, space: Space, name: str) -> tuple[Space, dict[str, Space], dict[str, Bounds]]:
        """A space, its leaves and their bounds, worked out anew only where the space is another object than before."""
        known = self._known.get(name)
        if known is None or known[0] is not space:
            parts = leaf_spaces(space, name)
            scale = self.scale if name == Columns.ACTIONS else ENV_SCALE
            bounds = {path: found for path, part in parts.items() if (found := bounds_of(part, scale=scale)) is not None}
            known = self._known[name] = space, parts, bounds
        return known

    def _dtypes(self, leaves: list[Leaf], parts: Mapping[str, Space], batch: EpisodeBatch, starts: NDArray[np.int64]) -> None:
        lost, other, strange = BadRows(batch, starts), [], False
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
            self.findings.add(self.source, "dtype-differs", len(batch), places, severity=severity, example="; ".join(other))


def _of_steps(batch: EpisodeBatch) -> tuple[BadRows, BadRows]:
    return BadRows(batch, batch.starts), BadRows(batch, batch.starts)


def _extras(extra: Mapping[str, Tree]) -> Iterator[Leaf]:
    for name, tree in extra.items():
        yield from flatten(tree, name)


def _in_words(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{path} of shape {list(shape)}" for path, shape in shapes.items())


def _kind(dtype: np.dtype[Any]) -> str:
    return "integer" if dtype.kind in "iu" else dtype.kind


def _changed_by(leaf: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """(rows, *shape) values that `dtype` cannot hold."""
    if leaf.dtype.kind not in "biuf":
        return np.ones(leaf.shape, np.bool_)
    with np.errstate(all="ignore"):  # what does not fit is what is asked for
        cast = leaf.astype(dtype)
        changed = (cast.astype(leaf.dtype) != leaf) | ((cast < 0) != (leaf < 0))
    return np.asarray(changed & np.isfinite(leaf) if leaf.dtype.kind == "f" else changed)
