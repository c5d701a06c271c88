"""The rows against their targets, as a picture beside the page; refuses to draw a row that has no target or no figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw", "shares"]

MET, MISSED = "#2b7a78", "#c8553d"
NAME = 78  # letters of a question that fit


def shares(known: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    """What was reached over what was to be reached, by question, in the order of the page."""
    return [
        (_short(row["question"]), row[row["target"]["of"]] / row["target"]["at_least"])
        for entry in known.values()
        for row in entry["rows"]
        if row["met"] is not None
    ]


def _short(question: str) -> str:
    return question if len(question) <= NAME else question[: NAME - 1] + "…"


def draw(known: Mapping[str, Mapping[str, Any]], target: Path) -> None:
    """Bars on a logarithmic scale that begin at the target: to the right it is passed, to the left missed. Writes SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = shares(known)
    with mpl.rc_context({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(10, 1.2 + 0.24 * len(rows)), layout="constrained")
        axes = figure.subplots()
        values = [max(share, 1e-3) for _, share in rows]
        colors = [MET if value >= 1 else MISSED for value in values]
        places = range(len(rows))
        axes.barh(places, [value - 1 for value in values], left=1, color=colors, height=0.7)
        axes.set_yticks(places, [name for name, _ in rows])
        axes.set_xscale("log")
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set_xlabel("reached, as a multiple of the target")
        for place, value in zip(places, values, strict=True):
            axes.annotate(f" {value:.2g} ", (value, place), va="center", ha="left" if value >= 1 else "right")
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(target, format="svg", metadata={"Date": None})
