"""The tables `[algorithm]` and `[network]` of a configuration: whose code they name, their mistakes, their defaults.

The options of the network "mlp" are keys of the file itself as well, `hidden` and `activation`, and are kept there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.json_documents import mistakes_by
from offline_cli.modules.network_registry import MLP, network_kind
from offline_cli.options.cloning import ConfigKeys, MlpKeys
from offline_cli.options.option import declared_in
from offline_cli.training.algorithms.registry import algorithm_kind
from offline_cli.training.config_mistakes import key_mistakes

__all__ = ["DEFAULTS", "MLP_KEYS", "TABLES", "filled", "folded", "merged_tables", "table_mistakes"]

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
