"""The training curve of a run as PNG; matplotlib is imported only for drawing, because that takes half a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, BinaryIO

__all__ = ["draw_curve"]

LOSSES = (("loss", "training", "-"), ("val_loss", "held out", "o-"))
RETURNS = (("eval_return_mean", "check", "o-"), ("confirm_return_mean", "confirmation", "s"))
OTHERS = (
    ("val_accuracy", "held-out accuracy", "o-"),
    ("val_accuracy_majority", "of the most frequent action", ":"),
    ("val_mse", "held-out squared error", "o-"),
)
PANELS = (("loss (nats per action)", LOSSES), ("return", RETURNS), ("score", OTHERS))
SPREADS = {f"{played}_return_mean": f"{played}_return_ci95" for played in ("eval", "confirm")}
LOSS = "_loss"  # suffix of the losses of an algorithm with several
NAMES = {name for _, lines in PANELS for name, _, _ in lines}
FEW = 30  # lines of at most so many points get markers: a single point would be invisible


def draw_curve(
    rows: Sequence[Mapping[str, Any]], target: str | PathLike[str] | BinaryIO, *, until_return: float | None = None
) -> None:
    """Draw rows of metrics.jsonl over `update`: losses, and below them returns and held-out scores, if any.

    Bands are 95% confidence intervals of mean returns; `until_return` is a dashed line. Equal rows give equal bytes with the
    same version of matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = {name for row in rows for name, value in row.items() if value is not None}
    own = sorted(name for name in measured if name.endswith(LOSS) and name not in NAMES)
    several = [("losses", tuple((name, name.removesuffix(LOSS), "-") for name in own))] if own else []
    panels = [(title, lines) for title, lines in (*PANELS, *several) if measured & {name for name, _, _ in lines}]
    if own:  # then `loss` is their sum, not a likelihood
        panels[0] = "sum of losses", panels[0][1]
    height = 1 + 2.4 * max(1, len(panels))
    figure = Figure(figsize=(7, height), dpi=100)
    edges = {"left": 0.12, "right": 0.98, "top": 1 - 0.15 / height, "bottom": 0.55 / height}  # inches over inches
    figure.subplots_adjust(**edges, hspace=0.08)
    panes: Any = figure.subplots(max(1, len(panels)), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, lines) in zip(panes, panels, strict=False):
        for name, label, style in lines:
            _line(axes, rows, name, label, style)
        if until_return is not None and lines is RETURNS:
            axes.axhline(until_return, color="0.3", linestyle="--", linewidth=1, label=f"target {until_return:g}")
        axes.margins(y=0.08)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False)
    panes[-1].set_xlabel("updates")
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png", metadata={"Software": None})


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
