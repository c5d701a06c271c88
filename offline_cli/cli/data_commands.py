"""`offline-cli convert`, `apply`, `inspect`, `validate` and `repair`: each parses, calls the library once, shows the result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.streams import can_show
from offline_cli.cli.texts import with_stdin
from offline_cli.errors import OfflineCliError
from offline_cli.options.data_commands import (
    ApplyFlags,
    ApplyOptions,
    ConvertFlags,
    ConvertOptions,
    InspectFlags,
    InspectOptions,
    RepairFlags,
    RepairOptions,
    ValidateFlags,
    ValidateOptions,
)

__all__ = ["COMMANDS"]

MAX_WRONG = 5  # shards that are named
OF_EVERY_EPISODE = frozenset({"obs", "actions", "rewards"})
"""Columns that are no extra ones; `obs.position` is a part of the first."""


def convert(ctx: typer.Context, flags: ConvertFlags, options: ConvertOptions) -> None:
    """Turn recordings into a dataset.

    Reads RLlib's episodes and columns, SampleBatch JSON, tables of anybody's steps (Parquet, Arrow, CSV, JSON lines) and our
    own datasets, puts fragments of episodes together, drops exact duplicates, and counts whatever had to be assumed.
    """
    from offline_cli.converting.convert import convert

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = convert(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=_converted)


def _list_formats(ctx: typer.Context) -> None:
    from offline_cli.converting.sink import known_formats

    found = known_formats()
    if ctx.obj.as_json:
        render.show(found, as_json=True)
        return
    kinds = (("--from", found.readers), ("--to", found.sinks))
    rows = [(option, one.name, one.words, one.package, one.keeps) for option, formats in kinds for one in formats]
    render.show_grid(("option", "name", "format", "package", "keeps"), rows)


def _label(name: str, told: Mapping[str, Any]) -> str:
    """Skipped rows are not kept, so they are not called quarantined; a repeated row is not an episode."""
    if name == "duplicates_dropped":
        return "duplicate_episodes_dropped"
    return "rows_skipped" if name == "rows_quarantined" and told["on_error"] == "skip" else name


def _converted(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done, or would be in a dry run."""
    apart = ["preview", "rejected", "rejected_in_all", "dropped_reasons", "on_error"]
    apart += ["episodes_appended"] if told["episodes_appended"] is None else []
    rows = {_label(name, told): value for name, value in told.items() if name not in apart}
    repeated = told["assumptions"].get("duplicate-row", 0)
    if repeated:  # such as those of a table that was given twice, which is one table: no episode of it comes twice
        rows["duplicate_rows_dropped"] = repeated
    rows["dropped_columns"] = render.with_reasons(told["dropped_reasons"])
    if told["episodes_lost"] is None:
        rows["episodes_lost"] = render.NOT_KNOWN
    rejected = enumerate(told["rejected"], 1)
    rows |= {f"rejected {number}": f"{one['where']}: {one['what']}" for number, one in rejected}
    more = told["rejected_in_all"] - len(told["rejected"])
    if more:
        kept = "all are in quarantine/" if told["on_error"] == "quarantine" else "--on-error quarantine keeps them all"
        rows["not listed"] = f"and {more:,} more; {kept}"
    shown = told["preview"]
    if shown is None:
        return rows
    first = shown["first_episode"]
    inferred = " (inferred)" if told["spaces_inferred"] else ""
    columns = {f"columns of table {number}": mapping for number, mapping in enumerate(shown["mappings"], 1)}
    return {
        **rows,
        "observations": shown["observation_space"] + inferred,
        "actions": shown["action_space"] + inferred,
        **columns,
        "first episode": {name: first[name] for name in ("eps_id", "length", "return", "terminated", "truncated") if first},
        **{f"its step {number}": step for number, step in enumerate(first.get("first_steps", ()))},
        "estimated size on disk": f"{shown['estimated_bytes'] / 1e6:,.2f} MB",
    }


