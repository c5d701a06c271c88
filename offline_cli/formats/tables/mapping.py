"""What the columns of a table mean: a mapping from a file or a preset, checked, with all its mistakes listed at once.

A mapping is TOML (schemas/mapping.v1.json): ours = theirs. `obs`, `actions` and `new_obs` may be given in parts
(`"obs.camera"`, or a table of parts), each of them one column or several that are stacked.

* `mapping_text`, `preset_names`, `preset_text`: the text of a mapping. Presets ship with the package; an unknown name raises
  with the presets that there are.
* `mapping_mistakes`: every mistake of a mapping, with the nearest word for each unknown one; no table is read for it.
* `load_mapping`, `mapping_of`: the mapping as a typed value; in Python, a dict is one as well (`given_mapping`).
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping, StorageNotFound, UnsupportedSpace
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.images import wrong_images
from offline_cli.json_documents import deeper_than, load_schema, mistakes, schemas_folder
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.local_files import dangling_link
from offline_cli.storage.locations import open_location

__all__ = [
    "DEFAULT",
    "EXTRA",
    "FILLED_ROLES",
    "KEYS",
    "MEAN",
    "PREVIOUS",
    "SCHEMA",
    "STARTS",
    "TREES",
    "ZERO",
    "CsvForm",
    "GivenMapping",
    "Part",
    "TableMapping",
    "given_mapping",
    "load_mapping",
    "mapping_mistakes",
    "mapping_of",
    "mapping_text",
    "nearest",
    "preset_names",
    "preset_text",
]

DEFAULT = "rllib"
ENDING = ".v1.toml"

SCHEMA = "mapping.v1.json"
SECTIONS = ("columns", "dtypes", "spaces", "csv")

EXTRA = "extra"
STARTS: Final = "starts"
FILE_ID, FOLDER_ID = "@file", "@folder"  # in the place of a column of ids
EPISODES: Final = "episodes"  # what a row is, where it is no step
DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|min|m|h|d|w)\s*")
UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "m": 60 * 10**9} | {
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
KEYS = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
FILLED_ROLES = (*TREES, Columns.REWARDS, EXTRA)
MAX_DEPTH = 64  # of tables and lists; a space is nested at most 16 deep
FIX = "correct the mapping; docs/tables.md and schemas/mapping.v1.json say what it may hold"


GivenMapping = str | Mapping[str, Any]  # a file by path or URL, the name of a preset, or the mapping itself
OF_PYTHON: Final = "(dict)"  # the name of a mapping that is no file

ZERO, PREVIOUS, MEAN = FILLS = ("zero", "previous", "mean")


def given_mapping(given: str | os.PathLike[str] | Mapping[str, Any]) -> GivenMapping:
    """A keyword as it is kept: a path as text, a dict as a copy with lists for tuples. Raises BadMapping for keys not text."""
    if not isinstance(given, Mapping):
        return os.fspath(given)
    odd: list[Any] = []
    plain: dict[str, Any] = _plain(given, odd)
    if odd:
        raise BadMapping.of([f"{key!r} is no name: names are text" for key in odd], where=OF_PYTHON, fix=FIX)
    return plain


def _plain(value: Any, odd: list[Any]) -> Any:
    if isinstance(value, Mapping):
        odd += [key for key in value if not isinstance(key, str)]
        return {key: _plain(item, odd) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, odd) for item in value]
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")  # of numpy
    return value.item() if is_scalar else value


def mapping_text(given: GivenMapping, storage_options: Mapping[str, Any] | None = None) -> bytes:
    """TOML; of a dict JSON, in its own order, which orders columns.

    A preset's name goes before a file's: write `./rllib` for a file of that name. Raises StorageNotFound.
    """
    if not isinstance(given, str):
        return json.dumps(given, default=repr).encode()
    presets = preset_names()
    if given in presets:
        return preset_text(given).encode()
    location = open_location(given, storage_options)
    if location.exists():
        return location.read_bytes()
    if location.is_local and (broken := dangling_link(location.path, shown=given)):
        raise broken
    near = get_close_matches(given, presets, n=1)
    fix = f"did you mean {near[0]}?" if near else f"give the path of a file, or one of {', '.join(presets)}"
    raise StorageNotFound(f"no mapping file and no preset is called {given}", where="--mapping", fix=fix)


@cache
def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    return tuple(sorted(path.name.removesuffix(ENDING) for path in (schemas_folder() / "mappings").glob(f"*{ENDING}")))


def preset_text(name: str) -> str:
    """The TOML of one preset."""
    return (schemas_folder() / "mappings" / f"{name}{ENDING}").read_text(encoding="utf-8")


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
    """The entries whose names the schema knows, and the mistakes in the other names."""
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
    for name in ("gap", "period"):
        given = document.get(name)
        if given is not None and Columns.T not in columns:
            yield f"{name}: needs a column for t"
        if isinstance(given, str) and not DURATION.fullmatch(given):
            yield f"{name}: {given!r} is no duration, such as 30min, 90s or 1d"
        elif isinstance(given, float | int) and given <= 0:
            yield f"{name}: {given} is not more than 0"
    try:
        "a".encode(document.get("csv", {}).get("encoding", "utf-8"))  # codecs of no text refuse it
    except (LookupError, ValueError):
        yield f"csv.encoding: there is no encoding {document['csv']['encoding']!r}"
    yield from _wrong_fills(document)
    values = dict.fromkeys(name for part in _parts(document) if part.role in FILLED_ROLES for name in part.columns)
    for section in ("names", "units"):
        for column in document.get(section, {}):
            if column not in values:
                yield f"{section}: column '{column}' is not mapped to values of a step{nearest(column, values)}"
    yield from wrong_images(document, list(_parts(document)), (*TREES, EXTRA))
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
            yield f"columns: '{role}' needs 'eps_id', which distinguishes the episodes of an agent"


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


def _wrong_fills(document: Mapping[str, Any]) -> Iterator[str]:
    """Fills of columns that have none, and fills that are none."""
    parts = list(_parts(document))
    theirs = dict.fromkeys(name for part in parts for name in part.columns)
    for column, fill in document.get("fill", {}).items():
        roles = [part.said_as for part in parts if part.role not in FILLED_ROLES and column in part.columns]
        if roles:
            yield f"fill: column '{column}' is {roles[0]}, which is never filled: only values of a step are"
        elif not any(column == name or column.startswith(f"{name}.") for name in theirs):
            yield f"fill: column '{column}' is not mapped{nearest(column, theirs)}: name it under [columns] or [extra]"
        if isinstance(fill, str) and fill not in FILLS:
            yield f"fill.{column}: '{fill}' is not one of {', '.join(FILLS)}, and no number{nearest(fill, FILLS)}"
        elif isinstance(fill, float) and not math.isfinite(fill):
            yield f"fill.{column}: {fill} is no value of a step"
        elif fill == MEAN and column in document.get("categories", {}):
            yield f"fill.{column}: categories have no mean"


def _parts_of(role: str, columns: Mapping[str, Any]) -> list[str]:
    return [name for name in columns if name == role or name.startswith(f"{role}.")]


@dataclass(frozen=True, slots=True)
class Part:
    """One column of ours, or one part of a Dict: what it is made of."""

    role: str  # obs, actions, eps_id, ...; `extra` for extra model outputs
    path: tuple[str, ...]  # within the role: () for all of it; the name of an extra output
    columns: tuple[str, ...]  # theirs
    stacked: bool = False  # a list was given: the columns become a vector, even if there is one
    is_cost: bool = False  # of rewards: the column is a cost, a negative reward

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


AS_USUAL: Final = CsvForm()


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A mapping without mistakes of its own; whether its columns exist depends on the files."""

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
    fill: Mapping[str, str | float] = field(default_factory=dict)  # by column (theirs): what a missing cell becomes
    images: Mapping[str, str] = field(default_factory=dict)  # by column (theirs) of encoded images: what they are decoded to
    split_at_gaps: bool = False  # any other missing cell ends the episode
    gap: tuple[float, bool] | None = None  # a longer step of `t` begins an episode; whether it is nanoseconds
    period: tuple[float, bool] | None = None  # each span of `t` of this length is an episode; whether it is nanoseconds
    shift: int = 0  # rows by which an action, with its reward and flags, is late: 1 where the first row has a dummy
    row_is_episode: bool = False  # cells hold lists, one value a step
    document: Mapping[str, Any] = field(default_factory=dict)  # all of it as plain values, for provenance

    def of(self, role: str) -> tuple[Part, ...]:
        """The parts of one role."""
        return tuple(part for part in self.parts if part.role == role)

    @property
    def infos(self) -> str | None:
        """The column of infos; None: there is none."""
        return next((part.columns[0] for part in self.of(Columns.INFOS)), None)

    @property
    def has_flags(self) -> bool:
        """Whether any column marks ends."""
        return any(part.role in END_FLAGS for part in self.parts)

    def as_text(self) -> dict[str, str]:
        """Their columns by ours, for people: `{"obs": "x, x_dot", "actions": "a"}`."""
        return {part.name: ", ".join(part.columns) for part in self.parts}

    def without(self, absent: Collection[str]) -> TableMapping:
        """The same without the parts of these names."""
        return replace(self, parts=tuple(part for part in self.parts if part.name not in absent))


