"""Training curves as a PNG, of one run, and of several over each other; matplotlib is loaded only to draw (half a second).

`python -m offline_cli.report.curves RUN... --out curves.png [--until-return R]` draws runs that are finished, or on their way,
from local folders and buckets, and prints the last figures of each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, BinaryIO

from offline_cli.errors import NoData, OfflineCliError, StorageNotFound
from offline_cli.policies.run_files import CONFIG, METRICS
from offline_cli.storage.locations import Location, open_location

__all__ = ["curves", "draw_curve"]

_log = logging.getLogger(__name__)

LOSSES = (("loss", "training", "-"), ("val_loss", "held out", "o-"))
RETURNS = (("eval_return_mean", "check", "o-"), ("confirm_return_mean", "confirmation", "s"))
OTHERS = (("val_accuracy", "held-out accuracy", "o-"), ("val_mse", "held-out squared error", "o-"))
PANELS = (("loss (nats per action)", LOSSES), ("return", RETURNS), ("score", OTHERS))
SPREADS = {f"{played}_return_mean": f"{played}_return_ci95" for played in ("eval", "confirm")}
LOSS = "_loss"  # ends the names of an algorithm's losses where it has several
NAMES = {name: label for _, lines in PANELS for name, label, _ in lines} | {"loss": "loss"}
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


def curves(
    runs: Sequence[str | PathLike[str] | Location],
    out: str | PathLike[str] | BinaryIO,
    *,
    until_return: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Draw `runs` over each other, a panel for each figure that one of them has; each run's last figures, by name.

    Raises StorageNotFound, NoData for what is no run folder, or has no row yet.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    places = [open_location(run, storage_options, beside=list(runs)) for run in runs]
    told = dict(zip(_labels(places), map(_rows_of, places), strict=True))
    figure = _figure_of_runs(told, until_return)
    FigureCanvasAgg(figure)
    figure.savefig(out, format="png", metadata={"Software": None})
    last = [{name: value for row in rows for name, value in row.items() if value is not None} for rows in told.values()]
    return [{"run": place.url, **found} for place, found in zip(places, last, strict=True)]


def _labels(places: Sequence[Location]) -> list[str]:
    """The last part of each URL, or as many parts as distinguish them."""
    parts = [place.url.rstrip("/").split("/") for place in places]
    most = max(map(len, parts))
    for count in range(1, most + 1):
        found = ["/".join(one[-count:]) for one in parts]
        if len(set(found)) == len(found):
            return found
    return [f"{'/'.join(one)} ({number})" for number, one in enumerate(parts, 1)]


def _rows_of(run: Location) -> list[dict[str, Any]]:
    if not run.exists():
        raise StorageNotFound(f"{run} does not exist", where=run.url, fix="check the path")
    if not run.join(CONFIG).is_file():
        fix = "name the folder that train --out made"
        raise NoData("not a run folder of train or train-bc", where=run.url, fix=fix)
    rows, lost = [], 0
    text = run.join(METRICS).read_bytes() if run.join(METRICS).is_file() else b""
    for line in filter(None, map(bytes.strip, text.splitlines())):
        try:
            row = json.loads(line)
            rows.append({**row, "update": int(row["update"])})
        except (ValueError, TypeError, KeyError):
            lost += 1
    if lost:
        _log.warning("warning: %d rows of %s cannot be read, and are left out", lost, run.join(METRICS).url)
    if not rows:
        raise NoData("the run has no row of metrics yet", where=run.url, fix="wait for its first check")
    return rows


def _figure_of_runs(runs: Mapping[str, Sequence[Mapping[str, Any]]], until_return: float | None) -> Any:
    known = [name for _, lines in PANELS for name, _, _ in lines if not name.startswith("confirm")]
    own = sorted({name for rows in runs.values() for row in rows for name in row if name.endswith(LOSS) and name not in NAMES})
    measured = {name for rows in runs.values() for row in rows for name, value in row.items() if value is not None}
    panels = [name for name in (*known, *own) if name in measured]
    figure, panes = _panes(len(panels))
    for axes, name in zip(panes, panels, strict=False):
        for label, rows in runs.items():
            _line(axes, rows, name, label, "-" if name.endswith("loss") and name != "val_loss" else "o-")
        _finish(axes, _title(name), until_return if name.startswith("eval") else None)
    panes[-1].set_xlabel("updates")
    return figure


def _title(name: str) -> str:
    if name.startswith("eval"):
        return "return"
    return {"val_loss": "held-out loss"}.get(name) or NAMES.get(name) or f"loss: {name.removesuffix(LOSS)}"


def _panes(count: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    count = max(1, count)
    height = 1 + 2.4 * count
    figure = Figure(figsize=(7, height), dpi=100)
    figure.subplots_adjust(
        left=0.12, right=0.98, top=1 - 0.15 / height, bottom=0.55 / height, hspace=0.08
    )  # inches over inches
    return figure, figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0]


def _finish(axes: Any, title: str, until_return: float | None) -> None:
    if until_return is not None:
        axes.axhline(until_return, color="0.3", linestyle="--", linewidth=1, label=f"target {until_return:g}")
    axes.margins(y=0.08)
    axes.set_ylabel(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)


def _figure(rows: Sequence[Mapping[str, Any]], until_return: float | None) -> Any:
    measured = {name for row in rows for name, value in row.items() if value is not None}
    own = sorted(name for name in measured if name.endswith(LOSS) and name not in NAMES)
    several = [("losses", tuple((name, name.removesuffix(LOSS), "-") for name in own))] if own else []
    panels = [(title, lines) for title, lines in (*PANELS, *several) if measured & {name for name, _, _ in lines}]
    if own:  # then the first is their sum, and no likelihood
        panels[0] = "loss, all added", panels[0][1]
    figure, panes = _panes(len(panels))
    for axes, (title, lines) in zip(panes, panels, strict=False):
        for name, label, style in lines:
            _line(axes, rows, name, label, style)
        _finish(axes, title, until_return if lines is RETURNS else None)
    panes[-1].set_xlabel("updates")
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


def main(words: Sequence[str]) -> int:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m offline_cli.report.curves", description=curves.__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder: a path or a URL")
    parser.add_argument("--out", default="curves.png", metavar="FILE", help="picture to write (default: curves.png)")
    parser.add_argument("--until-return", type=float, metavar="R", help="a dashed line among the returns")
    parser.add_argument("--json", action="store_true", help="print the last figures as one JSON object")
    given = parser.parse_args(words)
    try:
        found = curves(given.runs, given.out, until_return=given.until_return)
    except OfflineCliError as err:
        sys.stderr.write(f"error: {err}\n")
        return err.exit_code
    if given.json:
        sys.stdout.write(json.dumps({"out": os.path.abspath(given.out), "runs": found, "exit_code": 0}) + "\n")
        return 0
    names = [name for name in ("update", "loss", "val_loss", "eval_return_mean") if any(name in one for one in found)]
    for one in found:
        sys.stdout.write("  ".join([one["run"], *(f"{name} {one[name]:g}" for name in names if name in one)]) + "\n")
    sys.stdout.write(f"{given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
