"""What is wrong with a configuration, in words: all mistakes of its keys, its tables, and of keys that contradict each other.

A mistake names a key that was given as an option as on the command line, any other as in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.json_documents import load_schema, mistakes_by
from offline_cli.modules.images import encoder_kind
from offline_cli.modules.network import MLP, network_kind
from offline_cli.options.networks import MlpKeys
from offline_cli.options.option import declared_in
from offline_cli.options.training import ConfigKeys
from offline_cli.training.algorithms.algorithm import algorithm_kind

__all__ = [
    "BOUNDS",
    "DEFAULTS",
    "KINDS",
    "MLP_KEYS",
    "SCHEMA",
    "TABLES",
    "allowed",
    "as_set",
    "as_text",
    "config_mistakes",
    "option_contradictions",
    "spelled",
    "table_mistakes",
]

SCHEMA = "config.v1.json"  # says what each key means
BOUNDS = ("updates", "epochs")
SPREAD = ("log_std_min", "log_std_max")
NEEDS = (
    ("until_return", "env", "an environment to play in"),
    ("env_kwargs", "env", "the environment that they make"),
    ("wrappers", "env", "the environment that they go around"),
    ("patience", "val_fraction", "episodes held out for validation"),
)
TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "array": "a list", "boolean": "true or false"}
TYPES["object"] = "a table"
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
MAX_SHOWN = 80  # letters of one offending value

KINDS: Final[dict[str, Callable[..., Any]]] = {"algorithm": algorithm_kind, "network": network_kind}
TABLES: Final = tuple(KINDS)
DEFAULTS: Final[dict[str, Mapping[str, Any]]] = {table: declared_in(ConfigKeys)[table].option.default for table in TABLES}
MLP_KEYS: Final = tuple(declared_in(MlpKeys))


def config_mistakes(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Every mistake of `config`, whose keys in `options` were given as options; empty when there is none."""
    return key_mistakes(config, load_schema(SCHEMA), options) + list(_contradictions(config, options))


def option_contradictions(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Those of `config_mistakes` that are between options alone: no file can resolve them."""
    return [text for text, asked in _contradictions(config, options).items() if asked]


def key_mistakes(
    config: Mapping[str, Any], schema: Mapping[str, Any], options: Collection[str] = (), *, before: str = ""
) -> list[str]:
    """Every key of `config` that `schema` does not know, or that has a value which it does not allow. `before`: the table's
    name and a dot; an option of a table may be NaN or infinite where its schema does not limit it.
    """
    keys = schema.get("properties", {})
    found = [
        _unknown(name, keys, before) for name in config if name not in keys and schema.get("additionalProperties") is not True
    ]
    for name, value in config.items():
        if name not in keys:
            continue
        no_number = isinstance(value, float) and not math.isfinite(value)  # which a schema lets pass whatever its limits are
        if mistakes_by(value, keys[name]) or (no_number and (not before or not LIMITS.keys().isdisjoint(keys[name]))):
            may_be = allowed(keys[name])
            may_be = may_be.replace("a number", "a finite number", 1) if no_number else may_be
            found.append(f"{before}{spelled(name, name in options)}: must be {may_be}, not {as_text(value)}")
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


def spelled(name: str, as_option: bool) -> str:
    if not as_option:
        return name
    return declared_in(ConfigKeys)[name].flag if name in declared_in(ConfigKeys) else f"--{name.replace('_', '-')}"


def as_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _contradictions(config: Mapping[str, Any], options: Collection[str]) -> dict[str, bool]:
    """Each as text, and whether options alone are at fault."""
    found = {}
    if config.keys() >= set(BOUNDS):
        asked = set(BOUNDS) <= set(options)  # of two sources, the one above the other has replaced what that says
        updates, epochs = (spelled(name, asked) for name in BOUNDS)
        found[f"{updates} and {epochs}: give one of the two"] = asked
    low, high = (config.get(name) for name in SPREAD)
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        asked = set(SPREAD) <= set(options)
        least, most = (spelled(name, asked) for name in SPREAD)
        found[f"{least} {low:g} is above {most} {high:g}"] = asked
    for name, needed, what in NEEDS:
        if name in config and needed not in config:
            asked = name in options
            found[f"{spelled(name, asked)}: needs {spelled(needed, asked)}, {what}"] = asked
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
        problems += _unknown_encoder(options, named) if given["name"] == MLP else []
        wrong = key_mistakes(options, kind.schema, before=f"{table}.")
        bad = tuple(text.partition(":")[0] for text in wrong)
        problems += wrong + _no_json(table, {name: value for name, value in options.items() if f"{table}.{name}" not in bad})
        problems += [f"{table}.{text}" for text in _of_all_together(options, kind.schema)]
    network = config.get("network", {})
    if isinstance(network, Mapping) and network.get("name", MLP) != MLP:
        taken = [name for name in MLP_KEYS if name in config]
        problems += [f"{name}: an option of the network {MLP!r}; others have theirs in [network]" for name in taken]
    return problems


def _unknown_encoder(options: Mapping[str, Any], named: Collection[str] | None) -> list[str]:
    """The mistake in the name of an encoder, which is imported as `table_mistakes` says. Raises as that does."""
    if not isinstance(options.get("encoder"), str):
        return []  # the schema says so
    try:
        encoder_kind(options["encoder"], named=named)
    except BadConfig as err:
        if err.where != "encoder.name":
            raise
        return [f"network.encoder: {err.what} ({err.fix})"]
    return []


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
    """Mistakes that belong to no single key: a missing required one, for instance."""
    whole = {name: value for name, value in schema.items() if name not in ("properties", "additionalProperties")}
    return [text.removeprefix("the document: ") for text in mistakes_by(options, whole)]


def as_set(text: str, options: Mapping[str, Any]) -> str:
    """A mistake in the table, as on the command line where it was made there."""
    key = text.partition(":")[0].removeprefix("algorithm.")
    is_given = text.startswith("algorithm.") and key in options
    return text.replace(f"algorithm.{key}", "--algorithm" if key == "name" else f"--set {key}", 1) if is_given else text
