"""Training curves as a PNG; matplotlib is loaded only when a figure is drawn (it costs half a second)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, BinaryIO

__all__ = ["draw_curve"]

LOSSES = (("loss", "training", "-"), ("val_loss", "held out", "o-"))
RETURNS = (("eval_return_mean", "check", "o-"), ("confirm_return_mean", "confirmation", "s"))
OTHERS = (("val_accuracy", "held-out accuracy", "o-"), ("val_mse", "held-out squared error", "o-"))
PANELS = (("loss (nats per action)", LOSSES), ("return", RETURNS), ("score", OTHERS))
SPREADS = {f"{played}_return_mean": f"{played}_return_ci95" for played in ("eval", "confirm")}
FEW = 30  # points of a line up to which each has a marker: a line of one point is otherwise nothing


def draw_curve(
    rows: Sequence[Mapping[str, Any]], target: str | PathLike[str] | BinaryIO, *, until_return: float | None = None
) -> None:
    """Draw the rows of metrics.jsonl over their `update`: losses; below them returns and held-out scores where there are any.

    Bands are 95% confidence intervals of mean returns. `until_return` is a dashed line among the returns. The same rows give
    the same bytes with the same matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(rows, until_return)
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png", metadata={"Software": None})


def _figure(rows: Sequence[Mapping[str, Any]], until_return: float | None) -> Any:
    from matplotlib.figure import Figure

    measured = {name for row in rows for name, value in row.items() if value is not None}
    panels = [(title, lines) for title, lines in PANELS if measured & {name for name, _, _ in lines}]
    count = max(1, len(panels))
    figure = Figure(figsize=(7, 1 + 2.4 * count), dpi=100, layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0], panels, strict=False):
        for name, label, style in lines:
            _line(axes, rows, name, label, style)
        if lines is RETURNS and until_return is not None:
            axes.axhline(until_return, color="0.3", linestyle="--", linewidth=1, label=f"target {until_return:g}")
        axes.margins(y=0.08)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False)
    figure.axes[-1].set_xlabel("updates")
    return figure


def _line(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, label: str, style: str) -> None:
    points = [(row["update"], row[name], row.get(SPREADS.get(name, "")) or 0.0) for row in rows if row.get(name) is not None]
    if not points:
        return
    updates, values, spread = zip(*points, strict=True)
    marked = style if "o" in style or "s" in style or len(points) > FEW else f"{style}o"
    axes.plot(updates, values, marked, markersize=4, label=label)
    if any(spread):
        low, high = ([v + sign * s for v, s in zip(values, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(updates, low, high, alpha=0.15, linewidth=0)
