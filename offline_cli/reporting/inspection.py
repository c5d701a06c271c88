"""Tables of `inspect`: column statistics, histograms drawn in letters, single episodes.

Histograms of a dataset's columns need its steps (`--deep`); those of return and length are drawn from the manifest's quantiles,
where every bar is an estimate: between two quantiles, episodes are taken to be spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

__all__ = ["BLOCKS", "Grid", "bars_of", "columns_grid", "elements", "episode_grids", "head_grid", "sparkline", "spread_of"]

Grid = tuple[Sequence[str], Sequence[Sequence[Any]]]  # headings, rows of plain values

BLOCKS: Final = "·▁▂▃▄▅▆▇█"  # nothing, and eight heights
MAX_ELEMENTS: Final = 16  # of a vector, up to which each has a line
MAX_ROWS: Final = 40  # of a table of columns
BARS: Final = 16
EPISODE: Final = ("eps_id", "source_id", "agent_id", "module_id", "length", "return", "terminated", "truncated")
FIGURES: Final = ("min", "mean", "max", "std")
COLUMN: Final = ("column", *FIGURES, "NaN, inf")


def sparkline(values: Sequence[float | None]) -> str:
    """A letter for each value, higher for larger ones; the first of BLOCKS for zero and for nothing."""
    top = max((value for value in values if value), default=0)
    return "".join(BLOCKS[math.ceil(8 * value / top)] if value else BLOCKS[0] for value in values)


def timeline(values: Sequence[float | None]) -> str:
    """A letter for each value, from the lowest to the highest of them; the first of BLOCKS for nothing."""
    known = [value for value in values if value is not None]
    places = iter(_places(known, min(known, default=0.0), max(known, default=0.0)))
    return "".join(BLOCKS[0] if value is None else BLOCKS[1 + round(7 * next(places))] for value in values)


def _places(values: Sequence[float], low: float, high: float) -> list[float]:
    """Where `values` are between `low`, 0, and `high`, 1; all 0 where these are equal. No difference overflows."""
    largest = max(abs(low), abs(high)) or 1.0
    span = high / largest - low / largest or 1.0
    return [(value / largest - low / largest) / span for value in values]


def bars_of(spread: Mapping[str, Sequence[float]]) -> list[float]:
    """Bars of how values are `spread` (`low`, `high` and `counts` of parts): one for each value where each is by itself, else
    BARS equal ones between the least and the largest, where those of a part are taken to be spread evenly.
    """
    lows, highs, counts = spread["low"], spread["high"], spread["counts"]
    if lows == highs or lows[0] == highs[-1]:
        return [*counts] if lows == sorted({*lows}) else [sum(counts)]
    bars, ends = [0.0] * BARS, (lows[0], highs[-1])
    for first, last, count in zip(_places(lows, *ends), _places(highs, *ends), counts, strict=True):
        for number in range(min(int(first * BARS), BARS - 1), min(int(last * BARS), BARS - 1) + 1):
            within = min(last * BARS, number + 1) - max(first * BARS, number)
            bars[number] += count * (within / ((last - first) * BARS) if last > first else 1.0)
    return bars


def spread_of(figures: Mapping[str, Any]) -> dict[str, list[float]]:
    """How values are spread by the quantiles of a manifest; none where there is nothing."""
    points = [(float(percent), value) for percent, value in (figures.get("quantiles") or {}).items()]
    if not points or any(not isinstance(value, int | float) or not math.isfinite(value) for _, value in points):
        return {"low": [], "high": [], "counts": []}
    parts = [(start, stop, after - before) for (before, start), (after, stop) in pairwise(points)]
    return dict(zip(("low", "high", "counts"), map(list, zip(*parts, strict=True)), strict=True))


def columns_grid(told: Mapping[str, Any]) -> tuple[Grid, int]:
    """A row for each column, or for each element of a small vector; and how many rows are left out."""
    drawn = (told["histograms"] or {}).get("columns", {})
    rows = [
        row
        for path, figures in told["columns"].items()
        for row in _rows(path, figures, told["meanings"], [sparkline(bars_of(one)) for one in drawn.get(path, ())])
    ]
    return ((*COLUMN, "histogram"), rows[:MAX_ROWS]), max(0, len(rows) - MAX_ROWS)


def head_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """A row for each episode."""
    return EPISODE, [[row.get(name) for name in EPISODE] for row in rows]


def episode_grids(one: Mapping[str, Any], meanings: Mapping[str, Any]) -> Iterator[Grid]:
    """One episode: its line, figures of its columns with their means over time, its first and last steps."""
    yield head_grid([one])
    rows = [
        row
        for path, figures in one["columns"].items()
        for row in _rows(path, figures, meanings, [timeline(each) for each in figures["over_time"]])
    ]
    yield (*COLUMN, "over time"), rows[:MAX_ROWS]
    names = list(one["steps"][0]) if one["steps"] else ["t"]
    yield names, [[step[name] for name in names] for step in one["steps"]]


def _rows(path: str, figures: Mapping[str, Any], meanings: Mapping[str, Any], drawn: Sequence[str]) -> Iterator[list[Any]]:
    """Cells of one column, or of each of its elements: name, figures, values that are not finite, what is `drawn` of it."""
    each = [[value for _, value in elements(figures[name])] for name in (*FIGURES, "nan", "infinite")]
    odd = [nan + infinite or None for nan, infinite in zip(each[4], each[5], strict=True)]
    drawings = [*drawn, *[None] * len(odd)]  # of columns that are not drawn, nothing
    if math.prod(figures["shape"]) > MAX_ELEMENTS:
        low, mean, high = ([value for value in values if not isinstance(value, str | None)] for values in each[:3])
        pooled = min(low, default=None), sum(mean) / len(mean) if mean else None, max(high, default=None)
        std = each[3][0] if figures["pooled"] else None
        yield [f"{path} {figures['dtype']}{figures['shape']}", *pooled, std, sum(filter(None, odd)) or None, drawings[0]]
        return
    places, known = [place for place, _ in elements(figures["min"])], meanings.get(path, ())
    for number, (place, *row) in enumerate(zip(places, *each[:4], odd, strict=True)):
        said = known[number] if len(known) == len(places) else {}
        name = f" {said['name']}" if "name" in said else f"{list(place)}" if place else ""
        unit = f" ({said['unit']})" if "unit" in said else ""
        yield [f"{path}{name}{unit}", *row, drawings[number]]


def elements(values: Any, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Any]]:
    """The numbers of a value of any shape, in C order, each with its place."""
    if not isinstance(values, list):
        return [(place, values)]
    return [one for number, part in enumerate(values) for one in elements(part, (*place, number))]
