"""Values of options that the command line writes as text: parsers and callbacks of typer."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.errors import BadConfig, UsageError

__all__ = [
    "STORAGE_OPTION",
    "comparisons",
    "indices",
    "json_object",
    "number",
    "pairs",
    "settings",
    "storage_pairs",
    "widths",
    "with_cache",
]

STORAGE_OPTION: Final = "--storage-option"  # its values may be secrets
COMPARISON: Final = re.compile(r"([^<>=!~]*)([<>=!~]+)(.*)", re.DOTALL)


def number(
    *, above: float = -math.inf, below: float = math.inf, most: float = math.inf
) -> Callable[[float | None], float | None]:
    """A callback that refuses what is not finite, or beyond limits that typer's `min` and `max` cannot say."""

    def check(value: float | None) -> float | None:
        if value is None or (math.isfinite(value) and above < value < below and value <= most):
            return value
        limits = (("above", above), ("below", below), ("at most", most))
        said = " and ".join(f"{words} {limit:g}" for words, limit in limits if math.isfinite(limit))
        raise typer.BadParameter(f"{value:g} is not a finite number {said}".rstrip())

    return check


def widths(text: Any) -> tuple[int, ...]:
    """`"256,256"` as `(256, 256)`."""
    return _whole_numbers(text, 1, "a width", where="--hidden", fix="for example --hidden 256,256")


def indices(text: Any) -> tuple[int, ...]:
    """`"0,2"` as `(0, 2)`."""
    return _whole_numbers(text, 0, "an index", where="--video-episodes", fix="for example --video-episodes 0,1")


def _whole_numbers(given: Any, least: int, noun: str, *, where: str, fix: str) -> tuple[int, ...]:
    if isinstance(given, tuple):  # a default
        return given
    parts = [part.strip() for part in str(given).split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and int(part[:9]) >= least and len(part) < 10)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} in {given!r} is not {noun}", where=where, fix=fix)
    return tuple(map(int, parts))


def json_object(text: Any) -> dict[str, Any]:
    """The value of --env-kwargs. Raises BadConfig for any other text than a JSON object."""
    fix = """for example --env-kwargs '{"gravity": 9.8}'"""
    try:
        found = json.loads(text or "{}")
    except ValueError as err:
        raise BadConfig(f"not JSON: {err}", where="--env-kwargs", fix=fix) from err
    if not isinstance(found, dict):
        raise BadConfig(f"{type(found).__name__}, not a JSON object", where="--env-kwargs", fix=fix)
    return found


def pairs(given: Sequence[str], *, option: str) -> dict[str, str]:
    """`["a=1", "b=x"]` as `{"a": "1", "b": "x"}`. Raises UsageError naming the one that is not KEY=VALUE, or is given twice."""
    found: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            shown = f"{pair[:3]}..." if option == STORAGE_OPTION and len(pair) > 3 else pair  # it may be a secret
            raise UsageError(f"{shown!r} is not KEY=VALUE", where=option, fix=f"for example {option} key=value")
        if key.strip() in found:
            raise UsageError(f"{key.strip()} is given twice", where=option, fix="one value for each key")
        found[key.strip()] = value
    return found


def settings(given: list[str]) -> Any:
    """The values of --set by name: numbers, booleans, texts and lists as TOML has them, any other text itself."""
    return {key: _of_toml(text) for key, text in pairs(given, option="--set").items()} or None


def _of_toml(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 and isinstance(found["value"], (bool, int, float, str, list)) else text


def comparisons(given: list[str]) -> Any:
    """The values of --expect, `["a=1", "b>=2"]`, as `{"a": "1", "b>=": "2"}`. Raises UsageError naming every wrong one."""
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
        raise UsageError("; ".join(wrong), where="--expect", fix="for example --expect 'key>=10'; one value for each")
    return found or None


def storage_pairs(given: list[str]) -> Any:
    """Storage options by name: `anon=true` is a bool, `key='"007"'` a text."""
    return {key: _of_json(text) for key, text in pairs(given, option=STORAGE_OPTION).items()} or None


def _of_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_cache(found: Mapping[str, Any] | None, cache: str | None, cache_size: str | None) -> dict[str, Any] | None:
    """Storage options with --cache and --cache-size, which win. Raises UsageError for the second without the first."""
    asked = dict(found or {})
    if cache is not None:
        asked["cache"] = cache
    if cache_size is not None:
        asked["cache_size"] = byte_size(cache_size, option="--cache-size")
        if "cache" not in asked:
            raise UsageError("--cache-size without --cache", where="--cache-size", fix="name the folder with --cache DIR")
    return asked or None
