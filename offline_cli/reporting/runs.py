"""Runs side by side: their rows of metrics, what they were configured with, and one figure of all, seeds as mean and range.

A folder of seeds (`RUN/seed-0`, ...) stands for the runs in it. Runs that differ in the seed alone are one group.
"""

from __future__ import annotations

import io
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.datasets.file_names import RUN_CONFIG
from offline_cli.errors import BadData, NoData, OutputExists, UsageError
from offline_cli.reporting.curves import FEW, LOSS, NAMES, PANELS
from offline_cli.reporting.figures import colour, figure, label, packed
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole

METRICS: Final = "metrics.jsonl"
RESULT: Final = "result.json"
STATE: Final = "state.json"
OWN: Final = ("seed", "out", "run", "device", "threads")  # keys that make no other kind of run
SUFFIXES: Final = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}  # and how such files begin
SHOWN: Final = ("eval_return_mean", "eval_return_ci95", "val_loss", "val_accuracy", "loss", "updates", "seconds", "stopped_by")


@dataclass(slots=True)
class Run:
    """What is read of one run folder."""

    name: str
    rows: list[dict[str, Any]]  # of metrics.jsonl
    config: dict[str, Any]  # dotted keys
    result: dict[str, Any]  # empty: the run is not finished


@dataclass(slots=True)
class Group:
    """Runs that differ in the seed alone."""

    name: str
    runs: list[Run] = field(default_factory=list)

    def line(self, metric: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """(K,) updates that all runs have, and mean, least and largest of the metric; empty: none has it."""
        lines = [
            np.array([(row["update"], row[metric]) for row in run.rows if row.get(metric) is not None], np.float64)
            for run in self.runs
        ]
        lines = [one for one in lines if len(one)]
        if not lines:
            return (np.zeros(0),) * 4
        first, last = max(one[0, 0] for one in lines), min(one[-1, 0] for one in lines)
        x = np.unique(np.concatenate([one[:, 0] for one in lines]))
        x = x[(x >= first) & (x <= last)] if last >= first else x
        values = np.stack([np.interp(x, one[:, 0], one[:, 1]) for one in lines])
        return x, values.mean(0), values.min(0), values.max(0)


@dataclass(frozen=True, slots=True)
class CurvesResult:
    """What `curves` drew."""

    out: str
    runs: int
    groups: list[str]  # names of what has a line of its own

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"out": self.out, "runs": self.runs, "groups": self.groups}


def read_runs(places: Sequence[str | os.PathLike[str]], storage_options: Mapping[str, Any] | None = None) -> list[Run]:
    """The runs in these folders. Raises StorageNotFound, NoData for a folder without metrics.jsonl, BadData."""
    found = []
    for given in [places] if isinstance(places, str | os.PathLike) else places:
        place = open_location(given, storage_options)
        if not place.exists():
            raise place.missing()
        parts = [("", place)] if place.join(METRICS).exists() else []
        if not parts:
            parts = [(one.name, one) for one in place.children() if one.join(METRICS).exists()]
        if not parts:
            fix = "name the folder that train wrote, the one with metrics.jsonl in it, or a folder of such folders"
            raise NoData("no run is here: there is no metrics.jsonl", where=place.url, fix=fix)
        found += [_run(f"{place.name}/{name}" if name else place.name, one) for name, one in parts]
    return found


def _run(name: str, place: Location) -> Run:
    def text(file: str) -> bytes:
        return whole_file(place.join(file)) or b""

    try:
        rows = [orjson.loads(line) for line in text(METRICS).splitlines() if line.strip()]
        config = _flat(tomllib.loads(text(RUN_CONFIG).decode()))
        result = orjson.loads(text(RESULT) or b"{}")
        if data := orjson.loads(text(STATE) or b"{}").get("seen", {}).get("sources"):
            config["data"] = data  # runs on other data are no seeds of each other
        rows = [row for row in rows if isinstance(row.get("update"), int)]
        rows = [{key: value for key, value in row.items() if isinstance(value, int | float)} for row in rows]
        return Run(name, rows, config, dict(result))
    except (ValueError, AttributeError, TypeError) as error:
        raise BadData(f"a run's file cannot be read: {error}", where=place.url, fix="train again with --overwrite") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration, but for the seed, together; in the order of the first of each."""
    found: dict[str, Group] = {}
    for number, run in enumerate(runs):
        kind = {key: value for key, value in run.config.items() if key.rpartition(".")[2] not in OWN}
        key = repr(sorted(kind.items(), key=lambda one: one[0])) if kind else f"{number}"
        found.setdefault(key, Group(run.name)).runs.append(run)
    for group in found.values():
        if len(group.runs) > 1:
            names = [run.name for run in group.runs]
            common = re.sub(r"[-_/.]*(seed)?[-_/.=]*\d*$", "", names[0])  # bc/seed-0, bc_seed3, bc-1
            group.name = f"{common or names[0]} ({len(names)} seeds)"
    return list(found.values())


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Configuration that is not the same in all groups: key, and its value in each."""
    configs = [group.runs[0].config for group in groups]
    keys = [key for key in dict.fromkeys(key for one in configs for key in one) if key.rpartition(".")[2] not in OWN]
    rows = [(key, [str(one.get(key, "-")) for one in configs]) for key in keys]
    return [row for row in rows if len(set(row[1])) > 1]


