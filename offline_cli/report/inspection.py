"""What `inspect` shows people beside its figures: statistics of columns, histograms as letters, single episodes.

Histograms of a dataset's columns need its steps (`--deep`); those of return and length are drawn from the manifest's quantiles,
where every bar is an estimate: between two quantiles, episodes are taken to be spread evenly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

__all__ = ["ASCII", "BLOCKS", "Grid", "bars_of", "columns_grid", "episode_grids", "head_grid", "sparkline", "spread_of"]

Grid = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings, rows

BLOCKS: Final = "·▁▂▃▄▅▆▇█"  # nothing, and eight heights
ASCII: Final = "_.:-=+*#@"  # the same where stdout's encoding has no blocks
MAX_ELEMENTS: Final = 16  # of a vector, up to which each has a line
MAX_ROWS: Final = 40  # of a table of columns
BARS: Final = 16
EPISODE: Final = ("eps_id", "source_id", "agent_id", "module_id", "length", "return", "terminated", "truncated")
FIGURES: Final = ("min", "mean", "max", "std")
NUMBER: Final = re.compile(r"-?[0-9,.]*(e[+-][0-9]+)?|-?inf")
COLUMN: Final = ("column", *FIGURES, "NaN, inf")


def sparkline(values: Sequence[float | None], letters: str) -> str:
    """A letter for each value, higher for larger ones; the first of `letters` for zero and for nothing."""
    top = max((value for value in values if value), default=0)
    return "".join(letters[math.ceil(8 * value / top)] if value else letters[0] for value in values)


def timeline(values: Sequence[float | None], letters: str) -> str:
    """A letter for each value, from the lowest to the highest of them; the first of `letters` for nothing."""
    known = [value for value in values if value is not None]
    places = iter(_places(known, min(known, default=0.0), max(known, default=0.0)))
    return "".join(letters[0] if value is None else letters[1 + round(7 * next(places))] for value in values)


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


def columns_grid(told: Mapping[str, Any], letters: str) -> tuple[Grid, int]:
    """A row for each column, or for each element of a small vector; and how many rows are left out."""
    drawn = (told["histograms"] or {}).get("columns", {})
    rows = [
        row
        for path, figures in told["columns"].items()
        for row in _rows(path, figures, told["meanings"], [sparkline(bars_of(one), letters) for one in drawn.get(path, ())])
    ]
    return _as_grid((*COLUMN, "histogram"), rows[:MAX_ROWS]), max(0, len(rows) - MAX_ROWS)


def head_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """A row for each episode."""
    return _as_grid(EPISODE, [[_word(row.get(name)) for name in EPISODE] for row in rows])


def episode_grids(told: Mapping[str, Any], letters: str) -> Iterator[Grid]:
    """One episode: its line, figures of its columns with their means over time, its first and last steps."""
    one = told["shown_episode"]
    yield head_grid([one])
    rows = [
        row
        for path, figures in one["columns"].items()
        for row in _rows(path, figures, told["meanings"], [timeline(each, letters) for each in figures["over_time"]])
    ]
    yield _as_grid((*COLUMN, "over time"), rows[:MAX_ROWS])
    names = list(one["steps"][0]) if one["steps"] else ["t"]
    yield _as_grid(names, [[_word(step[name]) for name in names] for step in one["steps"]])


def _rows(
    path: str, figures: Mapping[str, Any], meanings: Mapping[str, Sequence[Any]], drawn: Sequence[str]
) -> Iterator[list[str]]:
    """Cells of one column, or of each of its elements: name, figures, values that are not finite, what is `drawn` of it."""
    shape, each = figures["shape"], [_flat(figures[name]) for name in (*FIGURES, "nan", "infinite")]
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        low, mean, high = ([value for value in values if not isinstance(value, str | None)] for values in each[:3])
        pooled = min(low, default=None), sum(mean) / len(mean) if mean else None, max(high, default=None)
        std = each[3][0] if figures["pooled"] else None
        yield [
            f"{path} {figures['dtype']}{shape}",
            *map(_number, (*pooled, std)),
            _count(sum(each[4]) + sum(each[5])),
            *drawn[:1],
        ]
        return
    known = meanings.get(path, ())
    for number, (*row, nan, infinite) in enumerate(zip(*each, strict=True)):
        said = known[number] if len(known) == elements else {}
        place = f"[{', '.join(map(str, _unraveled(number, shape)))}]" if shape else ""
        name = f" {said['name']}" if "name" in said else place
        unit = f" ({said['unit']})" if "unit" in said else ""
        yield [f"{path}{name}{unit}", *map(_number, row), _count(nan + infinite), *drawn[number : number + 1]]


# ---- cells ----


def _as_grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Without columns in which nothing stands; numbers are flush right."""
    padded = [[*row, *[""] * (len(headings) - len(row))] for row in rows]
    columns = [column for column in zip(headings, *padded, strict=True) if any(column[1:]) or column[0] == headings[0]]
    shown = [_flush(column) if all(map(NUMBER.fullmatch, column[1:])) else column for column in columns]
    heading, *cells = zip(*shown, strict=True)
    return heading, cells


def _flush(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    return [text.rjust(width) for text in column]


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "[" + ", ".join(map(_word, value)) + "]"
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: Any) -> str:
    """Five significant digits; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else f"{value:.5g}"


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def _flat(values: Any) -> list[Any]:
    return [item for part in values for item in _flat(part)] if isinstance(values, list) else [values]


def _unraveled(number: int, shape: Sequence[int]) -> list[int]:
    """The place in a value of this shape of its element `number`, in C order."""
    place: list[int] = []
    for size in reversed(shape):
        number, rest = divmod(number, size)
        place.insert(0, rest)
    return place
