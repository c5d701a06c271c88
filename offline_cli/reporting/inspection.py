"""Tables of `inspect`: column statistics, text histograms, single episodes.

Histograms of a dataset's columns need its steps (`--deep`); those of return and length are estimated from the manifest's
quantiles, assuming a uniform distribution between two quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

__all__ = ["BLOCKS", "Grid", "bars_of", "columns_grid", "elements", "episode_grids", "head_grid", "sparkline", "spread_of"]

Grid = tuple[Sequence[str], Sequence[Sequence[Any]]]  # headings, rows of plain values

BLOCKS: Final = "·▁▂▃▄▅▆▇█"  # empty, and eight heights
MAX_ELEMENTS: Final = 16  # vectors up to this size get one line per element
MAX_ROWS: Final = 40  # rows of a table of columns
BARS: Final = 16
EPISODE: Final = ("eps_id", "source_id", "agent_id", "module_id", "length", "return", "terminated", "truncated")
FIGURES: Final = ("min", "mean", "max", "std")
COLUMN: Final = ("column", *FIGURES, "NaN, inf")


def sparkline(values: Sequence[float | None]) -> str:
    """One block character per value, scaled from 0 to the maximum; the first of BLOCKS for 0 and None."""
    top = max((value for value in values if value), default=0)
    return "".join(BLOCKS[math.ceil(8 * value / top)] if value else BLOCKS[0] for value in values)


def timeline(values: Sequence[float | None]) -> str:
    """One block character per value, scaled from minimum to maximum; the first of BLOCKS for None."""
    known = [value for value in values if value is not None]
    places = iter(_places(known, min(known, default=0.0), max(known, default=0.0)))
    return "".join(BLOCKS[0] if value is None else BLOCKS[1 + round(7 * next(places))] for value in values)


def _places(values: Sequence[float], low: float, high: float) -> list[float]:
    """`values` scaled so that `low` is 0 and `high` is 1; all 0 if these are equal. Does not overflow."""
    largest = max(abs(low), abs(high)) or 1.0
    span = high / largest - low / largest or 1.0
    return [(value / largest - low / largest) / span for value in values]


def bars_of(spread: Mapping[str, Sequence[float]]) -> list[float]:
    """Histogram bars from intervals with `low`, `high` and `counts`: one bar per value if intervals are single values, else
    BARS equal bins between minimum and maximum, assuming a uniform distribution in each interval.
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
    """Intervals for `bars_of` from the quantiles of a manifest; empty without quantiles."""
    points = [(float(percent), value) for percent, value in (figures.get("quantiles") or {}).items()]
    if not points or any(not isinstance(value, int | float) or not math.isfinite(value) for _, value in points):
        return {"low": [], "high": [], "counts": []}
    parts = [(start, stop, after - before) for (before, start), (after, stop) in pairwise(points)]
    return dict(zip(("low", "high", "counts"), map(list, zip(*parts, strict=True)), strict=True))


def columns_grid(told: Mapping[str, Any]) -> tuple[Grid, int]:
    """One row per column, or per element of a small vector; and the number of omitted rows."""
    drawn = (told["histograms"] or {}).get("columns", {})
    rows = [
        row
        for path, figures in told["columns"].items()
        for row in _rows(path, figures, told["meanings"], [sparkline(bars_of(one)) for one in drawn.get(path, ())])
    ]
    return ((*COLUMN, "histogram"), rows[:MAX_ROWS]), max(0, len(rows) - MAX_ROWS)


def head_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """One row per episode."""
    return EPISODE, [[row.get(name) for name in EPISODE] for row in rows]


def episode_grids(one: Mapping[str, Any], meanings: Mapping[str, Any]) -> Iterator[Grid]:
    """Tables of one episode: summary, columns with means over time, first and last steps."""
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
    """Cells of one column, or of each of its elements: name, figures, non-finite count, `drawn` histogram."""
    each = [[value for _, value in elements(figures[name])] for name in (*FIGURES, "nan", "infinite")]
    odd = [nan + infinite or None for nan, infinite in zip(each[4], each[5], strict=True)]
    drawings = [*drawn, *[None] * len(odd)]  # None for columns without a histogram
    if math.prod(figures["shape"]) > MAX_ELEMENTS:
        low, mean, high = ([value for value in values if not isinstance(value, str | None)] for values in each[:3])
        pooled = min(low, default=None), sum(mean) / len(mean) if mean else None, max(high, default=None)
        std = each[3][0] if figures["pooled"] else None
        yield [f"{path} {figures['dtype']}{figures['shape']}", *pooled, std, sum(filter(None, odd)) or None, drawings[0]]
        return
    places, known = [place for place, _ in elements(figures["min"])], meanings.get(path, ())
    for number, (place, *row) in enumerate(zip(places, *each[:4], odd, strict=True)):
        meaning = known[number] if len(known) == len(places) else {}
        name = f" {meaning['name']}" if "name" in meaning else f"{list(place)}" if place else ""
        unit = f" ({meaning['unit']})" if "unit" in meaning else ""
        yield [f"{path}{name}{unit}", *row, drawings[number]]


def elements(values: Any, place: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Any]]:
    """(index, number) of each element of a nested list, in C order."""
    if not isinstance(values, list):
        return [(place, values)]
    return [one for number, part in enumerate(values) for one in elements(part, (*place, number))]