def panels(groups: Sequence[Group]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is measured in any of the runs: title of a panel, and its metrics with their labels."""
    measured = {name for group in groups for run in group.runs for row in run.rows for name in row}
    own = sorted(name for name in measured if name.endswith(LOSS) and name not in NAMES)
    every = [*((title, [(name, text) for name, text, _ in lines]) for title, lines in PANELS)]
    every += [(name.removesuffix(LOSS) + " loss", [(name, "")]) for name in own]
    kept = [(title, [one for one in lines if one[0] in measured]) for title, lines in every]
    return [one for one in kept if one[1]]


DASHES: Final = (("solid", "-"), ("dash", "--"), ("dot", ":"))


def _lines(groups: Sequence[Group], metrics: Sequence[tuple[str, str]]) -> Iterator[tuple[int, str, tuple[str, str], Any]]:
    """Of each line of a panel the number of its group, name, dashes, and (updates, mean, least, largest)."""
    for number, group in enumerate(groups):
        for (metric, text), dashes in zip(metrics, DASHES, strict=False):
            if len((line := group.line(metric))[0]):
                yield number, f"{group.name}, {text}" if len(metrics) > 1 else group.name, dashes, line


def plotly_curves(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A figure for each panel; a group has the same colour in all."""
    found = []
    for title, metrics in panels(groups):
        traces: list[dict[str, Any]] = []
        for number, name, (dash, _), (x, mean, low, high) in _lines(groups, metrics):
            style = {"type": "scatter", "x": packed(x), "legendgroup": label(name)}
            if len(groups[number].runs) > 1:
                edge = {**style, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
                fill = {"fill": "tonexty", "fillcolor": f"{colour(number)}33"}
                traces += [{**edge, "y": packed(low)}, {**edge, "y": packed(high), **fill}]
            line = {"color": colour(number), "dash": dash}
            mode = "lines+markers" if len(x) < FEW else "lines"
            traces.append({**style, "mode": mode, "y": packed(mean), "line": line, "name": label(name)})
        found.append(figure(traces, "updates", title, 320, showlegend=True))
    return found


@checked
def curves(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CurvesResult:
    """Draw the curves of `runs` into one PNG, SVG or PDF: losses, returns and held-out scores over updates.

    Runs that differ in the seed alone are one line, their mean, within the band from the least to the largest of them.
    Raises UsageError for a file of another kind, OutputExists, and what `read_runs` raises.
    """
    target = open_location(out, storage_options)
    kind = target.name.rpartition(".")[2].lower()
    if kind not in SUFFIXES:
        raise UsageError(f"no figure is written as .{kind}", where=target.url, fix=f"name a file .{', .'.join(SUFFIXES)}")
    check_free(target, overwrite, SUFFIXES[kind])
    groups = grouped(read_runs(runs, storage_options))
    content = io.BytesIO()
    _draw(groups, content, kind)
    write_whole(target, content.getvalue(), folder=target.parent() or target)
    return CurvesResult(target.url, sum(len(group.runs) for group in groups), [group.name for group in groups])


def check_free(target: Location, overwrite: bool, magic: bytes) -> None:
    """Raise OutputExists where a file is there, unless it may be replaced and begins with `magic`, as those of its kind do."""
    if target.exists() and not overwrite:
        fix = "choose another name; report and curves replace it with --overwrite"
        raise OutputExists("a file is there already", where=target.url, fix=fix)
    if target.exists() and (target.is_dir() or target.start(len(magic))[0].lower() != magic.lower()):
        raise OutputExists("another kind of file is there", where=target.url, fix="choose another name")


def _draw(groups: Sequence[Group], target: BinaryIO, kind: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = panels(groups)
    drawn = Figure(figsize=(7.5, 1 + 2.4 * max(1, len(found))), dpi=110, layout="constrained")
    panes: Any = drawn.subplots(max(1, len(found)), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, metrics) in zip(panes, found, strict=False):
        for number, name, (_, dash), (x, mean, low, high) in _lines(groups, metrics):
            text, marker = name.replace("$", r"\$").lstrip("_"), "." if len(x) < FEW else ""
            axes.plot(x, mean, dash, color=colour(number), label=text, marker=marker)
            if len(groups[number].runs) > 1:
                axes.fill_between(x, low, high, color=colour(number), alpha=0.18, linewidth=0)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False, fontsize="small")
    panes[-1].set_xlabel("updates")
    FigureCanvasAgg(drawn)
    drawn.savefig(target, format=kind)
