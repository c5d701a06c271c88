"""`offline-cli validate`: what is wrong with recordings or datasets; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.options.datasets import ValidateFlags, ValidateOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: ValidateFlags, options: ValidateOptions) -> None:
    """Look for everything that can be wrong with recordings or datasets.

    Nothing is changed. Exit code 3 where there is an error; warnings are what reading repairs or bears.
    """
    from offline_cli.checking.validate import validate

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = validate(places, **options, on_progress=on_progress)
    if result.passed or not flags["as_json"]:  # a failure under --json is one object, which the error boundary writes
        render.show(result, as_json=flags["as_json"], summary=lambda told: list(_rows(told)))
    result.check()


COMMAND = Command(
    name="validate",
    run=run,
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
)


def _hashes(unchecked: int) -> str:
    whose = "that of 1 shard" if unchecked == 1 else f"those of {unchecked:,} shards"
    return f"{whose} not compared: see what is wrong with them"


def _rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Figures, then each problem in three lines."""
    yield "sources", told["sources"]
    yield "format", told["formats"]
    yield "episodes", told["episodes"]
    yield "steps", told["steps"]
    if told["hashes_unchecked"]:
        yield "hashes", _hashes(told["hashes_unchecked"])
    for problem in told["problems"]:
        text = render.Lines((problem["what"], f"at:  {problem['where']}", f"try: {problem['fix']}"))
        yield f"{problem['severity']}: {problem['code']}", text
    yield "found", {name: told[name] for name in ("errors", "warnings", "notes")}
