"""Rows as arrays by name: cut, joined, and asked where something changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.files import POS
from offline_cli.trees import Tree

__all__ = [
    "Episode",
    "Rows",
    "changes_in",
    "concat",
    "ended",
    "first_of_each",
    "gaps_in",
    "kept",
    "latest",
    "nested",
    "taken",
    "time_text",
]

LONG_GAP: Final = 10  # times the median step of an episode, from which on a step is a gap in a `t` that is no counter

Rows = dict[str, NDArray[Any]]  # arrays (N, ...) by leaf, and by names that begin with two underscores
Episode = NDArray[np.int64]  # (N,) the number of each row's episode among those that are made together


def taken(rows: Rows, which: Any) -> Rows:
    """Some rows of all arrays."""
    return {name: values[which] for name, values in rows.items()}


def ended(rows: Rows) -> NDArray[np.bool_]:
    """(N,) whether a row has an end flag."""
    flags = [rows[name] for name in END_FLAGS if name in rows]
    return np.asarray(np.logical_or.reduce([np.zeros(len(rows[POS]), np.bool_), *flags]))


def kept(rows: Rows, episode: Episode, which: NDArray[np.bool_]) -> tuple[Rows, Episode]:
    """Some rows, with their episodes."""
    return (rows, episode) if which.all() else (taken(rows, which), episode[which])


def first_of_each(found: NDArray[np.int64], episode: Episode) -> list[int]:
    """Of some rows, in order, the first of each episode."""
    rows: list[int] = found[np.unique(episode[found], return_index=True)[1]].tolist()
    return rows


def changes_in(values: NDArray[Any], after: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """(N,) whether a row has another value than the row before, or stands `after` a row that is marked; the first one has."""
    changes = np.ones(len(values), np.bool_)
    changes[1:] = values[1:] != values[:-1]
    if after is not None:
        changes[1:] |= after[:-1]
    return changes


def latest(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) for each row the last one up to it that is `chosen`; -1: there is none."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1)) if len(chosen) else np.zeros(0, np.int64)


def gaps_in(steps: NDArray[Any], run: NDArray[np.int64], *, counted: bool) -> NDArray[np.bool_]:
    """(K,) which of the differences `steps` (K,) of `t` are gaps; `run` (K,), sorted: the episode of each.

    Where `t` is `counted` and most steps of an episode are 1: all others. Where most lie within a half of their median: those
    of more than LONG_GAP times that. Where steps are irregular, none is.
    """
    pairs = np.bincount(run)
    ones = np.bincount(run[steps == 1], minlength=len(pairs))
    counts = (counted & (2 * ones >= pairs))[run]
    if counts.all():
        return np.asarray(steps != 1)
    middle = np.cumsum(pairs) - pairs + np.maximum(pairs - 1, 0) // 2
    median = steps[np.lexsort((steps, run))][np.minimum(middle, len(steps) - 1)]
    near = np.abs(steps - median[run]) <= median[run] / 2
    regular = (2 * np.bincount(run[near], minlength=len(pairs)) >= pairs) & (median > 0)
    return np.asarray(np.where(counts, steps != 1, regular[run] & (steps > LONG_GAP * median[run])))


def concat(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other; marks of missing cells are there only where some are."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part.get(name, np.zeros(len(part[POS]), np.bool_)) for part in parts]) for name in names}


def nested(leaves: Sequence[tuple[tuple[str, ...], NDArray[Any]]]) -> Tree:
    """Nested dicts by path; the empty path is the array itself."""
    if not leaves[0][0]:
        return leaves[0][1]
    parts: dict[str, list[tuple[tuple[str, ...], NDArray[Any]]]] = {}
    for path, values in leaves:
        parts.setdefault(path[0], []).append((path[1:], values))
    return {name: nested(inner) for name, inner in parts.items()}


def time_text(t: Any, *, is_time: bool) -> str:
    """`t` of a row as people write it; times are nanoseconds since 1970."""
    return str(np.datetime64(int(t), "ns")).rstrip("0").rstrip(".").replace("T", " ") if is_time else str(t)
