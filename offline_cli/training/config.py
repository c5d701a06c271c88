"""A run's configuration, resolved from defaults < stored run < --config file < options, with all mistakes at once.

`config_model.py` says what a key may be. The tables `[algorithm]` and `[network]` name code, ours or another package's, whose
options and defaults they hold, by its JSON Schema. The options of the network "mlp" are keys of the file itself as well
(`hidden`, `activation`, `dropout`, `layer_norm`). A mistake names a key that was given as an option as on the command line, any
other as in the file.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Final

import tomli_w
from pydantic import ValidationError

from offline_cli.checked_keywords import as_option, worded
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, StorageNotFound, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment, refused
from offline_cli.modules.images import encoder_kind
from offline_cli.modules.network import MLP, network_kind
from offline_cli.plugins import network_named
from offline_cli.policies.by_name import is_code
from offline_cli.policies.run_files import CONFIG
from offline_cli.schema_files import mistakes_by
from offline_cli.training.algorithms.algorithm import algorithm_kind
from offline_cli.training.config_model import BOUND_EPOCHS, BOUNDS, DEFAULT_EPOCHS, GATES, MLP_KEYS, TABLES, BCConfig

__all__ = [
    "BCConfig",
    "allowed",
    "check_named_again",
    "differences",
    "filled",
    "flat",
    "read_config",
    "resolve_config",
    "stored_config",
]

HELP: Final = (
    "`offline-cli train --help` lists the options, with --algorithm NAME its own too; docs/config.md the keys of the file"
)
KINDS: Final[dict[str, Callable[..., Any]]] = {"algorithm": algorithm_kind, "network": network_kind}
NEEDS = (
    ("until_return", "env", "an environment to play in"),
    ("env_kwargs", "env", "the environment that they make"),
    ("wrappers", "env", "the environment that they go around"),
    ("policy", "env", "the game that they play in"),
    ("policy", "agent", "the agent that learns among them"),
    *((name, "val_fraction", "episodes held out for validation") for name in ("patience", *GATES)),
)
TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "array": "a list", "boolean": "true or false"}
TYPES["object"] = "a table"
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def resolve_config(
    options: Mapping[str, Any],
    *,
    file: str | PathLike[str] | None = None,
    stored: Mapping[str, Any] | None = None,
    plugins: Collection[str] = (),
    algorithm: Mapping[str, Any] | None = None,
    network: str | None = None,
) -> BCConfig:
    """The configuration; options that are None were not given. `stored` is that of the run to resume. `plugins`: packages whose
    code may be imported because `stored` names it; what the file, `algorithm` or `network` names is imported. `algorithm`: the
    options of the table that were given, and perhaps its name; they win. `network`: the name of that table. A table of the file
    may leave out a name that is given so.

    Raises BadConfig with every mistake in `details["problems"]`, UsageError where options that contradict each other are all
    of them, StorageNotFound for a file that is not there, MissingPackage for a plug-in that cannot be imported.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("hidden"), Sequence) and not isinstance(given["hidden"], str):
        given["hidden"] = list(given["hidden"])
    said, before = {} if file is None else read_config(file), stored or {}
    merged: dict[str, Any] = {}
    for source in (before, said, given):
        if not source.keys().isdisjoint(BOUNDS):  # one replaces whatever bound the sources below it say
            merged = {name: value for name, value in merged.items() if name not in BOUNDS}
        merged |= source
    asked = {"algorithm": dict(algorithm or {}), "network": {} if network is None else {"name": network}}
    problems, own = list[str](), list[str]()
    for table in TABLES:
        if isinstance(said.get(table, {}), Mapping) and (table in merged or asked[table]):
            merged[table] = _merged_table(table, before.get(table), said.get(table, {}), asked[table], problems)
        if table in said or "name" in asked[table]:
            own.append(table)
    contradictions = _contradictions(merged, given)
    problems += [*_key_mistakes(merged, given), *contradictions]
    problems += [_as_set(text, asked["algorithm"]) for text in _table_mistakes(merged, own=own, packages=plugins)]
    if not problems:
        made = _made(
            {**_brought(merged), **merged, **{table: filled(table, merged[table]) for table in TABLES if table in merged}}
        )
        try:
            tomli_w.dumps(made.as_dict())
            return made
        except TypeError as err:
            fix = "a function may set it: --env python:module:make_env"
            raise BadConfig(f"config.toml cannot hold this: {err}", where=_sources(file, given, stored), fix=fix) from err
    kind = UsageError if all(contradictions.get(text) for text in problems) else BadConfig
    raise kind.of(problems, where=_sources(file, given, stored), fix=HELP)