def load_mapping(given: GivenMapping, storage_options: Mapping[str, Any] | None = None) -> TableMapping:
    """The mapping in a file, the preset of that name, or a dict. Raises BadMapping, StorageNotFound, StorageError."""
    if isinstance(given, str):
        return mapping_of(mapping_text(given, storage_options), given)
    return _checked(given, OF_PYTHON)


def mapping_of(text: str | bytes, name: str) -> TableMapping:
    """The mapping in a TOML text. Raises BadMapping with all of its mistakes."""
    try:
        document = tomllib.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadMapping(f"not TOML: {error}", where=name, fix=FIX) from error
    return _checked(document, name)


def _checked(document: Mapping[str, Any], name: str) -> TableMapping:
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
        fill=document.get("fill", {}),
        images=document.get("images", {}),
        split_at_gaps=document.get("split_at_gaps", False),
        gap=_span(document.get("gap")),
        period=_span(document.get("period")),
        shift=document.get("shift", 0),
        row_is_episode=document.get("rows") == EPISODES,
        document=json.loads(json.dumps(document), parse_constant=str),  # JSON has no infinities, which spaces may have
    )


def _span(given: str | float | None) -> tuple[float, bool] | None:
    """A number in the units of `t`, or a duration in nanoseconds."""
    if given is None:
        return None
    if not isinstance(given, str):
        return float(given), False
    found = DURATION.fullmatch(given)
    assert found is not None  # as the check of the document saw
    return float(found[1]) * UNITS[found[2]], True


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
        encoding=node.get("encoding", AS_USUAL.encoding),
        columns=None if columns is None else tuple(columns),
    )
