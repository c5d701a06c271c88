"""Runs side by side: their rows of metrics, what they were configured with, and one figure of all.

A folder of seeds (`RUN/seed-0`, ...) stands for the runs in it. Runs that differ in the seed alone are one group.
"""

from __future__ import annotations

import io
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import orjson

from offline_cli.checked_keywords import checked
from offline_cli.datasets.file_names import RUN_CONFIG
from offline_cli.errors import BadData, NoData, OutputExists, UsageError
from offline_cli.printable_text import printable
from offline_cli.reporting.curves import Seeds, draw_curves
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole

METRICS: Final = "metrics.jsonl"
RESULT: Final = "result.json"
ESTIMATES: Final = "estimates.json"  # output of `evaluate RUN --offline D --json`, if it is kept in the run folder
ESTIMATED: Final = "estimate by "
STATE: Final = "state.json"
DEEP: Final = 2  # RUNS/iql/seed-0
OWN: Final = ("seed", "out", "run", "device", "threads")  # keys that make no other kind of run
SUFFIXES: Final = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}  # and how such files begin
SHOWN: Final = ("eval_return_mean", "eval_return_ci95", "val_loss", "val_accuracy", "loss", "updates", "seconds", "stopped_by")


class Run(NamedTuple):
    """What is read of one run folder."""

    name: str
    rows: list[dict[str, Any]]  # of metrics.jsonl
    config: dict[str, Any]  # dotted keys
    result: dict[str, Any]  # of a finished run; and estimates, if they were kept in the folder


class Group(NamedTuple):
    """Runs that differ in the seed alone."""

    name: str
    runs: list[Run]

    @property
    def curves(self) -> tuple[str, Seeds]:
        """As curves are drawn of it."""
        return self.name, [run.rows for run in self.runs]


@dataclass(frozen=True, slots=True)
class CurvesResult:
    """What `curves` drew."""

    out: str
    runs: int
    groups: list[str]  # names of what has a line of its own

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_runs(places: Sequence[str | os.PathLike[str]], storage_options: Mapping[str, Any] | None = None) -> list[Run]:
    """The runs in these folders, or below them (`RUN/hunter`, `RUNS/iql/seed-0`); of `AGENT=RUN`, by the name of the agent.

    Raises StorageNotFound, NoData for a folder without metrics.jsonl, BadData.
    """
    given = [places] if isinstance(places, str | os.PathLike) else places
    opened = [_named_place(one, storage_options) for one in given]
    found = []
    for (agent, place), name in zip(opened, names_of([agent or place.url for agent, place in opened]), strict=True):
        if not place.exists():
            raise place.missing()
        parts = _run_folders(place)
        if not parts:
            fix = "name the folder that train wrote, the one with metrics.jsonl in it, or a folder of such folders"
            raise NoData("no run is here: there is no metrics.jsonl", where=place.url, fix=fix)
        found += [_run(f"{name}{one.url.removeprefix(place.url)}", one, agent) for one in parts]
    return found


def _run_folders(place: Location, deep: int = DEEP) -> list[Location]:
    """`place`, if it is a run, else the runs in it, up to `deep` folders below."""
    if place.join(METRICS).exists():
        return [place]
    return [run for one in place.children() if deep and one.is_dir() for run in _run_folders(one, deep - 1)]


