"""Vectorized checks of values: NaN, infinities, spaces, dtypes, flags.

* Spaces come from `--env`, else from the source, else from the episodes. Without a space, no value is outside
  (`spaces-inferred`).
* Box bounds are exact, without tolerance. NaN and infinities have their own codes.
* A Box action outside its space is an error for the scale `env`, otherwise a warning: raw policy outputs may exceed the bounds.
  A Box observation outside is a warning. A nonexistent category is an error in both.
* Actions of the scale `normalized` lie in [-1, 1] if their Box is bounded and has floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.checking.validate.findings import Found, Severity
from offline_cli.columns import Columns
from offline_cli.converting.fitting import as_space
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import category_bounds
from offline_cli.episodes.fit import cast_to
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import flatten

Spaces = tuple[Space | None, Space | None]  # of observations and actions


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Where the values of a table's episodes are from."""

    columns: Mapping[str, str]  # by path, of values of a single column
    place_of: Callable[[str, int], str]  # file and row of a step of an episode


NOT_NORMALIZED: Final = "convert with --action-scale env if they are in the environment's units; otherwise clip them to [-1, 1]"


class BadRows:
    """Rows of a tree with bad values, by problem."""

    def __init__(
        self, batch: EpisodeBatch, starts: NDArray[np.int64], meanings: Meanings, table: TablePlaces | None = None
    ) -> None:
        """`starts` (E+1,): first row of each episode, for observations or for steps. `table`: for its episodes."""
        self._batch, self._starts, self._meanings, self._table = batch, starts, meanings, table
        self._leaves: dict[tuple[str, Severity | None, str], list[tuple[str, NDArray[Any], NDArray[np.bool_]]]] = {}

    def mark(
        self, code: str, path: str, leaf: NDArray[Any], bad: NDArray[np.bool_], severity: Severity | None = None, fix: str = ""
    ) -> bool:
        """Add the mask of bad values (rows, *shape) of a leaf; return whether there are any."""
        if any_bad := bool(bad.any()):
            self._leaves.setdefault((code, severity, fix), []).append((path, leaf, bad))
        return any_bad

    def found(self) -> Iterator[Found]:
        """Yield the problems."""
        for (code, severity, fix), marked in self._leaves.items():
            rows = np.flatnonzero(np.logical_or.reduce([_any(bad) for _, _, bad in marked]))
            episodes = np.unique(np.searchsorted(self._starts, rows, side="right") - 1)
            ids = [self._batch.ids[episode] for episode in episodes.tolist()]
            yield Found(code, len(rows), self._places(marked), ids, severity, fix=fix)

    def _places(self, marked: Sequence[tuple[str, NDArray[Any], NDArray[np.bool_]]]) -> Iterator[str]:
        """Describe each bad row: episode, step and first bad value, in order within each leaf; of a table also the row."""
        for path, leaf, bad in marked:
            for row in np.flatnonzero(_any(bad)).tolist():
                at = np.unravel_index(int(bad[row].argmax()), leaf.shape[1:]) if leaf.ndim > 1 else ()
                name = self._meanings.named(path, [int(index) for index in at], leaf.shape[1:])
                episode = int(np.searchsorted(self._starts, row, side="right")) - 1
                start = 0 if self._batch.t_started is None else int(self._batch.t_started[episode])
                step = row - int(self._starts[episode]) + start
                words, table = f"episode {self._batch.ids[episode]}, step {step}", self._table
                if table is not None:
                    last = int(self._batch.lengths[episode]) - 1  # the row of the final observation, too
                    words = f"{table.place_of(self._batch.ids[episode], min(step, last))}, {words}"
                    name = name if at else table.columns.get(path, path)
                yield f"{words}: {name} is {leaf[(row, *at)]!s}"