def apply(ctx: typer.Context, flags: ApplyFlags, options: ApplyOptions) -> None:
    """Run a learner pipeline over recordings and write its train batches.

    Episodes come to the pipeline as train-bc gives them to it. Each batch is one file, of whole episodes; D2/batches.json,
    written last, says what they hold.
    """
    from offline_cli.applying.apply import apply

    as_json, is_traced = flags["as_json"], options.get("trace") is not None
    try:
        with with_stdin(flags["sources"] or []) as places, working(quiet=flags["quiet"]) as on_progress:
            result = apply(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    except OfflineCliError as error:
        if is_traced and error.result and not as_json:  # --json has the trace so far beside the error
            _show_traced(error.result)
        raise
    told = result.as_dict()
    if as_json or "pieces" not in told:
        render.show(result, as_json=as_json)
    elif is_traced:
        _show_traced(told)
    else:
        _show_pieces(told)


def _show_pieces(told: dict[str, Any]) -> None:
    from offline_cli.report.pipelines import shown

    inferred = " (spaces inferred)" if told["spaces_inferred"] else ""
    render.show_grid(*shown(told), above=[f"{told['pipeline']} for {', '.join(told['sources']) or 'no data'}{inferred}"])


def _show_traced(told: dict[str, Any]) -> None:
    from offline_cli.report.pipelines import traced

    ids = told["episodes"]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    head = f"{told['pipeline']} over {told['steps']:,} steps of {len(ids)} episodes: {', '.join(ids[:3])}{more}"
    render.show_grid(*traced(told), above=[head])


def inspect(ctx: typer.Context, flags: InspectFlags, options: InspectOptions) -> None:
    """Show what recordings or a dataset hold.

    A dataset's manifest answers at once; recordings of other formats are read from beginning to end.
    """
    from offline_cli.checking.inspect import inspect

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = inspect(places, **options, on_progress=on_progress)
    deep = options.get("deep", False)
    if flags["as_json"] or deep or (result.first_episodes is None and result.shown_episode is None):
        render.show(result, as_json=flags["as_json"], summary=_figures)
    if not flags["as_json"]:
        _show_closer(result.as_dict(), deep=deep)


def _show_closer(told: Mapping[str, Any], *, deep: bool) -> None:
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
        notes = [f"and {more:,} more columns or elements: --json has all"] if more else []
        if told["histograms"] is None:
            notes += ["return and length are drawn from quantiles; --deep reads the steps: histograms, agents, modules"]
        render.show_grid(*grid, below=notes)


def _letters() -> str:
    """The letters of sparklines that stdout can show."""
    from offline_cli.report.inspection import ASCII, BLOCKS

    return BLOCKS if can_show(sys.stdout, BLOCKS) else ASCII


def _figures(told: Mapping[str, Any]) -> dict[str, Any]:
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
        "extra columns": sorted(name for name in told["columns"] if name.partition(".")[0] not in OF_EVERY_EPISODE),
        "duplicate episodes dropped": told["duplicates_dropped"],
        "rows set aside": told["rows_quarantined"],
        "lost episodes": render.NOT_KNOWN if told["episodes_lost"] is None else told["episodes_lost"],
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


def validate(ctx: typer.Context, flags: ValidateFlags, options: ValidateOptions) -> None:
    """Look for everything that can be wrong with recordings or datasets.

    Nothing is changed. Exit code 3 where there is an error; warnings are what reading repairs or tolerates.
    """
    from offline_cli.checking.validate import validate

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = validate(places, **options, on_progress=on_progress)
    if result.passed or not flags["as_json"]:  # a failure under --json is one object, which the error boundary writes
        render.show(result, as_json=flags["as_json"], summary=lambda told: list(_problems(told)))
    result.check()


def _hashes(unchecked: int) -> str:
    whose = "that of 1 shard" if unchecked == 1 else f"those of {unchecked:,} shards"
    return f"{whose} not compared: see what is wrong with them"


def _problems(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Figures, then each problem in three lines."""
    yield "sources", told["sources"]
    yield "format", told["formats"]
    yield "episodes", told["episodes"]
    yield "steps", told["steps"]
    for name in ("agents", "modules"):
        if name in told:
            yield f"episodes by {name[:-1]}", told[name]
    if told["hashes_unchecked"]:
        yield "hashes", _hashes(told["hashes_unchecked"])
    for problem in told["problems"]:
        text = render.Lines((problem["what"], f"at:  {problem['where']}", f"try: {problem['fix']}"))
        yield f"{problem['severity']}: {problem['code']}", text
    yield "found", {name: told[name] for name in ("errors", "warnings", "notes")}


def repair(ctx: typer.Context, flags: RepairFlags, options: RepairOptions) -> None:
    """Make a folder that a writer left, or that was damaged, a dataset again.

    Complete shards are adopted, half-written files and uploads dropped, and the manifest is built anew. Nothing that could hold
    an episode is deleted: what is not part of the dataset moves to quarantine/. Refused while a writer is at work.
    """
    from offline_cli.checking.repair import repair

    with working(quiet=flags["quiet"]) as on_progress:
        result = repair(flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=lambda told: list(_touched(told)))


def _touched(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Figures, then every file that was, or would be, touched."""
    if told["dry_run"]:
        yield "dry_run", True
    for name in ("out", "format", "episodes", "steps", "shards", "adopted", "dropped", "complete", "resumable"):
        if told[name] is not None:
            yield name, told[name]
    would = "would be " if told["dry_run"] else ""
    for broken in told["broken"]:
        yield f"{would}left out", f"{broken['path']}: {broken['why']}"
    for file in told["removed"]:
        yield f"{would}removed", file
    for file in told["set_aside"]:
        yield f"{would}moved to quarantine", file
    if not told["changed"]:
        yield "changed", "nothing: there was no note" if told["format"] is None else "nothing: the dataset was whole"


COMMANDS = (
    Command(
        name="convert",
        run=convert,
        flags=ConvertFlags,
        options=ConvertOptions,
        first=("out", "mapping", "to", "on_error", "resume"),
        examples=(
            "offline-cli convert recordings/ --out dataset",
            "offline-cli convert 'old/*.json.gz' --out dataset --on-error quarantine",
            "offline-cli convert robot.csv --out dataset --mapping robot.toml",
            "offline-cli convert 'logs/*.parquet' --out dataset --mapping d4rl-table --action-scale env",
            "offline-cli convert s3://bucket/run --out dataset --to columns --storage-option anon=true",
            "offline-cli convert today/ --out dataset --append",
            "offline-cli convert recordings/ --out dataset --resume --json",
        ),
        at_once={"list_formats": _list_formats},
        keys=(
            *("out", "episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched"),
            *("rows_quarantined", "episodes_lost", "assumptions", "seconds"),
        ),
    ),
    Command(
        name="apply",
        run=apply,
        flags=ApplyFlags,
        options=ApplyOptions,
        first=("pipeline", "out", "format", "show", "trace"),
        examples=(
            "offline-cli apply dataset --pipeline pipeline.toml --out batches",
            "offline-cli apply dataset --pipeline pipeline.toml --out batches --format safetensors --steps-per-batch 4096",
            "offline-cli apply dataset --pipeline pipeline.toml --show",
            "offline-cli apply --env CartPole-v1 --pipeline pipeline.toml --show --json",
            "offline-cli apply recordings/ --pipeline pipeline.toml --trace 2",
        ),
        keys=("out", "batches", "rows", "columns"),  # with --show and --trace, `pieces` instead
    ),
    Command(
        name="inspect",
        run=inspect,
        flags=InspectFlags,
        options=InspectOptions,
        first=("deep", "head", "episode", "expect", "as_json"),
        examples=(
            "offline-cli inspect dataset",
            "offline-cli inspect dataset --deep",
            "offline-cli inspect dataset --head 10",
            "offline-cli inspect dataset --episode 3f2a9c01-17",
            "offline-cli inspect recordings/ --json",
            "offline-cli inspect robot.csv --mapping robot.toml",
            "offline-cli inspect dataset --expect episodes=100 --expect 'return.mean>=450'",
        ),
        keys=("format", "episodes", "steps", "observation_space", "action_space", "return", "length"),
    ),
    Command(
        name="validate",
        run=validate,
        flags=ValidateFlags,
        options=ValidateOptions,
        first=("strict", "deep", "env", "mapping", "as_json"),
        examples=(
            "offline-cli validate dataset",
            "offline-cli validate dataset --deep --strict",
            "offline-cli validate dataset --strict --allow-lost",
            "offline-cli validate recordings/ --env CartPole-v1 --json",
            "offline-cli validate robot.csv --mapping robot.toml",
        ),
        keys=("problems",),  # of a failure too, beside `error` and `exit_code`
    ),
    Command(
        name="repair",
        run=repair,
        flags=RepairFlags,
        options=RepairOptions,
        first=("drop_broken", "keep", "force_unlock", "dry_run", "as_json"),
        examples=(
            "offline-cli repair dataset --dry-run",
            "offline-cli repair s3://bucket/dataset",
            "offline-cli repair dataset --drop-broken",
            "offline-cli repair dataset --keep old",
            "offline-cli repair dataset --force-unlock",
        ),
        keys=("out", "episodes", "steps", "shards", "adopted", "dropped"),
    ),
)