def _named_place(given: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> tuple[str, Location]:
    """AGENT and RUN of `AGENT=RUN`; the agent is empty where there is none."""
    place = open_location(given, storage_options)
    agent, _, text = os.fspath(given).partition("=")
    is_named = bool(text) and not {"/", "\\", ":"} & {*agent} and not place.exists()
    return (agent, open_location(text, storage_options)) if is_named else ("", place)


def names_of(urls: Sequence[str]) -> list[str]:
    """The last part of each path where these differ, else more of it; always different ones."""
    for parts in (1, 2, 3):
        names = [printable("/".join(one.rstrip("/").split("/")[-parts:])) for one in urls]
        if len(set(names)) == len(names):
            return names
    return [f"{number} {printable(one)}" for number, one in enumerate(urls, 1)]


def _run(name: str, place: Location, agent: str) -> Run:
    def text(file: str) -> bytes:
        return whole_file(place.join(file)) or b""

    try:
        whole = text(METRICS).rpartition(b"\n")[0]  # a killed run, or one at work, may have left part of a line
        rows = [orjson.loads(line) for line in whole.splitlines() if line.strip()]
        config = _flat(tomllib.loads(text(RUN_CONFIG).decode()))
        if data := orjson.loads(text(STATE) or b"{}").get("seen", {}).get("sources"):
            config["data"] = data  # runs on other data are no seeds of each other
        config |= {"agent": agent} if agent else {}
        rows = [row for row in rows if isinstance(row.get("update"), int)]
        rows = [{key: value for key, value in row.items() if isinstance(value, int | float)} for row in rows]
        result, estimates = (orjson.loads(text(file) or b"{}") for file in (RESULT, ESTIMATES))
        for estimator, one in estimates.get("estimates", {}).items():
            doubt = "" if one.get("reliable") else ", not reliable"
            result[f"{ESTIMATED}{estimator}"] = f"{_range(one['value'], one['low'], one['high'])}{doubt}"
        return Run(name, rows, config, result)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        fix = "try train --resume, which writes the last rows again, or leave this run out"
        raise BadData(f"a run's file cannot be read: {error}", where=place.url, fix=fix) from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of one configuration, but for the seed, together; in the order of the first of each."""
    kinds: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        kind = {key: value for key, value in run.config.items() if key.rpartition(".")[2] not in OWN}
        kinds.setdefault(repr(sorted(kind.items())) if kind else f"{number}", []).append(run)
    return [Group(_common(each), each) for each in kinds.values()]


def _common(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return runs[0].name
    common = re.sub(r"[-_/.]*(seed)?[-_/.=]*\d*$", "", runs[0].name)  # bc/seed-0, bc_seed3, bc-1
    return f"{common or runs[0].name} ({len(runs)} seeds)"


def results(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Figures of finished runs: name, and its mean and range over the seeds of each group; texts as they are."""
    known = {key for group in groups for run in group.runs for key, value in run.result.items() if value is not None}
    keys = [*(key for key in SHOWN if key in known), *sorted(key for key in known if key.startswith(ESTIMATED))]
    told = [(key, [[run.result.get(key) for run in group.runs] for group in groups]) for key in keys]
    return [(key.replace("_", " "), [_over_seeds(values) for values in each]) for key, each in told]


def _over_seeds(values: Sequence[Any]) -> str:
    known = [value for value in values if isinstance(value, int | float)]
    texts = dict.fromkeys(str(value) for value in values if value is not None)
    return _range(sum(known) / len(known), min(known), max(known)) if known else "; ".join(texts)


def _range(value: Any, low: Any, high: Any) -> str:
    ends = [f"{one:,.4g}" if isinstance(one, int | float) else "?" for one in (value, low, high)]
    return ends[0] if ends[1] == ends[2] else f"{ends[0]} ({ends[1]} to {ends[2]})"


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Configuration that is not the same in all groups: key, and its value in each."""
    configs = [group.runs[0].config for group in groups]
    keys = [key for key in dict.fromkeys(key for one in configs for key in one) if key.rpartition(".")[2] not in OWN]
    rows = [(key, [str(one.get(key, "-")) for one in configs]) for key in keys]
    return [row for row in rows if len(set(row[1])) > 1]


@checked
def curves(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CurvesResult:
    """Draw the curves of `runs` into one PNG, SVG or PDF: losses, returns and held-out scores over updates.

    Runs that differ in the seed alone are one line: their mean, in the band of its 95% interval. `AGENT=RUN` names a run.
    Raises UsageError for a file of another kind, OutputExists, and what `read_runs` raises.
    """
    target = open_location(out, storage_options)
    kind = target.name.rpartition(".")[2].lower()
    if kind not in SUFFIXES:
        raise UsageError(f"no figure is written as .{kind}", where=target.url, fix=f"name a file .{', .'.join(SUFFIXES)}")
    check_free(target, overwrite, SUFFIXES[kind])
    groups = grouped(read_runs(runs, storage_options))
    content = io.BytesIO()
    draw_curves([group.curves for group in groups], content, kind=kind)
    write_file(target, content.getvalue())
    return CurvesResult(target.url, sum(len(group.runs) for group in groups), [group.name for group in groups])


def check_free(target: Location, overwrite: bool, magic: bytes) -> None:
    """Raise OutputExists where a file is there, unless it may be replaced and begins with `magic`, as those of its kind do;
    StorageError for a folder that is not writable.
    """
    if target.exists() and not overwrite:
        fix = "choose another name; report and curves replace it with --overwrite"
        raise OutputExists("a file is there already", where=target.url, fix=fix)
    if target.exists() and (target.is_dir() or target.start(len(magic))[0].lower() != magic.lower()):
        raise OutputExists("another kind of file is there", where=target.url, fix="choose another name")
    (target.parent() or target).check_writable()


def write_file(target: Location, content: bytes) -> None:
    """Write a page or figure, and make its folder."""
    folder = target.parent() or target
    folder.make_folder()
    write_whole(target, content, folder=folder)