def _any(bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(rows,) whether a row has a bad value."""
    return np.asarray(bad.reshape(len(bad), -1).any(axis=1))


def value_problems(
    batch: EpisodeBatch, known: Spaces, scale: str, meanings: Meanings, table: TablePlaces | None = None
) -> Iterator[Found]:
    """Yield the problems of the values of `batch`. `known`: its spaces; `scale`: of its actions; `table`: its places."""
    both = np.flatnonzero(batch.terminated & batch.truncated).tolist()
    if both:
        ids = [batch.ids[episode] for episode in both]
        yield Found("both-flags", len(both), (f"episode {name}" for name in ids), ids)
    for kind, name, tree, starts, space in (
        ("observation", Columns.OBS, batch.obs, batch.obs_starts, known[0]),
        ("action", Columns.ACTIONS, batch.actions, batch.starts, known[1]),
        ("reward", Columns.REWARDS, batch.rewards, batch.starts, None),
        ("extra", "", dict(batch.extra), batch.starts, None),
    ):
        shaped = tree if space is None else as_space(tree, space)  # as in `convert`
        leaves, rows = dict(flatten(shaped, name)), BadRows(batch, starts, meanings, table)
        for path, leaf in leaves.items():
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                rows.mark(f"nan-in-{kind}s", path, leaf, np.isnan(leaf))
                rows.mark(f"infinite-in-{kind}s", path, leaf, np.isinf(leaf))
        parts = {} if space is None else leaf_spaces(space, name)
        shapes = {path: leaf.shape[1:] for path, leaf in leaves.items()}
        if space is not None and shapes != {path: tuple(part.shape or ()) for path, part in parts.items()}:
            words = ", ".join(f"{path} of shape {list(shape)}" for path, shape in shapes.items())
            yield Found.of_all("space-mismatch", batch, f"{name} of {describe(space)} has {words}")
        elif space is not None:
            scaled = scale if kind == "action" else ENV_SCALE
            for path, leaf in leaves.items():
                _outside(kind, path, leaf, parts[path], scaled, rows)
            yield from _other_dtypes(batch, leaves, parts, rows)
        yield from rows.found()


def _outside(kind: str, path: str, leaf: NDArray[Any], space: Space, scale: str, rows: BadRows) -> None:
    is_box = isinstance(space, spaces.Box)
    bad = _beyond(leaf, *bounds_of(space, scale), whole=not is_box)
    if bad is None:
        return
    severity: Severity = "error" if not is_box or (kind == "action" and scale == ENV_SCALE) else "warning"
    fix = "correct the space, or the values" if not is_box else NOT_NORMALIZED if scale == NORMALIZED_SCALE else ""
    rows.mark(f"{kind}-outside-space", path, leaf, bad, severity, fix)


def _other_dtypes(
    batch: EpisodeBatch, leaves: Mapping[str, NDArray[Any]], parts: Mapping[str, Space], rows: BadRows
) -> Iterator[Found]:
    """Mark values that the space's dtype cannot hold; if there are none, report different dtypes."""
    other, strange, lossy = [], False, False
    for path, leaf in leaves.items():
        dtype = np.dtype(parts[path].dtype)
        if leaf.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            strange |= leaf.dtype.kind != dtype.kind and not {leaf.dtype.kind, dtype.kind} <= {"i", "u"}
            other.append(f"{path} is {leaf.dtype}, its space {dtype}")
            lossy |= rows.mark("value-not-in-dtype", path, leaf, _changed_by(leaf, dtype))
    if other and not lossy:
        yield Found.of_all("dtype-differs", batch, "; ".join(other), "warning" if strange else "note")


def bounds_of(space: Space, scale: str) -> tuple[Any, Any]:
    """The bounds of a leaf space, per element; `scale`: of actions."""
    if not isinstance(space, spaces.Box):
        return category_bounds(space)
    low, high = space.low, space.high
    if scale == NORMALIZED_SCALE and low.dtype.kind == "f" and np.isfinite(low).all() and np.isfinite(high).all():
        return np.full_like(low, -1), np.full_like(high, 1)
    return low, high


def _beyond(leaf: NDArray[Any], low: Any, high: Any, *, whole: bool) -> NDArray[np.bool_] | None:
    """(rows, *shape) mask of finite values beyond a bound, or with `whole` not integers; None if there are none."""
    if leaf.dtype.kind not in "biuf" or not len(leaf):
        return None
    values = leaf.view(np.uint8) if leaf.dtype == np.bool_ else leaf
    with np.errstate(invalid="ignore"):
        bad = np.asarray((values < low) | (values > high))
        if values.dtype.kind == "f":
            bad = (bad | (values != np.floor(values)) if whole else bad) & np.isfinite(values)
    return bad if bad.any() else None


def _changed_by(leaf: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """(rows, *shape) mask of values that `dtype` cannot hold."""
    if leaf.dtype.kind not in "biuf":
        return np.ones(leaf.shape, np.bool_)
    _, changed = cast_to(leaf, dtype)
    return np.asarray(changed & np.isfinite(leaf) if leaf.dtype.kind == "f" else changed)
