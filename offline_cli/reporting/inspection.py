"""Tables of `inspect`: column statistics, single episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["Grid", "columns_grid", "elements", "episode_grids", "head_grid"]

Grid = tuple[Sequence[str], Sequence[Sequence[Any]]]  # headings, rows of plain values

MAX_ELEMENTS: Final = 16  # vectors up to this size get one line per element
MAX_ROWS: Final = 40  # rows of a table of columns
EPISODE: Final = ("eps_id", "source_id", "agent_id", "module_id", "length", "return", "terminated", "truncated")
FIGURES: Final = ("min", "mean", "max", "std")
COLUMN: Final = ("column", *FIGURES, "NaN, inf")


def columns_grid(told: Mapping[str, Any]) -> tuple[Grid, int]:
    """One row per column, or per element of a small vector; and the number of omitted rows."""
    rows = [row for path, figures in told["columns"].items() for row in _rows(path, figures, told["meanings"])]
    return (COLUMN, rows[:MAX_ROWS]), max(0, len(rows) - MAX_ROWS)


def head_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """One row per episode."""
    return EPISODE, [[row.get(name) for name in EPISODE] for row in rows]


def episode_grids(one: Mapping[str, Any], meanings: Mapping[str, Any]) -> Iterator[Grid]:
    """Tables of one episode: summary, columns, first and last steps."""
    yield head_grid([one])
    rows = [row for path, figures in one["columns"].items() for row in _rows(path, figures, meanings)]
    yield COLUMN, rows[:MAX_ROWS]
    names = list(one["steps"][0]) if one["steps"] else ["t"]
    yield names, [[step[name] for name in names] for step in one["steps"]]


def _rows(path: str, figures: Mapping[str, Any], meanings: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Cells of one column, or of each of its elements: name, figures, non-finite count."""
    each = [[value for _, value in elements(figures[name])] for name in (*FIGURES, "nan", "infinite")]
    odd = [nan + infinite or None for nan, infinite in zip(each[4], each[5], strict=True)]
    if math.prod(figures["shape"]) > MAX_ELEMENTS:
        low, mean, high = ([value for value in values if not isinstance(value, str | None)] for values in each[:3])
        pooled = min(low, default=None), sum(mean) / len(mean) if mean else None, max(high, default=None)
        std = each[3][0] if figures["pooled"] else None
        yield [f"{path} {figures['dtype']}{figures['shape']}", *pooled, std, sum(filter(None, odd)) or None]
        return
    places, known = [place for place, _ in elements(figures["min"])], meanings.get(path, ())
    for number, (place, *row) in enumerate(zip(places, *each[:4], odd, strict=True)):
        meaning = known[number] if len(known) == len(places) else {}
        name = f" {meaning['name']}" if "name" in meaning else f"{list(place)}" if place else ""
        unit = f" ({meaning['unit']})" if "unit" in meaning else ""
        yield [f"{path}{name}{unit}", *row]


def elements(values: Any, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Any]]:
    """(index, number) of each element of a nested list, in C order."""
    if not isinstance(values, list):
        return [(place, values)]
    return [one for number, part in enumerate(values) for one in elements(part, (*place, number))]
