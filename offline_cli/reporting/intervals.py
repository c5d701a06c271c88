"""Figures of values with their intervals: algorithms beside each other, and estimates of a policy from recordings."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.reporting.drawing import colour, legend_text
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["draw_comparison", "draw_estimates"]

AGGREGATES = (("mean", "mean"), ("median", "median"), ("iqm", "interquartile mean"))


def draw_comparison(told: Mapping[str, Any], target: Location) -> None:
    """Draw a result of `compare`, as its `--json` has it, as a PNG; an algorithm has one colour throughout."""
    names = list(told["runs"])
    colours = [colour(number) for number in range(len(names))]
    figure = _figure(8, 3.4 + 0.35 * len(names))
    above, below = figure.subfigures(2, 1, height_ratios=(1.2 + 0.35 * len(names), 2.2))
    for axes, (aggregate, title) in zip(above.subplots(1, len(AGGREGATES), sharey=True), AGGREGATES, strict=True):
        _draw_rows(axes, {name: told["runs"][name][aggregate] for name in names}, colours)
        axes.set_title(title, fontsize="medium")
    axes = below.subplots()
    for name, shade in zip(names, colours, strict=True):
        line = {"color": shade, "label": legend_text(name), "drawstyle": "steps-post"}
        axes.plot(told["profile"]["thresholds"], told["profile"][name], **line)
    axes.set(xlabel=f"normalised {told['metric']}" if told["reference"] else told["metric"], ylabel="share of runs above")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    _write(figure, target)


def draw_estimates(told: Mapping[str, Any], weights: NDArray[np.float64] | None, target: Location) -> None:
    """Draw a result of `evaluate --offline`, as its `--json` has it, as a PNG; estimates that may mislead are grey.

    `weights` (E,): weights of whole episodes, if there are any.
    """
    figure = _figure(7, 3 if weights is None else 5.4)
    axes, *more = figure.subplots(1 if weights is None else 2, 1, squeeze=False)[:, 0]
    rows = {name if one["reliable"] else f"{name} (not reliable)": one for name, one in told["estimates"].items()}
    _draw_rows(axes, rows, [colour(0) if one["reliable"] else "0.6" for one in rows.values()])
    if told["recorded"]:
        axes.axvline(told["recorded"]["value"], color=colour(1), linestyle="--", linewidth=1, label="recorded episodes")
        axes.axvspan(told["recorded"]["low"], told["recorded"]["high"], color=colour(1), alpha=0.15, linewidth=0)
        axes.legend(loc="best", frameon=False)
    axes.set_xlabel("value, with 95% interval")
    if weights is not None:
        (axes,), positive = more, weights[weights > 0]
        if len(positive):
            axes.hist(np.log10(positive), bins=50)
        zeros = f"{len(weights) - len(positive):,} have the weight 0"
        axes.set(yscale="log", xlabel=f"log10 of the weight of an episode; {zeros}", ylabel="episodes")
        axes.grid(alpha=0.3)
    _write(figure, target)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def _draw_rows(axes: Any, rows: Mapping[str, Mapping[str, Any]], colours: list[str]) -> None:
    """A row for each value, with its interval, if it has one; the first on top."""
    for row, (one, shade) in enumerate(zip(rows.values(), colours, strict=True)):
        ends = (one["value"] if one[end] is None else one[end] for end in ("low", "high"))
        axes.errorbar([one["value"]], [row], xerr=[[abs(one["value"] - end)] for end in ends], fmt="o", capsize=3, color=shade)
    axes.set_yticks(range(len(rows)), list(map(legend_text, rows)))
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.grid(alpha=0.3)


def _write(figure: Any, target: Location) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    content = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(content, format="png", metadata={"Software": None})
    write_whole(target, content.getvalue(), folder=target.parent() or target)
