"""A figure of off-policy estimates: each with its interval beside the recorded mean return, and the weights of episodes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from offline_cli.estimating.intervals import Array
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["draw_estimates"]


def draw_estimates(
    estimates: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, float], weights: Array | None, target: Location
) -> None:
    """Write a PNG; `weights` (E,) of whole episodes, None: there are none. Estimates that may mislead are grey."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3 if weights is None else 5.4), dpi=100, layout="constrained")
    panes: Any = figure.subplots(1 if weights is None else 2, 1, squeeze=False)[:, 0]
    axes = panes[0]
    for row, one in enumerate(estimates.values()):
        spread = [[max(0, one["value"] - one["low"])], [max(0, one["high"] - one["value"])]]
        axes.errorbar([one["value"]], [row], xerr=spread, fmt="o", capsize=3, color="C0" if one["reliable"] else "0.6")
    names = [name if one["reliable"] else f"{name} (not reliable)" for name, one in estimates.items()]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    if recorded:
        axes.axvline(recorded["value"], color="C1", linestyle="--", linewidth=1, label="recorded episodes")
        axes.axvspan(recorded["low"], recorded["high"], color="C1", alpha=0.15, linewidth=0)
        axes.legend(loc="best", frameon=False)
    axes.set_xlabel("value, with 95% interval")
    axes.grid(alpha=0.3)
    if weights is not None:
        positive = weights[weights > 0]
        axes = panes[1]
        if len(positive):
            axes.hist(np.log10(positive), bins=50)
        axes.set_yscale("log")
        axes.set_xlabel(f"log10 of the weight of an episode; {len(weights) - len(positive):,} have the weight 0")
        axes.set_ylabel("episodes")
        axes.grid(alpha=0.3)
    FigureCanvasAgg(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    write_whole(target, content.getvalue(), folder=target.parent() or target)
