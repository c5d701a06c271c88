"""Mistakes of a configuration, in words that fit where each key came from; the schema says what a key may be.

A key that was given as an option is named as on the command line, any other as in the file.

The tables `[algorithm]` and `[network]` of a configuration: whose code they name, their mistakes, their defaults.

The options of the network "mlp" are keys of the file itself as well, `hidden` and `activation`, and are kept there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.json_documents import load_schema, mistakes_by
from offline_cli.modules.network import MLP, network_kind
from offline_cli.options.cloning import ConfigKeys, MlpKeys
from offline_cli.options.option import declared_in
from offline_cli.training.algorithms.algorithm import algorithm_kind

__all__ = [
    "BOUNDS",
    "DEFAULTS",
    "MLP_KEYS",
    "SCHEMA",
    "TABLES",
    "allowed",
    "config_mistakes",
    "filled",
    "folded",
    "key_mistakes",
    "merged_tables",
    "option_contradictions",
    "table_mistakes",
]

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


KINDS: Final[dict[str, Callable[..., Any]]] = {"algorithm": algorithm_kind, "network": network_kind}
TABLES: Final = tuple(KINDS)
DEFAULTS: Final[dict[str, Mapping[str, Any]]] = {table: declared_in(ConfigKeys)[table].option.default for table in TABLES}
MLP_KEYS: Final = tuple(declared_in(MlpKeys))


def folded(document: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """A user's file with the options of `[network] name = "mlp"` as keys of its own; what is said twice goes to `problems`."""
    table = document.get("network")
    if not isinstance(table, Mapping) or table.get("name", MLP) != MLP:
        return dict(document)
    problems += [f"{name} and network.{name}: give one of the two" for name in MLP_KEYS if name in table and name in document]
    rest = {name: value for name, value in table.items() if name not in MLP_KEYS}
    return {**document, "network": rest} | {name: table[name] for name in MLP_KEYS if name in table}


def merged_tables(stored: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables: the file's options over the stored ones, where they are those of one algorithm, or network."""
    found: dict[str, Any] = {}
    for name in TABLES:
        old, new = stored.get(name), file.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name"):
            found[name] = {**old, **new}
        elif new is not None or old is not None:
            found[name] = old if new is None else new
    return found


def table_mistakes(config: Mapping[str, Any], *, own: Collection[str], packages: Collection[str]) -> list[str]:
    """Every mistake of both tables. `own`: those that the user has written; what another one names is imported where it is
    ours, or of `packages`.

    Raises BadConfig for code that the user has not named, MissingPackage for a plug-in that cannot be imported.
    """
    problems = []
    for table in TABLES:
        given = config.get(table, DEFAULTS[table])
        if not (isinstance(given, Mapping) and isinstance(given.get("name"), str)):
            continue  # the schema of the whole file has said so
        named = None if table in own else packages
        try:
            kind = KINDS[table](given["name"], named=named)
        except BadConfig as err:
            if err.where != f"{table}.name":
                raise
            problems.append(f"{table}.name: {err.what} ({err.fix})")
            continue
        options = {name: value for name, value in given.items() if name != "name"}
        wrong = key_mistakes(options, kind.schema, before=f"{table}.")
        rest = {
            name: value for name, value in options.items() if not any(text.startswith(f"{table}.{name}:") for text in wrong)
        }
        problems += wrong + _no_json(table, rest)
        problems += [f"{table}.{text}" for text in _of_all_together(options, kind.schema)]
    network = config.get("network", {})
    if isinstance(network, Mapping) and network.get("name", MLP) != MLP:
        taken = [name for name in MLP_KEYS if name in config]
        problems += [f"{name}: an option of the network {MLP!r}; others have theirs in [network]" for name in taken]
    return problems


def _no_json(table: str, options: Mapping[str, Any]) -> list[str]:
    """Options that a run folder could not keep as JSON."""
    found = []
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=table != "network")  # networks alone are in policy.json
        except TypeError:
            found.append(f"{table}.{name}: give dates and times as text")
        except ValueError:
            found.append(f"{table}.{name}: must be finite")
    return found


def _of_all_together(options: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Mistakes that no key alone has: one that is required, for instance."""
    whole = {name: value for name, value in schema.items() if name not in ("properties", "additionalProperties")}
    return [text.removeprefix("the document: ") for text in mistakes_by(options, whole)]


def filled(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A checked table with the defaults of its schema."""
    if table == "network" and given["name"] == MLP:
        return dict(given)
    properties = KINDS[table](given["name"]).schema.get("properties", {})
    return {"name": given["name"], **{name: key["default"] for name, key in properties.items() if "default" in key}, **given}
