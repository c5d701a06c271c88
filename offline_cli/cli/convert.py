"""`offline-cli convert`: recordings of any known format into a dataset; parses, calls the library once, shows the result."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from offline_cli.cli import options, render
from offline_cli.cli.progress import working

__all__ = ["EXAMPLES", "KEYS", "convert"]

KEYS = (
    *("out", "episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched"),
    *("rows_quarantined", "assumptions", "seconds"),
)
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli convert recordings/ --out dataset",
    "offline-cli convert 'old/*.json.gz' --out dataset --on-error quarantine",
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
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Parquet files read at a time.")] = 4,
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"],
        typer.Option("--compression", metavar="zstd|snappy|gzip|brotli|lz4|none", help="Compression of the Parquet shards."),
    ] = "zstd",
    max_rows_per_file: Annotated[
        int | None, typer.Option("--max-rows-per-file", min=1, metavar="N", help="Begin a new shard after this many rows.")
    ] = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count everything, write nothing.")] = False,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Turn recordings into a dataset.

    Reads RLlib's episodes and columns, SampleBatch JSON and our own datasets, puts fragments of episodes together,
    drops exact duplicates, and counts whatever had to be assumed.
    """
    from offline_cli.converting.convert import convert as convert_sources

    with working(quiet=quiet) as on_progress:
        result = convert_sources(
            sources,
            out,
            to=to,
            from_=from_,
            env=env,
            action_scale=action_scale,
            on_error=on_error,
            limit=limit,
            workers=workers,
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            resume=resume,
            overwrite=overwrite,
            dry_run=dry_run,
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
            command=ctx.obj.recorded(),
        )
    render.show(result, as_json=as_json)
