"""Every mistake of a mapping at once, with the nearest word for each unknown one; refuses to look at any table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from offline_cli.columns import Columns
from offline_cli.errors import UnsupportedSpace
from offline_cli.formats.end_flags import END_FLAGS
from offline_cli.json_documents import load_schema, mistakes
from offline_cli.spaces import space_from_json

__all__ = ["SCHEMA", "mapping_mistakes", "nearest"]

SCHEMA = "mapping.v1.json"
SECTIONS = ("columns", "dtypes", "spaces", "csv")


def nearest(word: str, known: Collection[str]) -> str:
    """`, did you mean 'obs'?`, or nothing where no word is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f", did you mean '{by_lower[near[0]]}'?" if near else ""


def mapping_mistakes(document: Mapping[str, Any]) -> list[str]:
    """Every mistake of `document`, dotted columns in place; empty when there is none."""
    known, unknown = _without_unknown(document)
    schema = mistakes(known, SCHEMA)
    return unknown + schema + (list(_contradictions(known)) if not schema else [])


def _without_unknown(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What has names that the schema knows, and what is wrong with the other names."""
    properties = load_schema(SCHEMA)["properties"]
    known = {name: value for name, value in document.items() if name in properties}
    unknown = [f"unknown key '{name}'{_where_it_belongs(name, properties)}" for name in document if name not in properties]
    for section in SECTIONS:
        part = known.get(section)
        if isinstance(part, dict):
            names, is_known = _names_of(properties[section])
            unknown += [f"{section}: unknown key '{key}'{nearest(key, names)}" for key in part if not is_known(key)]
            known[section] = {key: value for key, value in part.items() if is_known(key)}
    return known, unknown


def _names_of(section: Mapping[str, Any]) -> tuple[list[str], Callable[[str], bool]]:
    names = list(section["properties"])
    patterns = [re.compile(pattern) for pattern in section.get("patternProperties", {})]
    return names, lambda key: key in names or any(pattern.search(key) for pattern in patterns)


def _where_it_belongs(name: str, properties: Mapping[str, Any]) -> str:
    if name in properties["columns"]["properties"]:
        return ": it belongs under [columns]"
    return nearest(name, properties)


def _contradictions(document: Mapping[str, Any]) -> Iterator[str]:
    columns = document["columns"]
    yield from _missing_columns(columns)
    yield from _unclear_trees(columns)
    yield from _missing_for_ends(document.get("episode_ends"), columns)
    named = {*columns, *document.get("extra", {})}
    for name in document.get("optional", ()):
        if name not in named:
            yield f"optional: '{name}' is named nowhere{nearest(name, named)}"
        elif name.partition(".")[0] in (Columns.OBS, Columns.ACTIONS):
            yield f"optional: there is no episode without '{name}'"
    for name, node in document.get("spaces", {}).items():
        try:
            space_from_json(node, where=name)
        except UnsupportedSpace as error:
            yield f"spaces.{name}: {error.what}"


def _missing_columns(columns: Mapping[str, Any]) -> Iterator[str]:
    for role in (Columns.OBS, Columns.ACTIONS):
        if not _parts_of(role, columns):
            yield f"columns: '{role}' is missing"
    for role in (Columns.AGENT_ID, Columns.MODULE_ID):
        if role in columns and Columns.EPS_ID not in columns:
            yield f"columns: '{role}' needs 'eps_id', which tells the episodes of an agent apart"


def _unclear_trees(columns: Mapping[str, Any]) -> Iterator[str]:
    for role in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS):
        parts = _parts_of(role, columns)
        both = [part for part in parts if any(other.startswith(f"{part}.") for other in parts)]
        yield from (f"columns: '{part}' is given whole and in parts" for part in both)
    obs, new_obs = ({part.partition(".")[2] for part in _parts_of(role, columns)} for role in (Columns.OBS, Columns.NEXT_OBS))
    if new_obs and obs and new_obs != obs:
        different = ", ".join(sorted(part or "(all of it)" for part in obs ^ new_obs))
        yield f"columns: 'new_obs' has other parts than 'obs': {different}"


def _missing_for_ends(episode_ends: str | None, columns: Mapping[str, Any]) -> Iterator[str]:
    if episode_ends == "flags" and not any(name in columns for name in END_FLAGS):
        yield f'episode_ends: "flags" needs a column for one of {", ".join(END_FLAGS)}'
    if episode_ends == "t" and Columns.T not in columns:
        yield 'episode_ends: "t" needs a column for t'
    if episode_ends == "chain" and not _parts_of(Columns.NEXT_OBS, columns):
        yield 'episode_ends: "chain" needs columns for new_obs'


def _parts_of(role: str, columns: Mapping[str, Any]) -> list[str]:
    return [name for name in columns if name == role or name.startswith(f"{role}.")]
