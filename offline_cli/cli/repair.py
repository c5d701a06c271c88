"""`offline-cli repair`: makes a folder that was left or damaged a dataset again. Parses, calls, shows what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from offline_cli.cli import options, render
from offline_cli.cli.progress import working

__all__ = ["EXAMPLES", "KEYS", "repair"]

KEYS = ("out", "episodes", "steps", "shards", "adopted", "dropped")
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli repair dataset --dry-run",
    "offline-cli repair s3://bucket/dataset",
    "offline-cli repair dataset --drop-broken",
    "offline-cli repair dataset --keep old",
    "offline-cli repair dataset --force-unlock",
)


def repair(
    ctx: typer.Context,
    out: Annotated[str, typer.Argument(metavar="D", help="Dataset folder: a path or URL.", show_default=False)],
    drop_broken: Annotated[
        bool,
        typer.Option(
            "--drop-broken", help="Leave out shards that are missing, unreadable, or not what the manifest's sha256 says."
        ),
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="old|new|GENERATION",
            help="Of a dataset that was being overwritten: the one that was there, or what there is of the new one. "
            "GENERATION: the 8 hex digits in the names of its shards.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="ENV", help=f"Environment whose spaces the data has, if nothing else says: {options.ENV_FORMS}."
        ),
    ] = None,
    force_unlock: Annotated[
        bool,
        typer.Option(
            "--force-unlock",
            help="Remove the writer's note, _writing.json, and nothing else; refused while it changes within 25 s, "
            "or its process runs on this machine.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")] = False,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Make a folder that a writer left, or that was damaged, a dataset again.

    Complete shards are adopted, half-written files and uploads dropped, and the manifest is built anew. Nothing that could hold
    an episode is deleted: what is not part of the dataset moves to quarantine/. Refused while a writer is at work.
    """
    from offline_cli.datasets.repair import repair as repair_dataset

    with working(quiet=quiet) as on_progress:
        result = repair_dataset(
            out,
            dry_run=dry_run,
            drop_broken=drop_broken,
            keep=keep,
            env=env,
            force_unlock=force_unlock,
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
            command=ctx.obj.recorded(),
        )
    render.show(result, as_json=as_json, summary=lambda told: list(_rows(told)))


def _rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
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
