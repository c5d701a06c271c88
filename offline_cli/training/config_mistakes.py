"""Mistakes of a configuration, in words that fit where each key came from; the schema says what a key may be.

A key that was given as an option is named as on the command line, any other as in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from offline_cli.json_documents import load_schema, mistakes_by

__all__ = ["BOUNDS", "SCHEMA", "allowed", "config_mistakes", "key_mistakes", "option_contradictions"]

SCHEMA = "config.v2.json"  # says what each key means
BOUNDS = ("updates", "epochs")
NEEDS = (
    ("until_return", "env", "an environment to play in"),
    ("patience", "val_fraction", "episodes held out to measure on"),
)
TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "array": "a list", "boolean": "true or false"}
TYPES["object"] = "a table"
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
MAX_SHOWN = 80  # letters of one offending value


def config_mistakes(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Every mistake of `config`, whose keys in `options` were given as options; empty when there is none."""
    return key_mistakes(config, load_schema(SCHEMA), options) + list(_contradictions(config, options))


def option_contradictions(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Those of `config_mistakes` that are between options alone: whatever a file says, they cannot be meant."""
    return [text for text, asked in _contradictions(config, options).items() if asked]


def key_mistakes(
    config: Mapping[str, Any], schema: Mapping[str, Any], options: Collection[str] = (), *, before: str = ""
) -> list[str]:
    """Every key of `config` that `schema` does not know, or that has a value which it does not allow. `before`: the table's
    name and a dot; an option of a table may be NaN or infinite where its schema does not limit it.
    """
    keys = schema.get("properties", {})
    found = [_unknown(name, keys, before) for name in config if name not in keys]
    for name, value in config.items():
        if name not in keys:
            continue
        no_number = isinstance(value, float) and not math.isfinite(value)  # which a schema lets pass whatever its limits are
        if mistakes_by(value, keys[name]) or (no_number and (not before or not LIMITS.keys().isdisjoint(keys[name]))):
            may_be = allowed(keys[name])
            may_be = may_be.replace("a number", "a finite number", 1) if no_number else may_be
            found.append(f"{before}{_spelled(name, name in options)}: must be {may_be}, not {_shown(value)}")
    return found


def allowed(key: Mapping[str, Any]) -> str:
    """What a key may be, by its part of the schema: `a number above 0 and below 1`."""
    if "enum" in key:
        return "one of " + ", ".join(f'"{value}"' for value in key["enum"])
    limits = " and ".join(f"{words} {key[limit]}" for limit, words in LIMITS.items() if limit in key)
    kind = TYPES.get(key["type"]) if isinstance(key.get("type"), str) else None
    if kind is None:
        return f"as its schema says: {json.dumps(dict(key))}"
    text = f"{kind} {limits}".rstrip()
    if "required" in key:
        return f"{text} with {' and '.join(key['required'])}"
    return f"{text}, each item {allowed(key['items'])}" if "items" in key else text


def _unknown(name: str, keys: Collection[str], before: str) -> str:
    near = get_close_matches(name.replace("-", "_"), keys, n=1)
    return f"unknown key '{before}{name}'" + (f", did you mean '{before}{near[0]}'?" if near else "")


def _spelled(name: str, as_option: bool) -> str:
    return f"--{name.replace('_', '-')}" if as_option else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _contradictions(config: Mapping[str, Any], options: Collection[str]) -> dict[str, bool]:
    """Each in words, and whether options alone are at fault."""
    found = {}
    if config.keys() >= set(BOUNDS):
        asked = set(BOUNDS) <= set(options)  # of two sources, the one above the other has replaced what that says
        updates, epochs = (_spelled(name, asked) for name in BOUNDS)
        found[f"{updates} and {epochs}: give one of the two"] = asked
    for name, needed, what in NEEDS:
        if name in config and needed not in config:
            asked = name in options
            found[f"{_spelled(name, asked)}: needs {_spelled(needed, asked)}, {what}"] = asked
    return found
