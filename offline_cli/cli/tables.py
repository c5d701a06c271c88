"""Tables for results that need more than names and values; built from the keys of `--json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from offline_cli.cli import render
from offline_cli.cli.streams import printable, write

__all__ = [
    "comparison_markdown",
    "converted",
    "inspected",
    "show_closer",
    "show_comparison",
    "show_evaluations",
    "show_pieces",
    "show_seeds",
    "validated",
]

DRAWN: Final = ("columns", "first_episodes", "shown_episode", "dropped_columns")


def converted(told: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `convert`: with `--on-error skip`, rows are called skipped; dropped columns are in the reasons."""
    names = {"rows_quarantined": "rows_skipped"} if told["on_error"] == "skip" else {}
    rejected = [f"{one['where']}: {one['what']}" for one in told["rejected"]]
    shown = {**told, "rejected": rejected, "dropped_columns": None}
    return {names.get(name, name): value for name, value in shown.items()}


def inspected(told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and lengths as mean and range."""
    shown = {name: value for name, value in told.items() if name not in DRAWN}
    if told["wrong_shards"]:
        shown["complete"] = "yes, according to the manifest" if told["complete"] else False
        shown["try"] = "restore the files from a backup, or run offline-cli repair"
    for name in ("return", "length"):
        low, mean, high = (render.in_words(told[name].get(one)) for one in ("min", "mean", "max"))
        shown[name] = f"mean {mean}, from {low} to {high}"
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
        write(sys.stdout, "--deep shows columns, agents and modules\n")


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


# ---- seeds and comparisons ----


def show_seeds(told: Mapping[str, Any]) -> None:
    """Figures of each seed, and their mean, standard deviation and interval."""
    figures = list(told["intervals"])
    rows: list[Sequence[Any]] = [(seed, *(one[name] for name in figures)) for seed, one in told["seeds"].items()]
    heads = {"mean": "mean", "std": "std", "low": "95% low", "high": "95% high"}
    rows += [(head, *(told["intervals"][name][key] for name in figures)) for key, head in heads.items()]
    above = f"{told['run']}: {len(told['seeds'])} seeds, {told['updates']:,} updates in {told['seconds']:.1f} s"
    render.show_grid(("seed", *(name.replace("_", " ") for name in figures)), rows, above=above)


def show_evaluations(told: Mapping[str, Any]) -> None:
    """A row for each run, with its paired differences from the first."""
    head = ("run", "return mean", "± 95%", "length mean", "difference from the first", "episodes with a higher return")
    rows = []
    for name, one in told["runs"].items():
        paired = told["differences"].get(name)
        share = "" if paired is None else f"{paired['share_higher']:.0%}"
        rows.append((name, one["return_mean"], one["return_ci95"], one["length_mean"], _between(paired), share))
    render.show_grid(head, rows, above=f"{told['episodes']:,} episodes of {told['environment']}, seed {told['seed']}")


def show_comparison(told: Mapping[str, Any]) -> None:
    """A row for each algorithm, and notes."""
    head, rows = _comparison(told)
    render.show_grid(head, rows, above=_compared(told))
    for note in told["notes"]:
        write(sys.stdout, f"note: {printable(note)}\n")


def comparison_markdown(told: Mapping[str, Any]) -> str:
    """The same as Markdown; the best is bold."""
    from offline_cli.reporting.drawing import label

    def shown(text: str) -> str:
        return label(text).replace("|", "\\|")

    head, rows = _comparison(told)
    lines = [head, ["---"] * len(head)]
    for name, *cells in rows:
        lines.append([f"**{shown(name)}**" if name == told["best"] else shown(name), *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\nNote: {shown(note)}\n" for note in told["notes"])
    return f"{shown(_compared(told))}\n\n{table}\n{notes}"


def _compared(told: Mapping[str, Any]) -> str:
    scale = "normalised " if told["reference"] else ""
    tasks = f" on {', '.join(told['tasks'])}" if told["tasks"] != ["scores"] else ""  # runs and files that name no task
    return f"{scale}{told['metric']}{tasks}, with 95% intervals"


def _comparison(told: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Headings, and rows of texts."""
    first, has_success = next(iter(told["runs"])), any("success_rate" in one for one in told["runs"].values())
    aggregates = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
    aggregates |= {"success_rate": "success rate"} if has_success else {}
    head = ["algorithm", "runs", "mean", "std", *[*aggregates.values()][1:]]
    head += ["better than the first by", "P(better than the first)"] if told["differences"] else []
    rows = []
    for name, one in told["runs"].items():
        cells = [_between(one.get(key)) for key in aggregates]
        cells += [
            _between(told["differences"].get(name)),
            _between(told["probability_of_improvement"].get(name, {}).get(first)),
        ]
        cells.insert(1, "" if one["std"] is None else render.in_words(one["std"]))
        rows.append([name, str(one["runs"]), *cells][: len(head)])
    return head, rows


def _between(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return ""
    ends = [render.in_words(figure[end]) for end in ("low", "high")]
    return render.in_words(figure["value"]) + ("" if figure["low"] is None else f" [{ends[0]}, {ends[1]}]")
