"""One HTML file about datasets and runs, which opens without a server or network: `report`, and the page of `inspect --html`.

Jinja2 escapes every text (`autoescape`), plotly brings its own script, and the Content-Security-Policy allows these scripts
alone, by hash. What data says is text or a number in a JSON block, never markup.
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
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from offline_cli.checked_keywords import checked
from offline_cli.checking.validate import validate
from offline_cli.choices import SOURCE_FORMAT, TABLE_MEMORY_LIMIT, EpisodeEnds
from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.errors import BadData, MissingPackage, NoData, OfflineCliError, UsageError, as_convert_would
from offline_cli.mean_interval import mean_interval
from offline_cli.printable_text import printable
from offline_cli.progress import OnProgress, no_progress
from offline_cli.reporting import figures as draw
from offline_cli.reporting import runs as of_runs
from offline_cli.reporting.curves import plotly_curves
from offline_cli.reporting.drawing import COLOURS, Json, colour, label, packed
from offline_cli.reporting.figures import Part
from offline_cli.reporting.signs import Sign, repeated, signs
from offline_cli.reporting.survey import Survey
from offline_cli.spaces import describe
from offline_cli.storage.locations import Location, Sources, open_location

PAGE: Final = b"<!doctype html"  # begins each page
TEMPLATE: Final = Path(__file__).with_name("page.html.j2")
DRAWN: Final = 200  # episodes in the browser, of all datasets
CELLS: Final = 1_000  # of all datasets in the table of channels
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
    _check_packages()
    places = [one if isinstance(one, Location) else open_location(one, storage_options) for one in given]
    names = of_runs.names_of([one.url for one in places])
    surveys = [
        Survey(name, colour(i), _as_words(place, options)) for i, (name, place) in enumerate(zip(names, places, strict=True))
    ]
    found, failures = list[Sign](), list[OfflineCliError]()
    for survey, source in zip(surveys, given, strict=True):
        found += _collected(survey, source, options, max(1, DRAWN // len(given)), failures)
    kept = [survey for survey in surveys if len(survey)]
    if given and not kept and not runs:
        if failures:
            raise failures[0]
        what, where = found[0].text if found else "no episodes", ", ".join(one.url for one in places)
        raise (BadData if found else NoData)(what, where=where, fix="see what offline-cli validate says")
    found += repeated(kept)
    found.sort(key=lambda one: ("error", "warning", "note").index(one.severity))
    folders = count(1)
    for one in found:
        one.command += f"-{next(folders)}" if one.command else ""  # a folder for each
    for survey, place in zip(surveys, places, strict=True):
        flagged = [number for one in found if one.source == survey.name for number in one.numbers[:LISTED]]
        dataset = Dataset.open(place) if flagged and not short and holds_dataset(place) else None
        survey.draw_flagged(flagged, dataset, DRAWN // 5)
        survey.facts = {"place": place.url, **survey.facts, **_counts(survey)}
    groups = of_runs.grouped(of_runs.read_runs(runs, storage_options))
    content = _page(surveys, kept, found, groups, is_short=short).encode("utf-8", "replace")
    of_runs.write_file(target, content)
    return ReportResult(
        out=target.url,
        bytes=len(content),
        datasets=len(surveys),
        runs=sum(len(group.runs) for group in groups),
        episodes=sum(map(len, surveys)),
        steps=sum(survey.steps for survey in surveys),
        problems=[one.as_dict() for one in found],
        seconds=round(time.monotonic() - began, 3),
    )


def check_page(out: Any, storage_options: Mapping[str, Any] | None = None, *, overwrite: bool = False) -> Location:
    """Where the page will be. Raises StorageError; OutputExists for a file there, but for a page that `overwrite` replaces."""
    target = open_location(out, storage_options or None)
    of_runs.check_free(target, overwrite, PAGE)
    return target


def _check_packages() -> None:
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        fix = "pip install 'offline-cli[report]'"
        raise MissingPackage(f"the package {error.name} is missing", where="report", fix=fix) from error


def _as_words(place: Location, options: Mapping[str, Any]) -> str:
    """A source and how it is read, as a shell takes it; empty where none does."""
    defaults = {"from_": SOURCE_FORMAT, "mapping": None, "rows_as_episodes": False, "episode_ends": None}
    words = [place.url]
    for key in (key for key, default in defaults.items() if options[key] != default):
        words += [f"--{key.rstrip('_').replace('_', '-')}", *([] if options[key] is True else [options[key]])]
    is_said = all(isinstance(one, str | os.PathLike) and os.fspath(one).isprintable() for one in words)
    return shlex.join(map(os.fspath, words)) if is_said else ""


# ---- reading ----


@np.errstate(all="ignore")  # of values near the largest float
def _collected(
    survey: Survey, source: Any, options: Mapping[str, Any], most: int, failures: list[OfflineCliError]
) -> list[Sign]:
    """What is wrong with one source, whose steps `survey` collects; `most`: episodes that are drawn.

    An error that ends the reading is one of the signs, and appended to `failures`.
    """
    from offline_cli.converting.reading import read_episodes
    from offline_cli.formats.tables import TableOptions

    reading = {key: options[key] for key in ("from_", "storage_options", "on_progress")}
    tables = {key: options[key] for key in ("mapping", "rows_as_episodes", "episode_ends", "temp_dir", "memory_limit")}
    problems, broken = validate(source, **reading, **tables).problems, list[Sign]()
    try:
        with read_episodes(source, **reading, tables=TableOptions.of(options), on_error="skip") as stream:
            survey.spaces = {Columns.OBS: stream.observation_space, Columns.ACTIONS: stream.action_space}
            survey.scale, survey.meanings = stream.action_scale, stream.meanings
            for batch in stream:
                survey.add(batch, most)
            inferred = " (inferred)" if stream.spaces_inferred else ""
            survey.facts = {
                "format": ", ".join(dict.fromkeys(stream.formats)),
                "environment": stream.environment.id if stream.environment else "not known",
                "observations": f"{describe(stream.observation_space)}{inferred}",
                "actions": f"{describe(stream.action_space)}, scale: {stream.action_scale}",
            }
    except OfflineCliError as error:
        if error.exit_code != BadData.exit_code:
            raise
        text = f"{error.what_in_one_line}. To do: {as_convert_would(error.fix)}. {error.where}"
        broken = [Sign("error", "Not read to the end", text, survey.name)]
        failures.append(error)
    if len(set(survey.modules)) > 1:
        survey.agents = survey.modules
    found = [*broken, *(Sign.of_problem(one, survey) for one in problems)]
    return [*found, *signs(survey)] if len(survey) else found


def _counts(survey: Survey) -> dict[str, str]:
    if not len(survey):
        return {"episodes": "none that could be read"}
    ends = {"terminated": survey["terminated"], "truncated": survey["truncated"] & ~survey["terminated"]}
    told = [f"{int(flags.sum()):,} {name}" for name, flags in ends.items() if flags.any()]
    facts = {"episodes": f"{len(survey):,}", "steps": f"{survey.steps:,}"}
    for name in ("return", "length"):
        mean, low, high, middle = (_number(f(survey[name])) for f in (np.mean, np.min, np.max, np.median))
        facts[name] = f"mean {mean}, from {low} to {high}, median {middle}"
    return {**facts, "ends": ", ".join(told) or "no end flag"}


# ---- the page ----


@np.errstate(all="ignore")
def _page(
    surveys: Sequence[Survey], kept: Sequence[Survey], found: Sequence[Sign], groups: Sequence[of_runs.Group], *, is_short: bool
) -> str:
    """The page, in the template's terms. `kept`: the surveys with episodes."""
    curves = [] if is_short else plotly_curves([group.curves for group in groups])
    plots = [] if is_short or not kept else _plots(kept)
    browsed = [] if is_short else _browsed(kept, {(one.source, number) for one in found for number in one.numbers})
    places = {(one["dataset"], one["number"]): place for place, one in enumerate(browsed)}
    problems = []
    for one in found[:MOST_SIGNS]:
        survey = next(each for each in surveys if each.name == one.source)
        named = [(survey.episode(at), places.get((one.source, at))) for at in one.numbers[:LISTED]]
        named = named or [(name, None) for name in one.episodes[:LISTED]]
        problems.append(one.as_dict() | {"more": len(one.episodes) - len(named), "episodes": named})
    data = {
        "plots": [one for _, one in (*plots, *curves)],
        "episodes": browsed,
        "names": [[label(one.name) for one in survey.channels] for survey in kept],
    }
    return _rendered(
        data,
        title=", ".join([*(survey.name for survey in surveys), *(group.name for group in groups)]),
        datasets=[{"name": survey.name, "shade": survey.shade, "facts": survey.facts} for survey in surveys],
        keys=list(dict.fromkeys(key for survey in surveys for key in survey.facts)),
        better=_better(kept, several=len(surveys) > 1),
        problems=problems,
        channels=_channels(kept),
        more_channels=max(0, max((len(one.channels) for one in kept), default=0) - CELLS // max(1, len(kept))),
        plots=[name for name, _ in plots],
        browsed=[(one["dataset"], one["label"]) for one in browsed],
        runs=[(group.name, colour(number)) for number, group in enumerate(groups)],
        results=of_runs.results(groups),
        curves=[name for name, _ in curves],
        differences=of_runs.differences(groups),
        is_short=is_short,
    )


def _rendered(data: Json, **context: Any) -> str:
    """The template with these texts. Hashes are of the scripts as a browser sees them."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    def shown(value: Any) -> Any:  # control characters and marks of direction are spelled out
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    how: Json = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(**how, finalize=shown)  # noqa: S701  # autoescape is among `how`
    environment.filters["number"] = _number
    scripts = [] if context["is_short"] else [get_plotlyjs(), TEMPLATE.with_name("page.js").read_text("utf-8")]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts]
    block = orjson.dumps(data).decode().replace("<", "\\u003c")  # so that no text ends the block
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    return template.render(context, scripts=scripts, policy=" ".join(hashes) or "'none'", data=block)


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float | np.number) else "" if value is None else str(value)


def _datasets(kept: Sequence[Survey]) -> list[Part]:
    return [Part(survey.name, survey.shade, survey, np.arange(len(survey))) for survey in kept]


def _agents(survey: Survey) -> list[Part]:
    """The agents or modules of one dataset; empty where there is one, or more than there are colours."""
    agents, names = np.array(survey.agents), sorted(set(survey.agents))
    if not 1 < len(names) <= len(COLOURS):
        return []
    return [Part(name or "-", colour(i), survey, np.flatnonzero(agents == name)) for i, name in enumerate(names)]


def _better(kept: Sequence[Survey], *, several: bool) -> list[str]:
    """Which dataset has the highest mean return, if they have the same channels, and which agent or module in each.

    `several`: datasets were given, of which not all may be kept.
    """
    kinds = {tuple((one.path, one.at) for one in survey.channels) for survey in kept}
    compared = [
        ("", _datasets(kept) if len(kinds) == 1 else []),
        *((f" in {survey.name}" if several else "", _agents(survey)) for survey in kept),
    ]
    sentences = []
    for where, parts in compared:
        found = [(*mean_interval(part.survey["return"][part.numbers]), part.name) for part in parts]
        means = sorted(((float(mean), float(half), name) for mean, half, name in found if np.isfinite(mean)), reverse=True)
        if len(means) > 1:
            (mean, half, name), (other, other_half, _) = means[:2]
            words = ", ".join(f"{name} {_number(mean)} ± {_number(half)}" for mean, half, name in means)
            sure = "and the intervals are apart" if mean - half > other + other_half else "but the intervals overlap"
            told = f"Mean return{where} with its 95% interval: {words}.".replace("± nan", "(one episode)")
            sentences.append(told if mean == other else f"{told} The highest is that of {name}, {sure}.")
    return sentences


def _plots(kept: Sequence[Survey]) -> list[tuple[str, Json]]:
    """Title and figure of each plot."""
    parts = (_agents(kept[0]) if len(kept) == 1 else []) or _datasets(kept)
    several = len(kept) > 1
    found = [
        ("Returns", draw.histogram(parts, "return", "return")),
        ("Lengths", draw.histogram(parts, "length", "steps")),
        ("Returns in the order of the data", draw.over_episodes(parts)),
        ("Coverage: sampled observations in two dimensions", draw.coverage(_datasets(kept))),
        *((f"Actions by episode{f': {one.name}' if several else ''}", draw.actions_by_episode(one)) for one in kept),
    ]
    return [(title, figure) for title, figure in found if figure is not None]


def _channels(kept: Sequence[Survey]) -> list[Json]:
    """A row for each channel, with a cell for each dataset that has it."""
    rows: dict[tuple[str, int | None], Json] = {}
    for survey in kept:
        _, t, values = survey.sample()
        for at, (channel, told) in enumerate(zip(survey.channels, survey.statistics(), strict=True)):
            row = rows.setdefault((channel.path, channel.at), {"name": channel.name, "unit": channel.unit, "cells": []})
            flags = _flags(told, channel, values[:, at])
            row["cells"].append({**told, "shade": survey.shade, "flags": flags, "t": t, "values": values[:, at]})
    shown = list(rows.values())[: max(1, CELLS // max(1, len(kept)))]
    for row in shown:
        known = [cell[end] for cell in row["cells"] for end in ("min", "max") if isinstance(cell[end], int | float)]
        ends = (min(known, default=0.0), max(known, default=1.0), max(np.quantile(cell["t"], 0.98) for cell in row["cells"]))
        for cell in row["cells"]:
            cell |= draw.small_plots(cell["t"], cell["values"], *ends)
    return shown


def _flags(told: Json, channel: Any, values: Any) -> list[str]:
    """What is odd about a channel with sampled values (S,)."""
    flags = [f"{told[key]:,} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if told[key]]
    if told["min"] == told["max"] and told["min"] is not None:
        return [*flags, "constant"]
    for bound, word in ((channel.low, "lower"), (channel.high, "upper")):
        share = float((values == bound).mean()) if math.isfinite(bound) else 0.0
        flags += [f"{share:.0%} at the {word} bound"] if share >= 0.01 else []
    return flags


def _browsed(kept: Sequence[Survey], flagged: set[tuple[str, int]]) -> list[Json]:
    """The episodes that are drawn, as long as they fit into the budget."""
    found, used = list[Json](), 0
    for place, survey in enumerate(kept):
        for at, why in survey.chosen(DRAWN).items():
            if (course := survey.courses.get(at)) is None:
                continue
            used += course.values.size * 6 + sum(map(len, course.frames))
            if used > BUDGET * (place + 1) / len(kept):
                break
            mark = " ⚠" if (survey.name, at) in flagged else ""
            text = f"{survey.episode(at)} ({why}: return {_number(survey['return'][at])}, {survey['length'][at]:,} steps){mark}"
            lines = {"y": [packed(one) for one in course.values.T], "every": course.every, "frames": course.frames}
            about = {"dataset": survey.name, "number": at, "id": printable(survey.ids[at]), "label": printable(text)}
            found.append({**about, "set": place, "shade": survey.shade, **lines})
    return found
