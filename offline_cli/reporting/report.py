"""One HTML file about datasets and runs, which opens without a server or network: `report`, and the page of `inspect --html`.

Jinja escapes every text (`autoescape`), plotly brings its own script, and the page allows no other than those it was written
with: their hashes are in its Content-Security-Policy. What data says is text or a number in a JSON block, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.checking.validate import validate
from offline_cli.choices import SOURCE_FORMAT, TABLE_MEMORY_LIMIT, EpisodeEnds
from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.errors import BadData, MissingPackage, NoData, OfflineCliError, UsageError
from offline_cli.mean_interval import mean_interval
from offline_cli.meanings import NO_MEANINGS
from offline_cli.printable_text import printable
from offline_cli.progress import OnProgress, no_progress
from offline_cli.reporting import figures as draw
from offline_cli.reporting import runs as of_runs
from offline_cli.reporting.curves import plotly_curves
from offline_cli.reporting.drawing import COLOURS, Json, colour, label, packed
from offline_cli.reporting.signs import Sign, of_problem, repeated, signs
from offline_cli.reporting.survey import Survey
from offline_cli.spaces import describe
from offline_cli.storage.locations import Location, Sources, open_location
from offline_cli.storage.staging import write_whole

PAGE: Final = b"<!doctype html"  # begins each page
TEMPLATE: Final = Path(__file__).with_name("page.html.j2")
DRAWN: Final = 200  # episodes in the browser, of all datasets
BROWSED: Final = 40  # channels of an episode that are drawn
BUDGET: Final = 5 << 20  # bytes of the episodes that are drawn
LISTED: Final = 12  # episodes that a sign names on the page
MOST_SIGNS: Final = 60


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What a page was made of."""

    out: str
    bytes: int
    datasets: int
    runs: int
    episodes: int
    steps: int
    problems: list[Json]  # what is wrong, worst first: severity, title, text, source, episodes, command
    seconds: float

    def as_dict(self) -> Json:
        """Plain values."""
        return asdict(self)


