"""`offline-cli inspect`: what recordings or a dataset hold; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.cli.stdin import with_stdin

__all__ = ["EXAMPLES", "KEYS", "inspect"]

KEYS = ("format", "episodes", "steps", "observation_space", "action_space", "return", "length")
"""What `--json` prints at least, kept for good."""

OF_EVERY_EPISODE = frozenset({"obs", "actions", "rewards"})
"""Columns that are no extra ones; `obs.position` is a part of the first."""

EXAMPLES = options.examples(
    "offline-cli inspect dataset",
    "offline-cli inspect recordings/ --json",
    "offline-cli inspect robot.csv --mapping robot.toml",
    "offline-cli inspect dataset --expect episodes=100 --expect steps=46184",
)


def inspect(
    sources: options.Sources,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="KEY=VALUE",
            help="Fail with exit code 7 unless the result has this value, such as episodes=100; may be repeated.",
            show_default=False,
        ),
    ] = None,
    from_: options.FromFormat = "auto",
    mapping: options.TableMapping = None,
    rows_as_episodes: options.RowsAsEpisodes = False,
    episode_ends: options.EpisodeEnds = None,
    temp_dir: options.TempDir = None,
    memory_limit: options.MemoryLimit = "1GiB",
    on_error: Annotated[
        Literal["fail", "skip"],
        typer.Option("--on-error", metavar="fail|skip", help="What an unreadable row does: end the command, or be counted."),
    ] = "fail",
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show what recordings or a dataset hold.

    A dataset's manifest answers at once; recordings of other formats are read from beginning to end.
    """
    from offline_cli.datasets.inspect import inspect as inspect_sources

    with with_stdin(sources) as places, working(quiet=quiet) as on_progress:
        result = inspect_sources(
            places,
            from_=from_,
            mapping=mapping,
            rows_as_episodes=rows_as_episodes,
            episode_ends=episode_ends,
            temp_dir=temp_dir,
            memory_limit=byte_size(memory_limit, option="--memory-limit"),
            on_error=on_error,
            expect=options.pairs(expect, option="--expect"),
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
        )
    render.show(result, as_json=as_json, summary=_summary)


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
