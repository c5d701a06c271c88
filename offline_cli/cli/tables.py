"""The results of commands as rows of a table, for people: names and values, from the keys of `--json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from offline_cli.cli import render
from offline_cli.cli.streams import can_show, write

__all__ = [
    *("compared", "converted", "evaluated", "inspected", "operated", "recorded", "repaired", "trained", "validated"),
    *("show_closer", "show_pieces", "show_trace"),
]

MAX_WRONG: Final = 5  # shards that are named
OF_EVERY_EPISODE: Final = frozenset({"obs", "actions", "rewards"})
"""Columns that are no extra ones; `obs.position` is a part of the first."""


def converted(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done, or would be in a dry run; skipped rows are not kept, so they are not called quarantined."""
    apart = {"preview", "rejected", "rejected_in_all", "dropped_reasons", "on_error"}
    apart |= {"episodes_appended"} if told["episodes_appended"] is None else set()
    names = {"duplicates_dropped": "duplicate_episodes_dropped"}
    names |= {"rows_quarantined": "rows_skipped"} if told["on_error"] == "skip" else {}
    rows = {names.get(name, name): value for name, value in told.items() if name not in apart}
    if repeated := told["assumptions"].get("duplicate-row", 0):  # of a table that was given twice, for instance
        rows["duplicate_rows_dropped"] = repeated
    rows["dropped_columns"] = render.with_reasons(told["dropped_reasons"])
    rows["episodes_lost"] = _lost(told)
    rows |= {f"rejected {number}": f"{one['where']}: {one['what']}" for number, one in enumerate(told["rejected"], 1)}
    if more := told["rejected_in_all"] - len(told["rejected"]):
        kept = "all are in quarantine/" if told["on_error"] == "quarantine" else "--on-error quarantine keeps them all"
        rows["not listed"] = f"and {more:,} more; {kept}"
    shown, inferred = told["preview"], " (inferred)" if told["spaces_inferred"] else ""
    if shown is None:
        return rows
    first = shown["first_episode"]
    return {
        **rows,
        "observations": shown["observation_space"] + inferred,
        "actions": shown["action_space"] + inferred,
        **{f"columns of table {number}": mapping for number, mapping in enumerate(shown["mappings"], 1)},
        "first episode": {name: first[name] for name in ("eps_id", "length", "return", "terminated", "truncated") if first},
        **{f"its step {number}": step for number, step in enumerate(first.get("first_steps", ()))},
        "estimated size on disk": f"{shown['estimated_bytes'] / 1e6:,.2f} MB",
    }


def _lost(told: Mapping[str, Any]) -> Any:
    return render.NOT_KNOWN if told["episodes_lost"] is None else told["episodes_lost"]


def show_pieces(told: dict[str, Any]) -> None:
    """The pieces of a pipeline with their spaces and columns."""
    from offline_cli.report.pipelines import shown

    inferred = " (spaces inferred)" if told["spaces_inferred"] else ""
    render.show_grid(*shown(told), above=[f"{told['pipeline']} for {', '.join(told['sources']) or 'no data'}{inferred}"])


def show_trace(told: dict[str, Any]) -> None:
    """What a batch holds after each piece."""
    from offline_cli.report.pipelines import traced

    ids = told["episodes"]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    head = f"{told['pipeline']} over {told['steps']:,} steps of {len(ids)} episodes: {', '.join(ids[:3])}{more}"
    render.show_grid(*traced(told), above=[head])


