"""Parsers and callbacks of typer for option values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, get_args

import typer

from offline_cli.choices import Estimator
from offline_cli.errors import BadConfig, UsageError
from offline_cli.schema_files import json_or_text

__all__ = ["comparisons", "estimators", "json_object", "pairs", "settings", "storage_pairs", "whole_numbers"]

STORAGE_OPTION: Final = "--storage-option"  # its values may be secrets


def whole_numbers(text: Any) -> tuple[int, ...]:
    """`"256,256"` as `(256, 256)`."""
    try:
        return text if isinstance(text, tuple) else tuple(map(int, text.split(",")))  # a tuple: the default
    except ValueError as err:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 2,3") from err


def estimators(text: Any) -> tuple[str, ...]:
    """`"is,wis"` as `("is", "wis")`."""
    if isinstance(text, tuple):
        return text
    given, known = tuple(one.strip() for one in text.split(",") if one.strip()), get_args(Estimator)
    if wrong := sorted({*given} - {*known}):
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(known)}")
    return given


def json_object(text: Any) -> dict[str, Any]:
    """The value of --env-kwargs. Raises BadConfig unless it is a JSON object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        fix = """for example --env-kwargs '{"gravity": 9.8}'"""
        raise BadConfig("the value is not a JSON object", where="--env-kwargs", fix=fix)  # the value may hold secrets
    return found


def pairs(given: Sequence[str], *, option: str) -> dict[str, str]:
    """`["a=1", "b=x"]` as `{"a": "1", "b": "x"}`. Raises UsageError, naming one that is not KEY=VALUE, or is repeated."""
    found: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            shown = f"{pair[:3]}..." if option == STORAGE_OPTION and len(pair) > 3 else pair  # it may be a secret
            raise UsageError(f"{shown!r} is not KEY=VALUE", where=option, fix=f"for example {option} key=value")
        if key.strip() in found:
            raise UsageError(f"{key.strip()} is given twice", where=option, fix="give one value for each key")
        found[key.strip()] = value
    return found


def settings(given: list[str]) -> Any:
    """The values of --set by name, parsed as JSON if possible, else strings."""
    return {key: json_or_text(text) for key, text in pairs(given, option="--set").items()} or None


def comparisons(given: list[str]) -> Any:
    """The values of --expect, `["a=1", "b>=2"]`, as `{"a=": "1", "b>=": "2"}`. Raises UsageError."""
    found: dict[str, str] = {}
    for text in given:
        name, order, value = re.findall(r"^([^<>=!~]*)([<>=!~]*)(.*)", text, re.DOTALL)[0]
        key = f"{name.strip()}{order}"
        if not order or not name.strip() or key in found:
            fix = "for example --expect 'key>=10'; one value for each"
            raise UsageError(f"{text!r} is not KEY=VALUE, KEY>=VALUE or KEY<=VALUE, or is repeated", where="--expect", fix=fix)
        found[key] = value.strip()
    return found or None


def storage_pairs(given: list[str]) -> Any:
    """Storage options by name: `anon=true` is a bool, `key='"007"'` a string."""
    return {key: json_or_text(text) for key, text in pairs(given, option=STORAGE_OPTION).items()} or None