def _brought(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the algorithm of a checked configuration sets where nothing else says them."""
    known = algorithm_kind(config["algorithm"]["name"]).settings if "algorithm" in config else {}
    is_mlp = config.get("network", {}).get("name", MLP) == MLP
    return {name: value for name, value in known.items() if is_mlp or name not in MLP_KEYS}


def _merged_table(
    table: str, stored: Mapping[str, Any] | None, said: Mapping[str, Any], asked: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Options of each source over those of the one before it, where they are those of one algorithm, or network."""
    found = dict(stored or BCConfig.model_fields[table].default)
    for source in (said, asked):
        name = source.get("name", asked.get("name", found["name"]))
        name = network_named(name) if table == "network" and isinstance(name, str) else name
        if source:
            found = {**(found if name == found["name"] else {}), **source, "name": name}
    if said and asked.get("name", found["name"]) != said.get("name", found["name"]) != found["name"]:
        problems.append(f"--{table} says {found['name']}, and the file's [{table}] {said['name']}: name it in one of the two")
    return found


def stored_config(stored: Mapping[str, Any]) -> BCConfig:
    """The configuration that a run folder holds, without importing what its tables name. Raises BadConfig."""
    problems = _key_mistakes(stored, ()) + list(_contradictions(stored, ()))
    if problems:
        raise BadConfig.of(problems, where=_sources(None, {}, stored), fix=HELP)
    return _made(dict(stored))


def _made(merged: dict[str, Any]) -> BCConfig:
    if not merged.keys() & set(BOUNDS):
        merged["epochs"] = BOUND_EPOCHS if {"until_return", "patience"} & merged.keys() else DEFAULT_EPOCHS
    return BCConfig.model_validate(merged)


def _sources(file: str | PathLike[str] | None, given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> str:
    """Where the keys came from, as text."""
    sources = {"options": given, "the run's config.toml": stored, str(file): file}
    return " and ".join(name for name, used in sources.items() if used) or "options"


def differences(stored: BCConfig, wanted: BCConfig) -> list[str]:
    """What distinguishes the two, as text, except what no update depends on: trackers, gates, their bounds where the learning
    rate is constant, and a limit on memory where nothing streams.
    """
    free = {"track", *GATES} if stored.streaming or wanted.streaming else {"track", *GATES, "memory_limit"}
    if "constant" in (stored.lr_schedule, wanted.lr_schedule):  # else the rate of each update depends on the bound
        free.update(BOUNDS)
    before, now = flat(stored), flat(wanted)
    names = [name for name in dict.fromkeys((*before, *now)) if name not in free]
    pairs = ((name, before.get(name), now.get(name)) for name in names)
    return [f"{name}: the run has {_shown(old)}, this call asks for {_shown(new)}" for name, old, new in pairs if old != new]


def check_named_again(wanted: BCConfig, said: Collection[str], *, where: str) -> None:
    """Raise BadConfig where a run folder alone names an environment, or policies, that only its user may name.

    `said`: what he does.
    """
    asked = AskedEnvironment.of({**dict(wanted), "env_kwargs": None})
    if asked is None:
        return
    env, again = asked.id, list[str]()
    what = f"the run's {CONFIG} names "
    if ":" in env and "env" not in said:  # that is imported for the caller alone
        what += f"an environment that is code, {env}; no code is imported because a run folder names it"
        again.append(f"--env {shlex.quote(env)}")
    policies = wanted.policy or ()
    if "policy" not in said and any(is_code(text.partition("=")[2]) for text in policies):
        what += f"{'; and ' if again else ''}policies that are code, {', '.join(policies)}"
        again += [f"--policy {shlex.quote(text)}" for text in policies]
    spec = EnvironmentSpec(env, wanted.env_kwargs or {}, tuple(asked.wrappers or ()))
    wrong = dict(zip(("kwargs", "wrappers"), refused(spec), strict=True))
    needed = {name: bool(wrong[name]) and key not in said for name, key in (("kwargs", "env_kwargs"), ("wrappers", "wrappers"))}
    if any(needed.values()):
        reasons = [reason for name in needed if needed[name] for reason in wrong[name]]
        what += f"{'; and ' if again else ''}what is not taken from a run folder: {'; '.join(reasons)}"
        again.append(spec.flags(**needed))
    if again:
        raise BadConfig(what, where=where, fix=f"if that is yours, name it again: {' '.join(again)}")


def flat(config: BCConfig) -> dict[str, Any]:
    """Each field, and each entry of a table as `table.key`."""
    plain = dict(config)
    found = {name: value for name, value in plain.items() if name not in TABLES}
    found |= {name: value for name, value in config.as_dict().items() if name in ("env_kwargs", "wrappers")}  # without secrets
    return found | {f"{table}.{key}": value for table in TABLES for key, value in plain[table].items()}


def _shown(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def read_config(file: str | PathLike[str]) -> dict[str, Any]:
    """What a file of the user's says, unchecked. Raises BadConfig where it is not TOML, StorageNotFound."""
    path = Path(file)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise StorageNotFound("no such config file", where=str(path), fix="check the path") from err
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadConfig(f"not TOML: {err}", where=str(path), fix="see https://toml.io for the syntax") from err


def filled(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A checked table with the defaults of its schema."""
    if table == "network" and given["name"] == MLP and "memory" not in given:
        return dict(given)
    properties = KINDS[table](given["name"]).schema.get("properties", {})
    defaults = {name: key["default"] for name, key in properties.items() if "default" in key}
    if given["name"] == MLP:  # the rest are keys of the file
        defaults = {name: value for name, value in defaults.items() if name not in MLP_KEYS}
    return {"name": given["name"], **defaults, **given}


# ---- mistakes ----


def _key_mistakes(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Every key that the model does not know, or whose value it does not allow."""
    found = []
    try:
        BCConfig.model_validate(dict(config))
    except ValidationError as err:
        for one in err.errors():
            name = str(one["loc"][0])
            if one["type"] == "extra_forbidden":
                near = get_close_matches(name.replace("-", "_"), BCConfig.model_fields, n=1)
                found.append(f"unknown key '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
            else:
                found.append(f"{_spelled(name, name in options)}: {worded(one, config[name])}")
    return list(dict.fromkeys(found))


def _spelled(name: str, asked: bool) -> str:
    return as_option(name) if asked else name


def _contradictions(config: Mapping[str, Any], options: Collection[str]) -> dict[str, bool]:
    """Each as text, and whether options alone are at fault: then no file can resolve it."""
    found = {}
    if config.keys() >= set(BOUNDS):
        asked = set(BOUNDS) <= set(options)
        found[" and ".join(_spelled(name, asked) for name in BOUNDS) + ": give one of the two"] = asked
    low, high = config.get("log_std_min"), config.get("log_std_max")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        asked = {"log_std_min", "log_std_max"} <= set(options)
        found[f"{_spelled('log_std_min', asked)} {low:g} is above {_spelled('log_std_max', asked)} {high:g}"] = asked
    for name, needed, what in NEEDS:
        if name in config and needed not in config:
            asked = name in options
            found[f"{_spelled(name, asked)}: needs {_spelled(needed, asked)}, {what}"] = asked
    network = config.get("network", {})
    for name in MLP_KEYS:
        if name in config and isinstance(network, Mapping) and network.get("name", MLP) != MLP:
            found[f"{name}: an option of the network {MLP!r}; others have theirs in [network]"] = False
        elif name in config and isinstance(network, Mapping) and name in network:
            found[f"{name} and network.{name}: give one of the two"] = False
    return found


def allowed(key: Mapping[str, Any]) -> str:
    """What a key may be, by its JSON Schema: `a number above 0 and below 1`."""
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


def _table_mistakes(config: Mapping[str, Any], *, own: Collection[str], packages: Collection[str]) -> list[str]:
    """Every mistake of both tables. `own`: those that the user has written; what another one names is imported where it is
    ours, or of `packages`.

    Raises BadConfig for code that the user has not named, MissingPackage for a plug-in that cannot be imported.
    """
    problems = []
    for table in TABLES:
        given = config.get(table, BCConfig.model_fields[table].default)
        if not (isinstance(given, Mapping) and isinstance(given.get("name"), str)):
            continue  # the model has said so
        named = None if table in own else packages
        options = {name: value for name, value in given.items() if name != "name"}
        try:
            kind = KINDS[table](given["name"], named=named)
            if given["name"] == MLP and isinstance(options.get("encoder"), str):
                encoder_kind(options["encoder"], named=named)
        except BadConfig as err:
            place = {f"{table}.name": f"{table}.name", "encoder.name": "network.encoder"}.get(err.where)
            if place is None:
                raise
            problems.append(f"{place}: {err.what} ({err.fix})")
            continue
        try:  # run folders keep them as JSON
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError) as err:
            problems.append(f"{table}: {err}; give finite numbers, and dates as text")
            continue
        problems += mistakes_by(options, {"additionalProperties": False, **kind.schema}, within=table) if options else []
    return problems


def _as_set(text: str, options: Mapping[str, Any]) -> str:
    """A mistake in the table, as on the command line where it was made there."""
    key = text.partition(":")[0].removeprefix("algorithm.")
    is_given = text.startswith("algorithm.") and key in options
    return text.replace(f"algorithm.{key}", "--algorithm" if key == "name" else f"--set {key}", 1) if is_given else text
