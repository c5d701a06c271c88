"""Values of options that a command line writes as text (pairs, JSON objects, storage options), and `-`, piped input.

A pipe can be read once and not backwards, while readers look at the beginning to detect the format, and read again where they
infer spaces. So the bytes of `-` wait in a temporary file, which is removed at the end, however the command ends. Messages and
provenance call it `-`. A terminal as input, and `-` twice, are usage errors.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from offline_cli.byte_sizes import byte_size
from offline_cli.cli.streams import is_terminal
from offline_cli.errors import BadConfig, NoData, UsageError

if TYPE_CHECKING:
    from offline_cli.storage.locations import Location

__all__ = [
    "STDIN",
    "STORAGE_OPTION",
    "comparisons",
    "json_object",
    "pairs",
    "settings",
    "storage_options",
    "whole_numbers",
    "with_stdin",
]

STORAGE_OPTION: Final = "--storage-option"  # its values may be secrets

COMPARISON: Final = re.compile(r"([^<>=!~]*)([<>=!~]+)(.*)", re.DOTALL)
STDIN = "-"
CHUNK = 1 << 20  # bytes
MAX_DIGITS: Final = 9


def pairs(given: Sequence[str] | None, *, option: str) -> dict[str, str]:
    """`["a=1", "b=x"]` as `{"a": "1", "b": "x"}`. Raises UsageError naming the ones that are not KEY=VALUE, or given twice."""
    found: dict[str, str] = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{_shown(pair, option)} is not KEY=VALUE", where=option, fix=f"for example {option} key=value")
        if key.strip() in found:
            raise UsageError(f"{key.strip()} is given twice", where=option, fix="one value for each key")
        found[key.strip()] = value
    return found


def settings(given: Sequence[str], *, option: str) -> dict[str, Any]:
    """`["a=0.1", "b=true", "c=x"]` as `{"a": 0.1, "b": True, "c": "x"}`. Raises UsageError as `pairs` does."""
    return {key: _of_toml(text) for key, text in pairs(given, option=option).items()}


def _of_toml(text: str) -> Any:
    """The number, boolean, text or list that TOML reads; any other text is itself."""
    import tomllib

    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 and isinstance(found["value"], (bool, int, float, str, list)) else text


def comparisons(given: Sequence[str], *, option: str) -> dict[str, str]:
    """`["a=1", "b>=2"]` as `{"a": "1", "b>=": "2"}`; whoever takes it knows the orders. Raises UsageError as `pairs` does."""
    found: dict[str, str] = {}
    wrong = []
    for text in given:
        match = COMPARISON.fullmatch(text)
        name, order, value = (part.strip() for part in match.groups()) if match else ("", "", "")
        key = f"{name}{'' if order in ('=', '==') else order}"
        if not name:
            wrong.append(f"{text!r} is not KEY=VALUE, KEY>=VALUE or KEY<=VALUE")
        elif key in found:
            wrong.append(f"{key} is given twice")
        found[key] = value
    if wrong:
        raise UsageError("; ".join(wrong), where=option, fix=f"for example {option} 'key>=10'; one value for each")
    return found


def whole_numbers(given: str, *, option: str) -> tuple[int, ...]:
    """`"256,256"` as `(256, 256)`. Raises UsageError, naming what is no whole number; an empty list is none either."""
    parts = [part.strip() for part in given.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS)]
    if wrong:
        what = f"{wrong[0]!r} in {given!r} is not a whole number" if given.strip() else "no numbers are given"
        raise UsageError(what, where=option, fix=f"for example {option} 256,256")
    return tuple(map(int, parts))


def _shown(pair: str, option: str) -> str:
    """What was given; only the first letters of a storage option, which may be a secret."""
    return repr(pair) if option != STORAGE_OPTION or len(pair) < 4 else repr(f"{pair[:3]}...")


def storage_options(
    given: Sequence[str] | None, *, cache: str | None = None, cache_size: str | None = None
) -> Mapping[str, Any] | None:
    """Storage options by name, None without any; `anon=true` is a bool, `key='"007"'` a string.

    `cache`, `cache_size`: as --cache and --cache-size give them, which win. Raises UsageError.
    """
    found = {key: _value(text) for key, text in pairs(given, option=STORAGE_OPTION).items()}
    if cache is not None:
        found["cache"] = cache
    if cache_size is not None:
        found["cache_size"] = byte_size(cache_size, option="--cache-size")
        if "cache" not in found:
            raise UsageError("--cache-size without --cache", where="--cache-size", fix="name the folder with --cache DIR")
    return found or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_object(text: str | None, *, option: str, example: str) -> dict[str, Any] | None:
    """`text` as a JSON object, None where it is not given. Raises BadConfig for any other text, with an example."""
    if text is None:
        return None
    fix = f"for example {option} '{example}'"
    try:
        found = json.loads(text or "{}")
    except ValueError as err:
        raise BadConfig(f"not JSON: {err}", where=option, fix=fix) from err
    if not isinstance(found, dict):
        raise BadConfig(f"{type(found).__name__}, not a JSON object", where=option, fix=fix)
    return found


@contextmanager
def with_stdin(sources: Sequence[str]) -> Iterator[list[str | Location]]:
    """`sources` with a file in place of `-`. Raises UsageError where nothing is piped in, NoData for an empty pipe."""
    if STDIN not in sources:
        yield list(sources)
        return
    if list(sources).count(STDIN) > 1:
        raise UsageError("- is given twice", where="the sources", fix="a pipe can be read once: leave one out")
    if sys.stdin is None or is_terminal(sys.stdin):
        fix = "pipe JSON lines or CSV into the command, or name a file (./- for one that is called so)"
        raise UsageError("- stands for piped input, and nothing is piped in", where="stdin", fix=fix)
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder:
        piped = _kept(Path(folder) / "stdin")
        yield [piped if source == STDIN else source for source in sources]


def _kept(file: Path) -> Location:
    from offline_cli.storage.locations import Location, open_location

    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, CHUNK)
    if not file.stat().st_size:
        fix = "check that the command before the pipe wrote anything"
        raise NoData("nothing came through the pipe", where="stdin", fix=fix)
    place = open_location(file)
    return Location(place.fs, place.path, STDIN)