def inspected(told: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that fit a window: spaces in one line each, a spread instead of every quantile."""
    inferred = " (inferred)" if told["spaces_inferred"] else ""
    return {
        "format": told["format"],
        "sources": told["sources"],
        "complete": "yes, says the manifest" if told["complete"] and told["wrong_shards"] else told["complete"],
        **({} if told["shards"] is None else {"shards": _shards(told)}),
        "episodes": told["episodes"],
        "ended by": {name: told[name] for name in ("terminated", "truncated", "unfinished") if told[name]},
        "steps": told["steps"],
        "return": _spread(told, "return"),
        "length": _spread(told, "length"),
        "observations": told["observation_space_text"] + inferred,
        "actions": f"{told['action_space_text']}{inferred}, scale: {told['action_scale']}",
        **{
            f"categories of {one.get('name', path)}": dict(enumerate(one["categories"]))
            for path, elements in told["meanings"].items()
            for one in elements
            if "categories" in one
        },
        "environment": told["environment"],
        **({"episodes by agent": told["agents"]} if told["agents"] else {}),
        **({"episodes by module": told["modules"]} if told["modules"] else {}),
        **({"extra columns": _extras(told)} if told["columns"] else {}),
        "duplicate episodes dropped": told["duplicates_dropped"],
        "rows set aside": told["rows_quarantined"],
        "lost episodes": _lost(told),
        "assumptions": told["assumptions"],
        **({"dropped columns": render.with_reasons(told["dropped_reasons"])} if told["dropped_reasons"] else {}),
    }


def _shards(told: Mapping[str, Any]) -> str | render.Lines:
    """How many the manifest lists, and what is known of their files."""
    count, wrong = told["shards"], told["wrong_shards"]
    if wrong is None:
        return f"{count:,}, not looked at: validate reads them"
    if not wrong:
        return f"{count:,}, all there{'' if told['histograms'] else ', not read: validate reads them'}"
    more = [f"and {len(wrong) - MAX_WRONG:,} more"] if len(wrong) > MAX_WRONG else []
    fix = "restore the files from a copy, or see what offline-cli repair can keep"
    return render.Lines((f"{count:,}, of which {len(wrong):,} not as written:", *wrong[:MAX_WRONG], *more, f"try: {fix}"))


def _spread(told: Mapping[str, Any], name: str) -> str:
    """Mean, range and histogram, of a dataset from its quantiles."""
    from offline_cli.report.inspection import bars_of, sparkline, spread_of

    figures, counted = told[name], told["histograms"]
    low, mean, high = (render.in_words(figures.get(name)) for name in ("min", "mean", "max"))
    bars = sparkline(bars_of(counted[name] if counted else spread_of(figures)), _letters())
    return f"mean {mean}, from {low} to {high}  {bars}".rstrip()


def show_closer(told: Mapping[str, Any], *, deep: bool) -> None:
    """The episodes that were asked for; without them, or where the steps were read for them, statistics of all columns."""
    from offline_cli.report.inspection import columns_grid, episode_grids, head_grid

    asked = [name for name in ("first_episodes", "shown_episode") if told[name] is not None]
    if "first_episodes" in asked:
        render.show_grid(
            *head_grid(told["first_episodes"]), above=[f"first {len(told['first_episodes'])} of {told['episodes']:,} episodes"]
        )
    if "shown_episode" in asked:
        for grid in episode_grids(told, _letters()):
            render.show_grid(*grid)
    if (deep or not asked) and told["columns"]:
        grid, more = columns_grid(told, _letters())
        render.show_grid(*grid, below=[f"and {more:,} more columns or elements: --json has all"] if more else [])
    elif not asked:
        what = "return and length are drawn from quantiles; --deep reads the steps: columns, histograms, agents, modules"
        write(sys.stdout, f"{what}\n")


def _extras(told: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in told["columns"] if name.partition(".")[0] not in OF_EVERY_EPISODE)


def _letters() -> str:
    """The letters of sparklines that stdout can show."""
    from offline_cli.report.inspection import ASCII, BLOCKS

    return BLOCKS if can_show(sys.stdout, BLOCKS) else ASCII


def validated(told: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Figures, then each problem in three lines."""
    rows = [("sources", told["sources"]), ("format", told["formats"]), ("episodes", told["episodes"]), ("steps", told["steps"])]
    rows += [(f"episodes by {name[:-1]}", told[name]) for name in ("agents", "modules") if name in told]
    if told["hashes_unchecked"]:
        rows.append(("hashes", f"of {told['hashes_unchecked']:,} shards not compared: see what is wrong with them"))
    for problem in told["problems"]:
        text = render.Lines((problem["what"], f"at:  {problem['where']}", f"try: {problem['fix']}"))
        rows.append((f"{problem['severity']}: {problem['code']}", text))
    return [*rows, ("found", {name: told[name] for name in ("errors", "warnings", "notes")})]


def repaired(told: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Figures, then every file that was, or would be, touched."""
    rows: list[tuple[str, Any]] = [("dry_run", True)] if told["dry_run"] else []
    names = ("out", "format", "episodes", "steps", "shards", "adopted", "dropped", "complete", "resumable")
    rows += [(name, told[name]) for name in names if told[name] is not None]
    would = "would be " if told["dry_run"] else ""
    rows += [(f"{would}left out", f"{broken['path']}: {broken['why']}") for broken in told["broken"]]
    rows += [(f"{would}removed", file) for file in told["removed"]]
    rows += [(f"{would}moved to quarantine", file) for file in told["set_aside"]]
    if not told["changed"]:
        rows.append(("changed", "nothing: there was no note" if told["format"] is None else "nothing: the dataset was whole"))
    return rows


def recorded(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table, which name what is measured where there are several agents."""
    return _measured_on("agents' episodes", told) if told.get("games") is not None else told


def _measured_on(what: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """`told`, with figures of returns and lengths, and the number of episodes, by what they are of."""
    names = {"episodes": what}
    names |= {name: f"{name} of {what}" for name in told if name.startswith(("return_", "length_"))}
    return {names.get(name, name): value for name, value in told.items()}


def evaluated(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table, one for each agent of several."""
    agents = {
        f"return of {agent}": f"{one['return_mean']:.5g}, std {one['return_std']:.5g}, in {one['games']:,} games"
        for agent, one in told.get("return_by_agent", {}).items()
    }
    figures = {name: value for name, value in told.items() if name != "return_by_agent"}
    return {**_measured_on("games", figures), **agents} if agents else figures


def trained(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table; what was not measured is left out."""
    rows = {name: value for name, value in told.items() if value is not None and value not in ([], {}) and name != "modules"}
    rows |= {f"module {name}": f"{one['run']}, update {one['policy_update']}" for name, one in told.get("modules", {}).items()}
    return evaluated(rows)


def operated(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done, or would be in a dry run."""
    apart = ("undecided",) if not told.get("undecided") else ()
    rows = {name: value for name, value in told.items() if name not in (*apart, "parts")}
    for name, part in told.get("parts", {}).items():
        rows[f"part {name}"] = f"{part['episodes']:,} episodes, {part['steps']:,} steps: {part['out']}"
    return {**rows, "episodes_lost": _lost(told)}


def compared(told: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, then what differs."""
    counted = ("a", "b", "equal", "episodes_a", "episodes_b", "steps_a", "steps_b", "missing_in_a", "missing_in_b", "changed")
    rows = {name: told[name] for name in counted}
    rows |= {f"{kind}, first ids": list(ids) for kind, ids in told["ids"].items() if ids}
    if told["first"]:
        rows["first difference"] = {name: value for name, value in told["first"].items() if value is not None}
    rows |= {f"other {fact['column']}": f"{fact['a']} and {fact['b']}" for fact in told["facts"]}
    return {**rows, **{f"note {number}": note for number, note in enumerate(told["notes"], 1)}}
