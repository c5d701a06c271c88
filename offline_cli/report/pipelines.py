"""Tables of `apply --show` and `--trace`: a row of headings and rows of texts, which `cli/render.py` draws.

A cell of several lines, a tuple, stands for several columns of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["Grid", "shown", "traced"]

Cell = str | tuple[str, ...]  # a text, or one a line
Grid = tuple[Sequence[str], Sequence[Sequence[Cell]]]  # headings, rows
START: Final = "(the episodes)"


def shown(told: Mapping[str, Any]) -> Grid:
    """One row per piece, from `PipelineView.as_dict()`: spaces before and after, and what it does to the batch's columns."""
    rows: list[Sequence[Cell]] = []
    before: Sequence[Mapping[str, Any]] = []
    for piece in told["pieces"]:
        spaces = [piece[f"{name}_text"] for name in ("input_observation_space", "observation_space", "action_space")]
        rows.append([piece["name"], *spaces, _change(before, piece["columns"])])
        before = piece["columns"]
    after = tuple(map(_column, before)) or "empty"
    return ("piece", "observations before", "observations after", "actions after", "what it does to the batch"), [
        *rows,
        ["train batch", "", "", "", after],
    ]


def _change(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Cell:
    old, new = ({column["name"]: _kind(column) for column in columns} for columns in (before, after))
    lines = [f"adds {name}: {kind}" for name, kind in new.items() if name not in old]
    lines += [f"{name}: {old[name]} becomes {kind}" for name, kind in new.items() if name in old and old[name] != kind]
    lines += [f"takes out {name}" for name in old if name not in new]
    return tuple(lines) or "nothing"


def _column(column: Mapping[str, Any]) -> str:
    return f"{column['name']}: {_kind(column)}"


def _kind(column: Mapping[str, Any]) -> str:
    shape = f" ({', '.join(map(str, column['shape']))})" if column["shape"] else ""
    return f"{column['held']} of {column['dtype']}{shape}"


def traced(told: Mapping[str, Any]) -> Grid:
    """A row per column of the batch after each piece that changed any, from `PipelineView.as_dict()`.

    What a piece has changed in the episodes comes first.
    """
    rows = [_values("" if number else START, f"episodes.{one['name']}", one) for number, one in enumerate(told["start"])]
    episodes: Sequence[Mapping[str, Any]] = told["start"]
    columns: Sequence[Mapping[str, Any]] = []
    for piece in told["pieces"]:
        rows += _of_piece(piece, episodes, columns)
        episodes, columns = piece["episodes"], piece["columns"]
    return ("after piece", "column", "holds", "row", "rows", "first values"), rows


def _of_piece(
    piece: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> Iterator[Sequence[str]]:
    """`episodes` and `columns`: as they were before."""
    changed = [(f"episodes.{one['name']}", one) for one in piece["episodes"] if one not in episodes]
    held = [] if piece["columns"] == columns else [(one["name"], one) for one in piece["columns"]]
    for number, (name, one) in enumerate([*changed, *held]):
        yield _values("" if number else piece["name"], name, one)
    if not changed and not held:
        yield piece["name"], "as before" if columns else "empty, as before", "", "", "", ""


def _values(piece: str, name: str, seen: Mapping[str, Any]) -> Sequence[str]:
    shape = f"({', '.join(map(str, seen['shape']))})" if seen["shape"] else "one value"
    rows = "" if seen["rows"] is None else f"{seen['rows']:,}"
    return piece, name, f"{seen['held']} of {seen['dtype']}", shape, rows, " ".join(map(_value, seen["first"]))


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
