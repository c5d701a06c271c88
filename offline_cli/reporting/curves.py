"""The training curve of a run as PNG; matplotlib is imported only for drawing, because that takes half a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, BinaryIO

__all__ = ["draw_curve", "draw_curves", "mean_curve"]

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
SCALES = 100  # ratio of the largest to the smallest loss from which the axis is logarithmic


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


# ---- several runs ----

SEVERAL = (
    ("return", ("eval_return_mean",)),
    ("loss", ("loss",)),
    ("held-out loss", ("val_loss",)),
    ("held-out accuracy", ("val_accuracy",)),
    ("held-out squared error", ("val_mse",)),
)


def draw_curves(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], target: str | PathLike[str] | BinaryIO) -> None:
    """Draw runs over their updates, a panel for each figure that any has: by label, the rows of metrics.jsonl of each seed.

    Of several seeds the line is their mean at the updates that all have, and the band its 95% interval (Student's t). A label
    keeps its colour in all panels, and losses that vary by orders of magnitude are drawn to a logarithm.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = {
        title: {label: curve for label, seeds in runs.items() if (curve := mean_curve(seeds, names[0])) is not None}
        for title, names in SEVERAL
    }
    panels = {title: curves for title, curves in drawn.items() if curves}
    height = 1 + 2.4 * max(1, len(panels))
    figure = Figure(figsize=(7, height), dpi=100, layout="constrained")
    panes: Any = figure.subplots(max(1, len(panels)), 1, squeeze=False, sharex=True)[:, 0]
    colours = {label: f"C{number % 10}" for number, label in enumerate(runs)}
    for axes, (title, curves) in zip(panes, panels.items(), strict=False):
        for label, (updates, mean, half) in curves.items():
            seeds = len(runs[label])
            name = f"{label} ({seeds} seeds)" if seeds > 1 else label
            axes.plot(updates, mean, "-o" if len(updates) <= FEW else "-", markersize=3, color=colours[label], label=name)
            if len(updates) == 1:  # of which a band would be nothing
                axes.errorbar(updates, mean, half, capsize=3, color=colours[label])
            axes.fill_between(updates, mean - half, mean + half, color=colours[label], alpha=0.15, linewidth=0)
        values = [value for _, mean, _ in curves.values() for value in mean]
        if "loss" in title and min(values) > 0 and max(values) > SCALES * min(values):
            axes.set_yscale("log")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False)
    panes[-1].set_xlabel("updates")
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png", metadata={"Software": None})


def mean_curve(seeds: Sequence[Sequence[Mapping[str, Any]]], name: str) -> tuple[Any, Any, Any] | None:
    """Updates that all seeds have a figure at, its mean there, and half the width of the mean's interval (0 of one seed).

    None: they have none.
    """
    import numpy as np

    from offline_cli.mean_interval import mean_interval

    found = [{row["update"]: row[name] for row in rows if row.get(name) is not None} for rows in seeds]
    updates = sorted(set.intersection(*map(set, found))) if found else []
    if not updates:
        return None
    mean, half = mean_interval([[one[update] for update in updates] for one in found])
    return np.array(updates), mean, np.nan_to_num(half)
