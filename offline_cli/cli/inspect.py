"""`offline-cli inspect`: what recordings or a dataset hold; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.options.datasets import InspectFlags, InspectOptions

__all__ = ["COMMAND"]

OF_EVERY_EPISODE = frozenset({"obs", "actions", "rewards"})
"""Columns that are no extra ones; `obs.position` is a part of the first."""


def run(ctx: typer.Context, flags: InspectFlags, options: InspectOptions) -> None:
    """Show what recordings or a dataset hold.

    A dataset's manifest answers at once; recordings of other formats are read from beginning to end.
    """
    from offline_cli.checking.inspect import inspect

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = inspect(places, **options, on_progress=on_progress)
    render.show(result, as_json=flags["as_json"], summary=_summary)


COMMAND = Command(
    name="inspect",
    run=run,
    flags=InspectFlags,
    options=InspectOptions,
    first=("mapping", "from_", "on_error", "expect", "as_json"),
    examples=(
        "offline-cli inspect dataset",
        "offline-cli inspect recordings/ --json",
        "offline-cli inspect robot.csv --mapping robot.toml",
        "offline-cli inspect dataset --expect episodes=100 --expect steps=46184",
    ),
    keys=("format", "episodes", "steps", "observation_space", "action_space", "return", "length"),
)


def _summary(told: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that fit a window: spaces in one line each, a spread instead of every quantile, no statistics per column."""
    inferred = " (inferred)" if told["spaces_inferred"] else ""
    return {
        "format": told["format"],
        "sources": told["sources"],
        "complete": told["complete"],
        "episodes": told["episodes"],
        "ended by": {name: told[name] for name in ("terminated", "truncated", "unfinished") if told[name]},
        "steps": told["steps"],
        "return": _spread(told["return"]),
        "length": _spread(told["length"]),
        "observations": told["observation_space_text"] + inferred,
        "actions": f"{told['action_space_text']}{inferred}, scale: {told['action_scale']}",
        "environment": told["environment"],
        **({"episodes by module": told["modules"]} if told["modules"] else {}),
        "extra columns": sorted(name for name in told["columns"] if name.partition(".")[0] not in OF_EVERY_EPISODE),
        "duplicate episodes dropped": told["duplicates_dropped"],
        "unreadable rows": told["rows_quarantined"],
        "lost episodes": render.NOT_KNOWN if told["episodes_lost"] is None else told["episodes_lost"],
        "assumptions": told["assumptions"],
        **({"dropped columns": render.with_reasons(told["dropped_reasons"])} if told["dropped_reasons"] else {}),
    }


def _spread(figures: Mapping[str, Any]) -> str:
    low, mean, high = (render.in_words(figures.get(name)) for name in ("min", "mean", "max"))
    return f"mean {mean}, from {low} to {high}"
