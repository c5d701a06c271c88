"""What the columns of a table mean, as a mapping file or a preset says it; refuses a mapping by listing all its mistakes.

A mapping is TOML (schemas/mapping.v1.json): ours = theirs. `obs`, `actions` and `new_obs` may be given in parts
(`"obs.camera"`, or a table of parts), each of them one column or several that are stacked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.end_flags import END_FLAGS
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.formats.tables.mapping_mistakes import mapping_mistakes
from offline_cli.formats.tables.mapping_text import mapping_text
from offline_cli.json_documents import deeper_than
from offline_cli.spaces import Space, space_from_json

__all__ = ["EXTRA", "KEYS", "TREES", "CsvForm", "Part", "TableMapping", "load_mapping", "mapping_of"]

EXTRA = "extra"
KEYS = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
MAX_DEPTH = 64  # of tables and lists; a space is nested at most 16 deep
FIX = "correct the mapping; docs/tables.md and schemas/mapping.v1.json say what it may hold"


@dataclass(frozen=True, slots=True)
class Part:
    """One column of ours, or one part of a Dict: what it is made of."""

    role: str  # obs, actions, eps_id, ...; `extra` for extra model outputs
    path: tuple[str, ...]  # within the role: () for all of it; the name of an extra output
    columns: tuple[str, ...]  # theirs
    stacked: bool = False  # a list was given: the columns become a vector, even if there is one

    @property
    def name(self) -> str:
        """`obs`, `obs.camera`, `extra.action_logp`."""
        return ".".join((self.role, *self.path))

    @property
    def said_as(self) -> str:
        """The name as the mapping has it."""
        return ".".join(self.path) if self.role == EXTRA else self.name


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How CSV files are written."""

    delimiter: str | None = None  # None: by the file's name
    decimal: str = "."
    nulls: tuple[str, ...] = ()  # besides the empty cell
    encoding: str = "utf-8"
    columns: tuple[str, ...] | None = None  # None: the first line names them


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A mapping without mistakes of its own; whether the columns are there is for the files to say."""

    name: str  # of the file or preset
    parts: tuple[Part, ...]  # at least one of obs and of actions
    unmapped: str = "extra"
    optional: frozenset[str] = frozenset()
    episode_ends: str | None = None
    ids_per_file: bool = False
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    observation_space: Space | None = None
    action_space: Space | None = None
    action_scale: str = UNKNOWN_SCALE
    environment: str | None = None
    csv: CsvForm = CsvForm()

    def of(self, role: str) -> tuple[Part, ...]:
        """The parts of one role."""
        return tuple(part for part in self.parts if part.role == role)

    @property
    def has_flags(self) -> bool:
        """Whether any column tells ends."""
        return any(part.role in END_FLAGS for part in self.parts)

    def as_text(self) -> dict[str, str]:
        """Their columns by ours, for people: `{"obs": "x, x_dot", "actions": "a"}`."""
        return {part.name: ", ".join(part.columns) for part in self.parts}

    def without(self, absent: Collection[str]) -> TableMapping:
        """The same without the parts of these names."""
        return replace(self, parts=tuple(part for part in self.parts if part.name not in absent))


def load_mapping(given: str, storage_options: Mapping[str, Any] | None = None) -> TableMapping:
    """The mapping in a file, or the preset of that name. Raises BadMapping, StorageNotFound, StorageError."""
    return mapping_of(mapping_text(given, storage_options), given)


def mapping_of(text: str | bytes, name: str) -> TableMapping:
    """The mapping that a TOML text says. Raises BadMapping with all of its mistakes."""
    try:
        document = tomllib.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadMapping(f"not TOML: {error}", where=name, fix=FIX) from error
    if deeper_than(document, MAX_DEPTH):
        raise BadMapping(f"tables nested deeper than {MAX_DEPTH}", where=name, fix=FIX)
    document = {**document, **_with_dotted_columns(document.get("columns"))}
    found = mapping_mistakes(document)
    if found:
        raise BadMapping.of(found, where=name, fix=FIX)
    spaces = document.get("spaces", {})
    return TableMapping(
        name=name,
        parts=tuple(_parts(document)),
        unmapped=document.get("unmapped", "extra"),
        optional=frozenset(document.get("optional", ())),
        episode_ends=document.get("episode_ends"),
        ids_per_file=document.get("ids_per_file", False),
        categories={column: tuple(texts) for column, texts in document.get("categories", {}).items()},
        dtypes=document.get("dtypes", {}),
        observation_space=_space(spaces.get("observation"), name),
        action_space=_space(spaces.get("action"), name),
        action_scale=document.get("action_scale", UNKNOWN_SCALE),
        environment=document.get("environment"),
        csv=_csv(document.get("csv", {})),
    )


def _with_dotted_columns(columns: Any) -> dict[str, Any]:
    """`obs = {camera = "cam"}` as `"obs.camera" = "cam"`; TOML reads an unquoted `obs.camera = "cam"` as the first."""
    if not isinstance(columns, dict):
        return {}
    return {"columns": dict(_dotted(columns, ""))}


def _dotted(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parts(document: Mapping[str, Any]) -> Iterator[Part]:
    for key, theirs in document["columns"].items():
        role, _, path = key.partition(".")
        yield _part(role, tuple(path.split(".")) if path else (), theirs)
    for key, theirs in document.get("extra", {}).items():
        yield _part(EXTRA, (key,), theirs)


def _part(role: str, path: tuple[str, ...], theirs: str | list[str]) -> Part:
    return Part(role, path, (theirs,)) if isinstance(theirs, str) else Part(role, path, tuple(theirs), stacked=True)


def _space(node: Mapping[str, Any] | None, name: str) -> Space | None:
    return None if node is None else space_from_json(node, where=name)


def _csv(node: Mapping[str, Any]) -> CsvForm:
    columns = node.get("columns")
    return CsvForm(
        delimiter=node.get("delimiter"),
        decimal=node.get("decimal", "."),
        nulls=tuple(node.get("nulls", ())),
        encoding=node.get("encoding", "utf-8"),
        columns=None if columns is None else tuple(columns),
    )