@checked
def report(
    sources: Sources = (),
    out: str | os.PathLike[str] = "report.html",
    *,
    runs: Sequence[str | os.PathLike[str]] = (),
    short: bool = False,
    from_: str = SOURCE_FORMAT,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    overwrite: bool = False,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> ReportResult:
    """Write a page about each of `sources`, side by side, and about `runs`: what is there, what is wrong, how episodes go.

    `short`: without plots and episodes, so that it needs no script. Rows that cannot be read are left out, and told among what
    is wrong. Raises UsageError where nothing is given, MissingPackage without plotly and jinja2, OutputExists, NoData and
    BadData where no source can be read, and what `read_runs` raises.
    """
    options, began = dict(locals()), time.monotonic()
    target = check_page(out, storage_options, overwrite=overwrite)
    given: list[Any] = list(sources) if isinstance(sources, list | tuple) else [sources]
    if not given and not runs:
        raise UsageError("nothing is given to report on", where="report", fix="name datasets, or runs with --run RUN")
    _packages()
    places = [one if isinstance(one, Location) else open_location(one, storage_options) for one in given]
    names = of_runs.names_of([one.url for one in places])
    surveys, found = [], list[Sign]()
    for name, place, source in zip(names, places, given, strict=True):
        survey, told, wrong = _surveyed(name, place, source, options, max(1, DRAWN // len(given)))
        surveys.append((survey, told))
        found += wrong
    if given and not any(len(survey.episodes) for survey, _ in surveys) and not runs:
        what = found[0].text if found else "no episodes"
        raise (BadData if found else NoData)(
            what, where=", ".join(one.url for one in places), fix="see what offline-cli validate says"
        )
    found += repeated([survey for survey, _ in surveys], [_as_words(place, options) for place in places])
    for (survey, _), place in zip(surveys, places, strict=True):
        flagged = [number for one in found if one.source == survey.name for number in one.numbers[:LISTED]]
        dataset = Dataset.open(place) if flagged and not short and holds_dataset(place) else None
        survey.draw_flagged(flagged, dataset, DRAWN // 5)
    found.sort(key=lambda one: ("error", "warning", "note").index(one.severity))
    for number, one in enumerate((one for one in found if one.command), 1):
        one.command += f"-{number}"  # a folder for each
    groups = of_runs.grouped(of_runs.read_runs(runs, storage_options))
    page = _page(surveys, found, groups, short)
    content = page.encode("utf-8", "replace")
    write_whole(target, content, folder=target.parent() or target)
    return ReportResult(
        out=target.url,
        bytes=len(content),
        datasets=len(surveys),
        runs=sum(len(group.runs) for group in groups),
        episodes=sum(len(survey.episodes) for survey, _ in surveys),
        steps=sum(survey.steps for survey, _ in surveys),
        problems=[one.as_dict() for one in found],
        seconds=round(time.monotonic() - began, 3),
    )


def check_page(out: Any, storage_options: Mapping[str, Any] | None = None, *, overwrite: bool = False) -> Location:
    """Where the page will be. Raises OutputExists for a file there, unless it is a page that `overwrite` replaces."""
    target = open_location(out, storage_options or None)
    of_runs.check_free(target, overwrite, PAGE)
    return target


# ---- reading ----


@np.errstate(all="ignore")  # of values near the largest float
def _surveyed(
    name: str, place: Location, source: Any, options: Mapping[str, Any], most: int
) -> tuple[Survey, Json, list[Sign]]:
    """One source: what its steps show, facts for its head, and what is wrong."""
    from offline_cli.converting.reading import read_episodes
    from offline_cli.formats.tables import TableOptions

    reading = {key: options[key] for key in ("from_", "storage_options", "on_progress")}
    tables = {key: options[key] for key in ("mapping", "rows_as_episodes", "episode_ends", "temp_dir", "memory_limit")}
    checked_too = validate(source, **reading, **tables)
    at = _as_words(place, options)
    wrong = [of_problem(one, name, at) for one in checked_too.problems]
    survey = Survey(name, None, None, "unknown", NO_MEANINGS)
    facts: Json = {"place": place.url}
    try:
        with read_episodes(source, **reading, tables=TableOptions.of(options), on_error="skip") as stream:
            spaces = (stream.observation_space, stream.action_space)
            survey = Survey(name, *spaces, stream.action_scale, stream.meanings)
            for batch in stream:
                survey.add(batch, most)
            facts |= {
                "format": ", ".join(dict.fromkeys(stream.formats)),
                "environment": stream.environment.id if stream.environment else "not known",
                "observations": describe(spaces[0]) + (" (inferred)" if stream.spaces_inferred else ""),
                "actions": f"{describe(spaces[1])}, scale: {stream.action_scale}",
            }
    except OfflineCliError as error:
        if error.exit_code != BadData.exit_code:
            raise
        wrong.insert(0, Sign("error", "Not read to the end", f"{error.what_in_one_line} {error.fix}", name))
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(survey.episodes.ids):
        numbers.setdefault(name, []).append(number)
    for one in wrong:
        one.numbers = [number for name in one.episodes for number in numbers.get(name, ())]
        if len(one.episodes) >= len(survey.episodes):  # nothing would be left
            one.command = ""
    return survey, facts, [*wrong, *signs(survey, at)]


def _as_words(place: Location, options: Mapping[str, Any]) -> str:
    """A source and how it is read, as a shell takes it; empty where none does."""
    names = {"from_": SOURCE_FORMAT, "mapping": None, "rows_as_episodes": False, "episode_ends": None}  # and their defaults
    given = {key: options[key] for key, default in names.items() if options[key] != default}
    words = [place.url]
    for key, value in given.items():
        words += [f"--{key.rstrip('_').replace('_', '-')}", *([] if value is True else [value])]
    is_said = all(isinstance(one, str | os.PathLike) and os.fspath(one).isprintable() for one in words)
    return shlex.join(map(os.fspath, words)) if is_said else ""


def _packages() -> None:
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        fix = "pip install 'offline-cli[report]'"
        raise MissingPackage(f"the package {error.name} is missing", where="report", fix=fix) from error


# ---- the page ----


@np.errstate(all="ignore")
def _page(surveys: Sequence[tuple[Survey, Json]], found: Sequence[Sign], groups: Sequence[of_runs.Group], short: bool) -> str:
    kept = [(number, survey) for number, (survey, _) in enumerate(surveys) if len(survey.episodes)]
    plots: list[tuple[str, Json]] = []
    browsed: list[Json] = []
    datasets = []
    for number, (survey, facts) in enumerate(surveys):
        datasets.append({"name": survey.name, "shade": colour(number), "facts": facts | _counts(survey)})
    if kept and not short:
        parts = (_agents(kept[0][1]) if len(kept) == 1 else []) or _datasets(kept)
        returns = [(name, shade, survey.episodes["return"][numbers]) for name, shade, survey, numbers in parts]
        lengths = [(name, shade, survey.episodes["length"][numbers]) for name, shade, survey, numbers in parts]
        plots = [("Returns", draw.histogram(returns, "return")), ("Lengths", draw.histogram(lengths, "steps"))]
        plots.append(("Returns in the order of the data", draw.over_episodes(parts)))
        if (cloud := draw.coverage(kept)) is not None:
            plots.append(("Coverage: sampled observations in two dimensions", cloud))
        for _, survey in kept:
            if (drawn := draw.actions_by_episode(survey)) is not None:
                plots.append((f"Actions by episode: {survey.name}", drawn))
        browsed = _browsed(kept)
    curves = plotly_curves([group.as_seeds() for group in groups])
    flagged = {(one.source, number) for one in found for number in one.numbers}
    for shown in browsed:
        shown["label"] += " ⚠" if (shown["dataset"], shown["number"]) in flagged else ""
    places = {(one["dataset"], one["number"]): place for place, one in enumerate(browsed)}
    episodes_of = {survey.name: survey.episodes for survey, _ in surveys}
    problems = []
    for one in found[:MOST_SIGNS]:
        episodes = episodes_of[one.source]
        named = [(episodes.name(at), places.get((one.source, at))) for at in one.numbers[:LISTED]]
        named = named or [(name, None) for name in one.episodes[:LISTED]]
        problems.append(one.as_dict() | {"more": len(one.episodes) - len(named), "episodes": named})
    title = ", ".join([*(survey.name for survey, _ in surveys), *(group.name for group in groups)])
    headings, rows = _results(groups)
    return _rendered(
        title=title,
        datasets=datasets,
        keys=list(dict.fromkeys(key for one in datasets for key in one["facts"])),
        better=_better(kept),
        problems=problems,
        channels=_channels(kept),
        plots=[name for name, _ in plots],
        browsed=[(one["dataset"], one["label"]) for one in browsed],
        runs=[(group.name, colour(number), row) for number, (group, row) in enumerate(zip(groups, rows, strict=True))],
        results=headings,
        curves=[name for name, _ in curves],
        differences=of_runs.differences(groups),
        is_short=short,
        data={
            "plots": [one for _, one in (*plots, *curves)],
            "episodes": browsed,
            "names": [[label(one.name) for one in survey.channels[:BROWSED]] for _, survey in kept],
        },
    )


def _rendered(*, data: Json, is_short: bool, **context: Any) -> str:
    """The page. Hashes are of the scripts as a browser sees them."""
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    scripts = [] if is_short else [get_plotlyjs(), TEMPLATE.with_name("page.js").read_text("utf-8")]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts]
    block = orjson.dumps(_shown(data)).decode().replace("<", "\\u003c")  # so that no text ends the block
    known = {"scripts": scripts, "policy": " ".join(hashes) or "'none'", "data": block, "is_short": is_short}
    return environment.from_string(TEMPLATE.read_text("utf-8")).render({**_shown(context), **known})


def _shown(value: Any) -> Any:
    """With the texts as a page may show them: control characters and marks of direction spelled out."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float | np.number) else "" if value is None else str(value)


def _spread(figures: Mapping[str, Any]) -> str:
    return f"mean {_number(figures.get('mean'))}, from {_number(figures.get('min'))} to {_number(figures.get('max'))}"


def _counts(survey: Survey) -> Json:
    episodes = survey.episodes
    if not len(episodes):
        return {"episodes": "none that could be read"}
    ends = {"terminated": episodes["terminated"], "truncated": episodes["truncated"] & ~episodes["terminated"]}
    told = [f"{int(flags.sum()):,} {name}" for name, flags in ends.items() if flags.any()]
    spreads = {
        name: f"{_spread({key: getattr(values, key)() for key in ('mean', 'min', 'max')})}, median {_number(np.median(values))}"
        for name, values in (("return", episodes["return"]), ("length", episodes["length"]))
    }
    counts = {"episodes": f"{len(episodes):,}", "steps": f"{survey.steps:,}"}
    return {**counts, **spreads, "ends": ", ".join(told) or "no end flag"}


Part = tuple[str, str, Survey, NDArray[np.int64]]
"""Name, colour, survey, and numbers of the episodes of what is compared."""


def _datasets(kept: Sequence[tuple[int, Survey]]) -> list[Part]:
    return [(survey.name, colour(number), survey, np.arange(len(survey.episodes))) for number, survey in kept]


def _agents(survey: Survey) -> list[Part]:
    """The agents or modules of one dataset; empty where there is one, or more than there are colours."""
    agents, names = np.array(survey.episodes.agents), sorted(set(survey.episodes.agents))
    if not 1 < len(names) <= len(COLOURS):
        return []
    return [(name or "-", colour(number), survey, np.flatnonzero(agents == name)) for number, name in enumerate(names)]


def _better(kept: Sequence[tuple[int, Survey]]) -> list[str]:
    """Which dataset has the highest mean return, and which agent or module in each, a sentence each."""
    several = len(kept) > 1
    compared = [("", _datasets(kept)), *((f" in {survey.name}" if several else "", _agents(survey)) for _, survey in kept)]
    return [sentence for where, parts in compared if (sentence := _highest(parts, where))]


def _highest(parts: Sequence[Part], where: str) -> str:
    told = []
    for name, _, survey, numbers in parts:
        gained = survey.episodes["return"][numbers]
        gained = gained[np.isfinite(gained)]
        if len(gained):
            mean, half = mean_interval(gained)
            told.append((float(mean), float(half) if len(gained) > 1 else math.inf, name))
    told.sort(key=lambda one: -one[0])
    if len(told) < 2:
        return ""
    (mean, half, name), (other, other_half, _) = told[:2]
    words = ", ".join(f"{name} {_number(mean)} ± {_number(half)}" for mean, half, name in told)
    sure = "and the intervals are apart" if mean - half > other + other_half else "but the intervals overlap"
    return f"Mean return{where} with its 95% interval: {words}. The highest is that of {name}, {sure}."


def _channels(kept: Sequence[tuple[int, Survey]]) -> list[Json]:
    """A row for each channel, with a cell for each dataset that has it."""
    rows: dict[str, Json] = {}
    for number, survey in kept:
        figures = survey.figures.as_json()
        _, t, values = survey.sample()
        for at, channel in enumerate(survey.channels):
            one = figures[channel.path]
            picked = {key: _element(one[key], channel.at) for key in ("min", "mean", "max", "std", "nan", "infinite")}
            row = rows.setdefault(f"{channel.path} {channel.at}", {"name": channel.name, "unit": channel.unit, "cells": []})
            row["cells"].append({"shade": colour(number), "of": (t, values[:, at]), "channel": channel, **picked})
    for row in rows.values():
        known = [value for cell in row["cells"] for value in (cell["min"], cell["max"]) if isinstance(value, int | float)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        last = max(float(np.quantile(cell["of"][0], 0.98)) for cell in row["cells"])
        for cell in row["cells"]:
            (t, values), channel = cell.pop("of"), cell.pop("channel")
            finite = values[np.isfinite(values)]
            counts = draw.binned(finite, draw.BINS, low, high)
            line, band = draw.band_paths(t, values, low, high, last)
            flags = _flags(cell, channel, finite)
            cell |= {key: _number(cell[key]) for key in ("min", "mean", "max", "std")}
            cell |= {"bars": draw.bars_path(counts), "line": line, "band": band, "flags": flags}
    return list(rows.values())


def _element(values: Any, at: int | None) -> Any:
    """Element `at` of nested figures; None: that of all, or their mean."""
    flat = np.array(values, object).ravel()
    if at is not None and len(flat) > at:
        return flat[at]
    known = [value for value in flat if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None


def _flags(cell: Json, channel: Any, values: Any) -> list[str]:
    flags = [f"{cell[key]:,} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if cell[key]]
    if cell["min"] == cell["max"] and cell["min"] is not None:
        return [*flags, "constant"]
    for bound, word in ((channel.low, "lower"), (channel.high, "upper")):
        share = float((values == np.float64(bound)).mean()) if len(values) and np.isfinite(bound) else 0.0
        flags += [f"{share:.0%} at the {word} bound"] if share >= 0.01 else []
    return flags


def _browsed(kept: Sequence[tuple[int, Survey]]) -> list[Json]:
    """The episodes that are drawn, as long as they fit into the budget."""
    found, used = [], 0
    for place, (number, survey) in enumerate(kept):
        chosen, episodes = survey.chosen(DRAWN), survey.episodes
        for at, why in chosen.items():
            course = survey.courses.get(at)
            if course is None:
                continue
            used += course.values[:, :BROWSED].size * 6 + sum(map(len, course.frames))
            if used > BUDGET * (place + 1) / len(kept):
                break
            text = f"{episodes.name(at)} ({why}: return {_number(episodes['return'][at])}, {episodes['length'][at]:,} steps)"
            drawn = {
                "y": [packed(one) for one in course.values.T[:BROWSED]],
                "frames": course.frames,
                "every": course.every,
            }
            found.append({"dataset": survey.name, "number": at, "id": episodes.ids[at], "label": text, "set": place, **drawn})
            found[-1] |= {"shade": colour(number), "start": 0}
    return found


def _results(groups: Sequence[of_runs.Group]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the figures that finished runs have, over seeds their mean and range."""
    keys = [key for key in of_runs.SHOWN if any(run.result.get(key) is not None for group in groups for run in group.runs)]
    return [key.replace("_", " ") for key in keys], [[_over_seeds(group, key) for key in keys] for group in groups]


def _over_seeds(group: of_runs.Group, key: str) -> str:
    values = [run.result.get(key) for run in group.runs]
    known = [value for value in values if isinstance(value, int | float)]
    if not known:
        return str(values[0] or "")
    more = f" ({_number(min(known))} to {_number(max(known))})" if min(known) < max(known) else ""
    return f"{_number(sum(known) / len(known))}{more}"
