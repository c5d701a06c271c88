"""The table of `apply --show` and `--trace`, from `PipelineView.as_dict()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["pieces_grid"]

SHOWN: Final = ("after piece", "observations", "actions", "column", "holds")
TRACED: Final = ("after piece", "column", "holds", "rows", "first values")


def pieces_grid(told: Mapping[str, Any], *, traced: bool) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Headings, and a row for each column of episodes or batch that a piece added, changed or removed.

    `traced`: show row counts and first values; else the spaces after each piece.
    """
    headings = TRACED if traced else SHOWN
    start = {"name": "(the episodes, actions in network units)", "episodes": told["start"], "columns": []}
    before: list[Mapping[str, Any]] = []
    rows = []
    for piece in (start, *told["pieces"]):
        spaces = {"observations": piece.get("observation_space_text"), "actions": piece.get("action_space_text")}
        columns = [{**one, "name": f"episodes.{one['name']}"} for one in piece["episodes"]] + piece["columns"]
        names = {one["name"] for one in columns}
        changed = [_cells(one) for one in columns if one not in before]
        changed += [{"column": one["name"], "holds": "removed"} for one in before if one["name"] not in names]
        changed = changed or [{"column": "unchanged"}]
        changed[0] |= {"after piece": piece["name"], **spaces}
        rows += [[row.get(heading) for heading in headings] for row in changed]
        before = columns
    return headings, rows


def _cells(column: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a column, by heading."""
    shape = f" ({', '.join(map(str, column['shape']))})" if column["shape"] else ""
    holds = f"{column['held']} of {column['dtype']}{shape}"
    return {"column": column["name"], "holds": holds, "rows": column["rows"], "first values": column["first"]}
