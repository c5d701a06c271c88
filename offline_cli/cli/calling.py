"""Call the library function of a command with the command line's parameters, and show its result.

Piped input (`-`) is copied to a temporary file, because readers detect the format from the first bytes, and read again to infer
spaces. Messages and provenance call it `-`.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

import typer

from offline_cli.cli import render
from offline_cli.cli.progress import working
from offline_cli.cli.streams import is_terminal, write
from offline_cli.engines.ranks import is_first
from offline_cli.errors import NoData, UsageError

__all__ = ["call", "call_and_show", "keep_parameters_of", "show_result"]

OF_COMMANDS: Final = (
    "as_json",
    "quiet",
    "debug",
    "list_formats",
    "html",
    "markdown",
)  # not passed to library functions
SOURCES: Final = ("sources", "a", "b")  # parameters that may contain `-`
STDIN: Final = "-"

Summary = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Selects what to show from the keys of `--json`."""


def call(ctx: typer.Context, function: Callable[..., Any]) -> Any:
    """Call `function` with the parameters of the command; unset ones keep the function's defaults."""
    params = ctx.params
    given = {name: value for name, value in params.items() if name not in OF_COMMANDS and value not in (None, (), [])}
    if not is_first():  # with several training processes, only the first logs
        logging.disable(logging.WARNING)
    with _with_stdin(given) as given, working(quiet=params["quiet"] or not is_first()) as (on_progress, notes):
        ctx.meta["notes"] = notes
        known = {"on_progress": on_progress, "command": ctx.obj.recorded()}
        taken = signature(function).parameters
        return function(**given, **{name: value for name, value in known.items() if name in taken})


def keep_parameters_of(ctx: typer.Context, function: Callable[..., Any], *, how: str) -> None:
    """Drop the parameters that `function` does not take. Raises UsageError, with `how`, if any of them was given."""
    others = [one for one in ctx.command.params if one.name not in {*signature(function).parameters, *OF_COMMANDS}]
    given = [one.opts[0] for one in others if getattr(ctx.get_parameter_source(one.name or ""), "name", "") == "COMMANDLINE"]
    if wrong := [one for one in given if one.startswith("-")]:
        raise UsageError(f"{', '.join(wrong)} {how}", where=wrong[0], fix=f"leave out {', '.join(wrong)}")
    for one in others:
        ctx.params.pop(one.name or "", None)


def show_result(ctx: typer.Context, result: Any, summary: Summary = dict) -> None:
    """Write a result to stdout: as JSON with its notes, or the `summary` for people."""
    if not is_first():
        return
    values = dict(result.as_dict())
    if not ctx.params["as_json"]:
        render.show(summary(values))
        return
    if not isinstance(values.get("notes"), int):  # for validate it is a count
        values["notes"] = list(dict.fromkeys((*values.get("notes", ()), *ctx.meta.get("notes", ()))))
    write(sys.stdout, render.to_json(values))


def call_and_show(ctx: typer.Context, function: Callable[..., Any], summary: Summary = dict) -> None:
    """Call `function` and show its result."""
    show_result(ctx, call(ctx, function), summary)


@contextmanager
def _with_stdin(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`given` with a file in place of `-`. Raises UsageError without piped input, NoData for an empty pipe."""
    places = {name: given[name] for name in SOURCES if STDIN in _listed(given.get(name))}
    if not places:
        yield given
        return
    if sum(_listed(value).count(STDIN) for value in places.values()) > 1:
        raise UsageError("- is given twice", where="the sources", fix="give - once: a pipe can be read only once")
    if sys.stdin is None or is_terminal(sys.stdin):
        fix = "pipe JSON lines or CSV into the command, or name a file (./- for a file called -)"
        raise UsageError("- means piped input, but nothing is piped in", where="stdin", fix=fix)
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder:
        piped = _kept(Path(folder) / "stdin")
        for name, value in places.items():
            places[name] = piped if value == STDIN else [piped if one == STDIN else one for one in value]
        yield {**given, **places}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _kept(file: Path) -> Any:
    """Copy piped input to a file whose location is called `-`."""
    from offline_cli.storage.locations import Location, open_location

    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    if not file.stat().st_size:
        fix = "check the output of the command before the pipe"
        raise NoData("the pipe is empty", where="stdin", fix=fix)
    place = open_location(file)
    return Location(place.fs, place.path, STDIN)
