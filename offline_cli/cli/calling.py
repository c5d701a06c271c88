"""Calls the library function of a command with what the command line gave, and shows its result.

A pipe can be read once and not backwards, while readers look at the beginning to detect the format, and read again where they
infer spaces. So the bytes of `-`, piped input, wait in a temporary file. Messages and provenance call it `-`.
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

__all__ = ["call", "call_and_show", "show_result"]

OF_COMMANDS: Final = (
    "as_json",
    "quiet",
    "debug",
    "cache",
    "cache_size",
    "list_formats",
    "markdown",
)  # no keywords of functions
SOURCES: Final = ("sources", "a", "b")  # keywords that `-` may be among
STDIN: Final = "-"

Summary = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What people are shown of the keys of `--json`."""


def call(ctx: typer.Context, function: Callable[..., Any]) -> Any:
    """Call `function` with the parameters of the command; those not given keep the function's defaults."""
    params = ctx.params
    given = {name: value for name, value in params.items() if name not in OF_COMMANDS and value not in (None, (), [])}
    cache = {name: params[name] for name in ("cache", "cache_size") if params.get(name) is not None}
    if cache:
        if "cache" not in cache:
            raise UsageError("--cache-size without --cache", where="--cache-size", fix="name the folder with --cache DIR")
        given["storage_options"] = {**given.get("storage_options", {}), **cache}
    if not is_first():  # of processes that train together, one speaks
        logging.disable(logging.WARNING)
    with _with_stdin(given) as given, working(quiet=params["quiet"] or not is_first()) as (on_progress, notes):
        ctx.meta["notes"] = notes
        known = {"on_progress": on_progress, "command": ctx.obj.recorded()}
        taken = signature(function).parameters
        return function(**given, **{name: value for name, value in known.items() if name in taken})


def show_result(ctx: typer.Context, result: Any, summary: Summary = dict) -> None:
    """Write a result on stdout: as JSON with its notes, or as `summary` formats it for people."""
    if not is_first():
        return
    told = dict(result.as_dict())
    if not ctx.params["as_json"]:
        render.show(summary(told))
        return
    if not isinstance(told.get("notes"), int):  # which is how many validate found
        told["notes"] = list(dict.fromkeys((*told.get("notes", ()), *ctx.meta.get("notes", ()))))
    write(sys.stdout, render.to_json(told))


def call_and_show(ctx: typer.Context, function: Callable[..., Any], summary: Summary = dict) -> None:
    """Call `function` and show its result."""
    show_result(ctx, call(ctx, function), summary)


@contextmanager
def _with_stdin(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`given` with a file in place of `-`. Raises UsageError where nothing is piped in, NoData for an empty pipe."""
    places = {name: given[name] for name in SOURCES if STDIN in _listed(given.get(name))}
    if not places:
        yield given
        return
    if sum(_listed(value).count(STDIN) for value in places.values()) > 1:
        raise UsageError("- is given twice", where="the sources", fix="a pipe can be read once: leave one out")
    if sys.stdin is None or is_terminal(sys.stdin):
        fix = "pipe JSON lines or CSV into the command, or name a file (./- for one that is called so)"
        raise UsageError("- stands for piped input, and nothing is piped in", where="stdin", fix=fix)
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder:
        piped = _kept(Path(folder) / "stdin")
        for name, value in places.items():
            places[name] = piped if value == STDIN else [piped if one == STDIN else one for one in value]
        yield {**given, **places}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _kept(file: Path) -> Any:
    """Piped input as a file that is called `-`."""
    from offline_cli.storage.locations import Location, open_location

    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    if not file.stat().st_size:
        fix = "check that the command before the pipe wrote anything"
        raise NoData("nothing came through the pipe", where="stdin", fix=fix)
    place = open_location(file)
    return Location(place.fs, place.path, STDIN)
