"""`offline-cli convert`: recordings of any known format into a dataset; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.options.datasets import ConvertFlags, ConvertOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: ConvertFlags, options: ConvertOptions) -> None:
    """Turn recordings into a dataset.

    Reads RLlib's episodes and columns, SampleBatch JSON, tables of anybody's steps (Parquet, Arrow, CSV, JSON lines) and our
    own datasets, puts fragments of episodes together, drops exact duplicates, and counts whatever had to be assumed.
    """
    from offline_cli.converting.convert import convert

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = convert(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=_summary)


def _list_formats(ctx: typer.Context) -> None:
    from offline_cli.converting.sink import known_formats

    found = known_formats()
    if ctx.obj.as_json:
        render.show(found, as_json=True)
        return
    kinds = (("--from", found.readers), ("--to", found.sinks))
    rows = [(option, one.name, one.words, one.package) for option, formats in kinds for one in formats]
    render.show_grid(("option", "name", "format", "package"), rows)


COMMAND = Command(
    name="convert",
    run=run,
    flags=ConvertFlags,
    options=ConvertOptions,
    first=("out", "mapping", "to", "on_error", "resume"),
    examples=(
        "offline-cli convert recordings/ --out dataset",
        "offline-cli convert 'old/*.json.gz' --out dataset --on-error quarantine",
        "offline-cli convert robot.csv --out dataset --mapping robot.toml",
        "offline-cli convert 'logs/*.parquet' --out dataset --mapping d4rl-table --action-scale env",
        "offline-cli convert s3://bucket/run --out dataset --to columns --storage-option anon=true",
        "offline-cli convert recordings/ --out dataset --resume --json",
    ),
    at_once={"list_formats": _list_formats},
    keys=(
        *("out", "episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched"),
        *("rows_quarantined", "episodes_lost", "assumptions", "seconds"),
    ),
)


def _label(name: str, told: Mapping[str, Any]) -> str:
    """Skipped rows are not kept, so they are not called quarantined; a repeated row is not an episode."""
    if name == "duplicates_dropped":
        return "duplicate_episodes_dropped"
    return "rows_skipped" if name == "rows_quarantined" and told["on_error"] == "skip" else name


def _summary(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done, or would be in a dry run."""
    apart = ("preview", "rejected", "rejected_in_all", "dropped_reasons", "on_error")
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
