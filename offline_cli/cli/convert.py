"""`offline-cli convert`: recordings of any known format into a dataset; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.cli.stdin import with_stdin

__all__ = ["EXAMPLES", "KEYS", "convert"]

KEYS = (
    *("out", "episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched"),
    *("rows_quarantined", "episodes_lost", "assumptions", "seconds"),
)
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli convert recordings/ --out dataset",
    "offline-cli convert 'old/*.json.gz' --out dataset --on-error quarantine",
    "offline-cli convert robot.csv --out dataset --mapping robot.toml",
    "offline-cli convert 'logs/*.parquet' --out dataset --mapping d4rl-table --action-scale env",
    "offline-cli convert s3://bucket/run --out dataset --to columns --storage-option anon=true",
    "offline-cli convert recordings/ --out dataset --resume --json",
)


def convert(
    ctx: typer.Context,
    sources: options.Sources,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="D", help="Dataset folder to make: a path or URL.", show_default=False)
    ],
    to: Annotated[
        Literal["episodes", "columns"],
        typer.Option(
            "--to", metavar="episodes|columns", help="One row per episode, packed; or one row per step, for any Parquet tool."
        ),
    ] = "episodes",
    from_: options.FromFormat = "auto",
    mapping: options.TableMapping = None,
    rows_as_episodes: options.RowsAsEpisodes = False,
    episode_ends: options.EpisodeEnds = None,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help=f"Source of spaces for recordings without any: {options.ENV_FORMS}."),
    ] = None,
    action_scale: options.ActionScale = None,
    on_error: Annotated[
        Literal["fail", "skip", "quarantine"],
        typer.Option(
            "--on-error",
            metavar="fail|skip|quarantine",
            help="What an unreadable row does: end the command, be counted, or be set aside with reason and place.",
        ),
    ] = "fail",
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after this many episodes.")] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Parquet files read at a time; processes for much JSON.")
    ] = 4,
    temp_dir: options.TempDir = None,
    memory_limit: options.MemoryLimit = "1GiB",
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"],
        typer.Option("--compression", metavar="zstd|snappy|gzip|brotli|lz4|none", help="Compression of the Parquet shards."),
    ] = "zstd",
    max_rows_per_file: Annotated[
        int | None, typer.Option("--max-rows-per-file", min=1, metavar="N", help="Begin a new shard after this many rows.")
    ] = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count everything, show what would be written, write nothing.")
    ] = False,
    cache: options.CacheFolder = None,
    cache_size: options.CacheSize = None,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Turn recordings into a dataset.

    Reads RLlib's episodes and columns, SampleBatch JSON, tables of anybody's steps (Parquet, Arrow, CSV, JSON lines) and our
    own datasets, puts fragments of episodes together, drops exact duplicates, and counts whatever had to be assumed.
    """
    from offline_cli.converting.convert import convert as convert_sources

    with with_stdin(sources) as places, working(quiet=quiet) as on_progress:
        result = convert_sources(
            places,
            out,
            to=to,
            from_=from_,
            env=env,
            action_scale=action_scale,
            on_error=on_error,
            limit=limit,
            workers=workers,
            mapping=mapping,
            rows_as_episodes=rows_as_episodes,
            episode_ends=episode_ends,
            temp_dir=temp_dir,
            memory_limit=byte_size(memory_limit, option="--memory-limit"),
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            resume=resume,
            overwrite=overwrite,
            dry_run=dry_run,
            storage_options=options.storage_options(storage_option, cache=cache, cache_size=cache_size),
            on_progress=on_progress,
            command=ctx.obj.recorded(),
        )
    render.show(result, as_json=as_json, summary=_summary)


def _label(name: str, told: Mapping[str, Any]) -> str:
    """Rows that were skipped are kept nowhere, and not called quarantined; a row that stands there twice is no episode."""
    if name == "duplicates_dropped":
        return "duplicate_episodes_dropped"
    return "rows_skipped" if name == "rows_quarantined" and told["on_error"] == "skip" else name


def _summary(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done; of a dry run, what would be."""
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
