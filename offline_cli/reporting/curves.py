"""Learning curves: one or several runs over their updates, drawn by matplotlib into a file or by plotly on a page.

Both draw the same panels. A run keeps its colour in all of them; of several seeds the line is their mean, and the band its 95%
interval (Student's t); of two seeds, of which that says nothing, from one to the other. Each loss of an algorithm with several
has a panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.mean_interval import mean_interval
from offline_cli.reporting.drawing import Json, colour, figure, label, legend_text, packed

__all__ = ["Panel", "draw_curves", "mean_curve", "panels", "plotly_curves"]

Floats = NDArray[np.float64]
Seeds = Sequence[Sequence[Mapping[str, Any]]]  # of each seed the rows of metrics.jsonl
LOSS: Final = "_loss"  # suffix of the losses of an algorithm with several
MAJORITY: Final = "val_accuracy_majority"  # of the data, not the run
PANELS: Final = (  # title, and metrics with what they are called beside each other
    ("loss (nats per action)", (("loss", "training"), ("val_loss", "held out"))),
    ("return", (("eval_return_mean", "check"), ("confirm_return_mean", "confirmation"))),
    ("held-out accuracy", (("val_accuracy", "policy"), (MAJORITY, "the most frequent action"))),
    ("held-out squared error", (("val_mse", ""),)),
)
INTERVALS: Final = {f"{played}_return_mean": f"{played}_return_ci95" for played in ("eval", "confirm")}  # of one check
BANDS: Final = {1: "95% interval", 2: "mean, both seeds"}  # by number of seeds
DASHES: Final = (("-", "solid"), ("--", "dash"))  # matplotlib's name and plotly's, of the metrics of a panel
FEW: Final = 30  # lines of at most so many points get markers: a single point would be invisible
POINTS: Final = 1_000  # of a line, at most
SCALES: Final = 100  # largest loss over the median of the lowest line, from which the axis is logarithmic


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of a run, or its mean over seeds."""

    number: int  # of the run: its colour
    name: str
    dash: int
    x: Floats  # (K,) updates
    mean: Floats
    half: Floats  # half the width of the band; 0: there is none
    band: str  # name of the band in the legend


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines on one axis; `scale` is "linear"; or "log", "symlog" with negative values, of losses that would flatten others."""

    title: str
    lines: list[Line]
    scale: str
    unit: float  # of a symlog axis, the largest value that it shows linearly
    limits: tuple[float, float] | None  # of the axis, which cut bands that are wider than all means are apart

    @property
    def band(self) -> str:
        """What the bands are, for the title of the legend; empty without a band."""
        return "; ".join(dict.fromkeys(line.band for line in self.lines if line.half.any()))

    def named(self, line: Line) -> str:
        """The line's name in the legend, with its value and interval at the end where the limits cut that."""
        low, value, high = (float(line.mean[-1] + sign * line.half[-1]) for sign in (-1, 0, 1))
        is_cut = self.limits is not None and (low < self.limits[0] or high > self.limits[1])
        return f"{line.name} {value:.4g} [{low:.4g}, {high:.4g}]".strip() if is_cut else line.name


def mean_curve(seeds: Seeds, metric: str) -> tuple[Floats, Floats, Floats] | None:
    """(K,) updates that all seeds have reached, the mean there, and half the width of the band; None: none has the metric.

    Between two rows of a seed the line is straight. Of one seed the band is the interval of each check, over its episodes.
    """
    width = INTERVALS.get(metric, "")
    found = [
        np.array([(row["update"], row[metric], row.get(width) or 0.0) for row in rows if row.get(metric) is not None], float)
        for rows in seeds
    ]
    known = [one for one in found if len(one)]
    if not known:
        return None
    if len(seeds) == 1:
        x, mean, half = known[0].T
        return x, mean, half
    first, last = max(one[0, 0] for one in known), min(one[-1, 0] for one in known)
    x = np.unique(np.concatenate([one[:, 0] for one in known]))
    x = x[(x >= first) & (x <= last)] if first <= last else x
    values = np.stack([np.interp(x, one[:, 0], one[:, 1]) for one in known])
    mean, half = mean_interval(values)
    return x, mean, np.ptp(values, axis=0) / 2 if len(values) == 2 else np.nan_to_num(half)


def panels(runs: Sequence[tuple[str, Seeds]]) -> list[Panel]:
    """What is measured in any of `runs`, each with its name and the rows of its seeds; an empty name is left out."""
    measured = {name for _, seeds in runs for rows in seeds for row in rows for name in row if row[name] is not None}
    known = {metric for _, metrics in PANELS for metric, _ in metrics}
    own = sorted(name for name in measured if name.endswith(LOSS) and name not in known)
    measured -= {MAJORITY} if len(runs) > 1 else set()
    every = [(title.partition(" (")[0] if own else title, metrics) for title, metrics in PANELS]  # a sum is no likelihood
    every += [(f"{name.removesuffix(LOSS)} loss", ((name, ""),)) for name in own]
    found = [(title, list(_lines(runs, [one for one in metrics if one[0] in measured]))) for title, metrics in every]
    return [_panel(title, lines) for title, lines in found if lines]


