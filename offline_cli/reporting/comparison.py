"""A figure of algorithms beside each other: aggregates with their intervals, and performance profiles."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, BinaryIO

__all__ = ["draw_comparison"]

AGGREGATES = (("mean", "mean"), ("median", "median"), ("iqm", "interquartile mean"))


def draw_comparison(told: Mapping[str, Any], target: str | PathLike[str] | BinaryIO) -> None:
    """Draw a result of `compare`, as its `--json` has it, as a PNG; an algorithm has one colour throughout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(told["runs"])
    figure = Figure(figsize=(8, 3.4 + 0.35 * len(names)), dpi=100, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.2 + 0.35 * len(names), 2.2))
    above, below = parts
    panes: Any = above.subplots(1, len(AGGREGATES), sharey=True)
    for axes, (aggregate, title) in zip(panes, AGGREGATES, strict=True):
        for row, name in enumerate(names):
            one = told["runs"][name][aggregate]
            ends = (one["value"] if one[end] is None else one[end] for end in ("low", "high"))
            spread = [[abs(one["value"] - end)] for end in ends]
            axes.errorbar([one["value"]], [row], xerr=spread, fmt="o", capsize=3, color=f"C{row % 10}")
        axes.set_title(title, fontsize="medium")
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(alpha=0.3)
    panes[0].set_yticks(range(len(names)), names)
    axes = below.subplots()
    for row, name in enumerate(names):
        axes.plot(
            told["profile"]["thresholds"], told["profile"][name], color=f"C{row % 10}", label=name, drawstyle="steps-post"
        )
    axes.set_xlabel(f"normalised {told['metric']}" if told["reference"] else told["metric"])
    axes.set_ylabel("share of runs above")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png", metadata={"Software": None})
