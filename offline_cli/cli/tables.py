"""Tables for results that need more than names and values; built from the keys of `--json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.cli import render
from offline_cli.cli.streams import write

__all__ = ["converted", "inspected", "show_closer", "show_pieces", "validated"]

DRAWN: Final = ("columns", "histograms", "first_episodes", "shown_episode", "dropped_columns")


def converted(told: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `convert`: with `--on-error skip`, rows are called skipped; dropped columns are in the reasons."""
    names = {"rows_quarantined": "rows_skipped"} if told["on_error"] == "skip" else {}
    rejected = [f"{one['where']}: {one['what']}" for one in told["rejected"]]
    shown = {**told, "rejected": rejected, "dropped_columns": None}
    return {names.get(name, name): value for name, value in shown.items()}


def inspected(told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and lengths as mean, range and histogram, which is estimated from quantiles unless steps were read."""
    from offline_cli.reporting.inspection import bars_of, sparkline, spread_of

    shown = {name: value for name, value in told.items() if name not in DRAWN}
    if told["wrong_shards"]:
        shown["complete"] = "yes, according to the manifest" if told["complete"] else False
        shown["try"] = "restore the files from a backup, or run offline-cli repair"
    for name in ("return", "length"):
        figures, counted = told[name], told["histograms"]
        low, mean, high = (render.in_words(figures.get(one)) for one in ("min", "mean", "max"))
        bars = sparkline(bars_of(counted[name] if counted else spread_of(figures)))
        shown[name] = f"mean {mean}, from {low} to {high}  {bars}".rstrip()
    return shown


def show_closer(told: Mapping[str, Any], *, deep: bool) -> None:
    """The requested episodes; without any, or with `deep`, statistics of all columns."""
    from offline_cli.reporting.inspection import columns_grid, episode_grids, head_grid

    first, one = told["first_episodes"], told["shown_episode"]
    if first is not None:
        render.show_grid(*head_grid(first), above=f"first {len(first)} of {told['episodes']:,} episodes")
    for grid in episode_grids(one, told["meanings"]) if one is not None else ():
        render.show_grid(*grid)
    asked = first is not None or one is not None
    if (deep or not asked) and told["columns"]:
        grid, more = columns_grid(told)
        render.show_grid(*grid)
        write(sys.stdout, f"and {more:,} more columns or elements: --json has all\n" if more else "")
    elif not asked:
        what = "return and length are estimated from quantiles; --deep shows columns, histograms, agents and modules"
        write(sys.stdout, f"{what}\n")


def validated(told: Mapping[str, Any]) -> dict[str, Any]:
    """Each problem as what, at and try, below its severity and code."""
    problems = {
        f"{one['severity']} {number}, {one['code']}": {"what": one["what"], "at": one["where"], "try": one["fix"]}
        for number, one in enumerate(told["problems"], 1)
    }
    return {**{name: value for name, value in told.items() if name != "problems"}, "problems": problems}


def show_pieces(told: Mapping[str, Any], *, traced: bool) -> None:
    """The pieces of a pipeline: their spaces or, with `traced`, the batch after each."""
    from offline_cli.reporting.pipelines import pieces_grid

    ids = told["episodes"]
    episodes = f"{told['steps']:,} steps, episodes: {len(ids):,}, first: {ids[0]}" if ids else "no data"
    inferred = " (spaces inferred)" if told["spaces_inferred"] else ""
    render.show_grid(*pieces_grid(told, traced=traced), above=f"{told['pipeline']} over {episodes}{inferred}")
