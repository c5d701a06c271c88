"""Calls the library function of a command with what the command line gave, and shows its result.

A pipe can be read once and not backwards, while readers look at the beginning to detect the format, and read again where they
infer spaces. So the bytes of `-`, piped input, wait in a temporary file. Messages and provenance call it `-`.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

import typer

from offline_cli.cli import render
from offline_cli.cli.progress import working
from offline_cli.cli.streams import is_terminal
from offline_cli.cli.values import with_cache
from offline_cli.engines.ranks import is_first
from offline_cli.errors import NoData, UsageError

__all__ = ["call", "call_and_show", "show_result"]

OF_COMMANDS: Final = ("as_json", "quiet", "debug", "cache", "cache_size", "list_formats")  # no keywords of functions
STDIN: Final = "-"
CHUNK: Final = 1 << 20  # bytes


def call(ctx: typer.Context, function: Callable[..., Any]) -> Any:
    """What `function` returns for the parameters of the command; those that were not given are left to its defaults."""
    params = ctx.params
    given = {name: value for name, value in params.items() if name not in OF_COMMANDS and value not in (None, (), [])}
    if "cache" in params:
        found = with_cache(given.pop("storage_options", None), params["cache"], params["cache_size"])
        given |= {"storage_options": found} if found else {}
    if not is_first():  # of processes that train together, one speaks
        logging.disable(logging.WARNING)
    quiet = params["quiet"] or not is_first()
    with _with_stdin(given) as given, working(quiet=quiet) as display:
        ctx.meta["notes"] = display.notes
        known = {"on_progress": display.on_progress, "command": ctx.obj.recorded()}
        taken = signature(function).parameters
        return function(**given, **{name: value for name, value in known.items() if name in taken})


def show_result(ctx: typer.Context, result: Any, summary: render.Summary = dict) -> None:
    """Write a result on stdout: all of it with its notes as JSON, or for people what `summary` makes of it."""
    if not is_first():
        return
    told = dict(result.as_dict())
    if ctx.params["as_json"] and not isinstance(told.get("notes"), int):  # which is how many validate found
        told["notes"] = list(dict.fromkeys((*told.get("notes", ()), *ctx.meta.get("notes", ()))))
    render.show(told, as_json=ctx.params["as_json"], summary=summary)


def call_and_show(ctx: typer.Context, function: Callable[..., Any], summary: render.Summary = dict) -> None:
    """Both."""
    show_result(ctx, call(ctx, function), summary)


@contextmanager
def _with_stdin(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`given` with a file in place of `-`. Raises UsageError where nothing is piped in, NoData for an empty pipe."""
    names = [name for name in ("sources", "a", "b") if name in given]
    count = sum(_listed(given[name]).count(STDIN) for name in names)
    if not count:
        yield dict(given)
        return
    if count > 1:
        raise UsageError("- is given twice", where="the sources", fix="a pipe can be read once: leave one out")
    if sys.stdin is None or is_terminal(sys.stdin):
        fix = "pipe JSON lines or CSV into the command, or name a file (./- for one that is called so)"
        raise UsageError("- stands for piped input, and nothing is piped in", where="stdin", fix=fix)
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder:
        piped = _kept(Path(folder) / "stdin")
        placed = {name: [piped if one == STDIN else one for one in _listed(given[name])] for name in names}
        yield {**given, **{name: found if name == "sources" else found[0] for name, found in placed.items()}}


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _kept(file: Path) -> Any:
    from offline_cli.storage.locations import Location, open_location

    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, CHUNK)
    if not file.stat().st_size:
        fix = "check that the command before the pipe wrote anything"
        raise NoData("nothing came through the pipe", where="stdin", fix=fix)
    place = open_location(file)
    return Location(place.fs, place.path, STDIN)
