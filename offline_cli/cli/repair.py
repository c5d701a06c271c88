"""`offline-cli repair`: makes a folder that was left or damaged a dataset again. Parses, calls, shows what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.options.datasets import RepairFlags, RepairOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: RepairFlags, options: RepairOptions) -> None:
    """Make a folder that a writer left, or that was damaged, a dataset again.

    Complete shards are adopted, half-written files and uploads dropped, and the manifest is built anew. Nothing that could hold
    an episode is deleted: what is not part of the dataset moves to quarantine/. Refused while a writer is at work.
    """
    from offline_cli.checking.repair import repair

    with working(quiet=flags["quiet"]) as on_progress:
        result = repair(flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=lambda told: list(_rows(told)))


COMMAND = Command(
    name="repair",
    run=run,
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
)


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