def _lines(runs: Sequence[tuple[str, Seeds]], metrics: Sequence[tuple[str, str]]) -> Iterator[Line]:
    for number, (name, seeds) in enumerate(runs):
        band = BANDS.get(len(seeds), "mean, 95% t interval")
        for dash, (metric, text) in enumerate(metrics):
            if (curve := mean_curve(seeds, metric)) is not None:
                parts = (name, text if len(metrics) > 1 or not name else "")
                yield Line(number, ", ".join(filter(None, parts)), dash, *_thinned(*curve), band)


def _thinned(x: Floats, mean: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """At most POINTS of a line: the first, the last, and the least and largest mean of equal stretches."""
    kept, ends = np.arange(len(x)), (np.argmin, np.argmax)
    if len(x) > POINTS:
        stretches = np.array_split(kept, POINTS // 2 - 1)
        kept = np.unique([0, len(x) - 1, *(one[end(mean[one])] for one in stretches for end in ends)])
    return x[kept], mean[kept], half[kept]


def _panel(title: str, lines: list[Line]) -> Panel:
    means = [line.mean[np.isfinite(line.mean)] for line in lines]
    whole = np.concatenate(means)
    if len(whole) < 2 or not (span := float(np.ptp(whole))):
        return Panel(title, lines, "linear", 1.0, None)
    unit = min(float(np.median(np.abs(one))) for one in means if len(one))
    if title.partition(" (")[0].endswith(("loss", "error")) and np.abs(whole).max() > SCALES * unit > 0:
        is_positive = whole.min() > 0
        limits = (float(whole.min()) / 1.5, float(whole.max()) * 1.5) if is_positive else None
        return Panel(title, lines, "log" if is_positive else "symlog", unit, limits)
    bands = [line.mean + sign * np.minimum(line.half, span) for line in lines for sign in (-1, 1)]
    low, high = (float(end(np.concatenate(bands))) for end in (np.nanmin, np.nanmax))
    return Panel(title, lines, "linear", unit, (low - 0.05 * span, high + 0.05 * span))


def draw_curves(
    runs: Sequence[tuple[str, Seeds]],
    target: str | PathLike[str] | BinaryIO,
    *,
    kind: str = "png",
    until_return: float | None = None,
) -> None:
    """Draw the panels of `runs` below each other; `until_return` is a dashed line among the returns."""
    from matplotlib.figure import Figure

    found = panels(runs)
    drawn = Figure(figsize=(7, 1 + 2.4 * max(1, len(found))), dpi=100, layout="constrained")
    panes: Any = drawn.subplots(max(1, len(found)), 1, squeeze=False, sharex=True)[:, 0]
    for axes, panel in zip(panes, found, strict=False):
        for line in panel.lines:
            shade, marker = colour(line.number), "." if len(line.x) <= FEW else ""
            axes.plot(line.x, line.mean, DASHES[line.dash][0], color=shade, label=legend_text(panel.named(line)), marker=marker)
            if len(line.x) == 1:  # of which a band would be nothing
                axes.errorbar(line.x, line.mean, line.half, capsize=3, color=shade)
            axes.fill_between(line.x, line.mean - line.half, line.mean + line.half, color=shade, alpha=0.15, linewidth=0)
        if panel.scale != "linear":
            axes.set_yscale(panel.scale, **({"linthresh": panel.unit} if panel.scale == "symlog" else {}))
        if panel.limits:
            axes.set_ylim(*panel.limits)
        if until_return is not None and panel.title == "return":
            axes.axhline(until_return, color="0.3", linestyle="--", linewidth=1, label=f"target {until_return:g}")
        axes.set_ylabel(panel.title)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", frameon=False, fontsize="small", title=panel.band, title_fontsize="small")
    panes[-1].set_xlabel("updates")
    drawn.savefig(target, format=kind, metadata={"Software": None} if kind == "png" else None)  # equal runs, equal bytes


def plotly_curves(runs: Sequence[tuple[str, Seeds]]) -> list[tuple[str, Json]]:
    """Title and document of each panel, for a page."""
    found = []
    for panel in panels(runs):
        traces: list[Json] = []
        for line in panel.lines:
            style = {"type": "scatter", "x": packed(line.x), "legendgroup": label(line.name)}
            if line.half.any():
                edge = {**style, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
                fill = {"fill": "tonexty", "fillcolor": f"{colour(line.number)}33"}
                traces += [{**edge, "y": packed(line.mean - line.half)}, {**edge, "y": packed(line.mean + line.half), **fill}]
            look = {"color": colour(line.number), "dash": DASHES[line.dash][1]}
            mode = "lines+markers" if len(line.x) <= FEW else "lines"
            traces.append({**style, "mode": mode, "y": packed(line.mean), "line": look, "name": label(panel.named(line))})
        drawn = figure(traces, "updates", panel.title, 320, showlegend=True, legend={"title": {"text": panel.band}})
        if panel.limits:
            is_log = panel.scale == "log"
            drawn["layout"]["yaxis"]["range"] = np.log10(panel.limits).tolist() if is_log else list(panel.limits)
        drawn["layout"]["yaxis"]["type"] = "log" if panel.scale == "log" else "linear"
        found.append((panel.title, drawn))
    return found
