"""Mappings: which columns of a table are observations, actions, and so on. Load and check them, reporting all mistakes at once.

A mapping is a TOML file, a preset or a dict: ours = theirs. schemas/mapping.v1.json is generated from `MappingDocument`
(`docs/write_reference.py schema mapping`). `obs`, `actions` and `new_obs` may be given in parts (`"obs.camera"`, or a table of
parts); each part is one column, or several that are stacked.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping, StorageNotFound, UnsupportedSpace
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.schema_files import deeper_than, schemas_folder, toml_schema
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import open_location

DEFAULT: Final = "rllib"  # the preset used if no mapping is given
ENDING: Final = ".v1.toml"
EXTRA: Final = "extra"
STARTS: Final = "starts"
FILE_ID, FOLDER_ID = "@file", "@folder"  # instead of an id column
KEYS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES: Final = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
FILLED_ROLES: Final = (*TREES, Columns.REWARDS, EXTRA)
DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|min|m|h|d|w)\s*")
UNITS: Final = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "m": 60e9, "h": 3600e9, "d": 86400e9, "w": 604800e9}
MAX_DEPTH: Final = 64  # of nested tables and lists; a space is nested at most 16 deep
FIX: Final = 'correct the mapping; see "Turn a table into episodes" in the documentation'
OF_PYTHON: Final = "(dict)"  # the name of a mapping given as a dict
PREVIOUS: Final = "previous"

GivenMapping = str | Mapping[str, Any]  # a file by path or URL, the name of a preset, or the mapping itself


# ---- the model of a mapping ----

COLUMN_S: Final = {"type": ["string", "array"], "items": {"type": "string"}, "minItems": 1}
Names = Annotated[str | Annotated[list[str], Field(min_length=1)], WithJsonSchema(COLUMN_S)]
Texts = Annotated[list[str], Field(min_length=1)]
Word = Annotated[str, Field(min_length=1)]
Fill = Annotated[FiniteFloat | Literal["zero", "previous"], WithJsonSchema({"type": ["string", "number"]})]
Dtype = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
]  # fmt: skip


def _span(given: str | float) -> str | float:
    if isinstance(given, str) and not DURATION.fullmatch(given):
        raise ValueError("write durations as 30min, 90s or 1d")
    if isinstance(given, float | int) and not 0 < given < math.inf:
        raise ValueError("a span must be above 0")
    return given


def _encoding(name: str) -> str:
    try:
        "a".encode(name)  # fails for codecs that are not text encodings
    except LookupError as error:
        raise ValueError(str(error)) from error
    return name


Span = Annotated[str | float, AfterValidator(_span), WithJsonSchema({"type": ["string", "number"]})]
Encoding = Annotated[str, Field(min_length=1), AfterValidator(_encoding)]


class _MappingModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RoleNames(_MappingModel):
    """Our column = theirs; a list of columns is stacked into a vector, and `"obs.camera"` is one part of a Dict.

    Dotted names such as `state.position` also select parts of structs.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Names]
    PART: ClassVar = re.compile(r"(obs|actions|new_obs)(\.[^.]+)+")

    eps_id: Names | None = Field(
        default=None, description="The id of the row's episode: a column, several columns, `@file` or `@folder`."
    )
    starts: str | None = Field(default=None, description="Whether an episode begins with this row.")
    t: str | None = Field(default=None, description="The order of rows within an episode: numbers, dates or times.")
    agent_id: str | None = Field(default=None, description="The agent of a row, if several agents share an `eps_id`.")
    module_id: str | None = Field(default=None, description="The policy that acted.")
    obs: Names | None = Field(default=None, description="The observation before the action.")
    actions: Names | None = Field(default=None, description="The action taken.")
    rewards: str | None = Field(
        default=None, description="The reward of the action; 0 if not mapped. `-cost` is the negative of `cost`."
    )
    new_obs: Names | None = Field(
        default=None, description="The observation after the action; without it, the next row's `obs`."
    )
    terminateds: str | None = Field(default=None, description="Whether the task ended with this row.")
    truncateds: str | None = Field(
        default=None, description="Whether the episode was cut off after this row, for example by a time limit."
    )
    dones: str | None = Field(default=None, description="Legacy end flag: read as `terminateds`, and counted.")
    done: str | None = Field(default=None, description="The same as `dones`.")
    infos: str | None = Field(default=None, description="JSON objects as text, or structs.")


class CsvForm(_MappingModel):
    """Format of CSV files."""

    delimiter: str | None = Field(default=None, min_length=1, max_length=1, description="Default: a comma, and a tab in .tsv.")
    decimal: Literal[".", ","] = Field(default=".", description="The decimal separator.")
    encoding: Encoding = Field(default="utf-8", description="Text encoding: any that Python supports.")
    nulls: list[str] = Field(default=[], description="Texts that mean a missing value, besides empty cells.")
    columns: Texts | None = Field(default=None, description="Column names, for files without a header.")


class Dtypes(_MappingModel):
    """Dtypes of `obs` and `actions`; floats are rounded."""

    obs: Dtype | None = None
    actions: Dtype | None = None


class Spaces(_MappingModel):
    """Spaces, as in spaces.v1.json. Default: those of `--env`, otherwise inferred."""

    observation: dict[str, Any] | None = None
    action: dict[str, Any] | None = None


class MappingDocument(_MappingModel):
    """The meaning of a table's columns (TOML, `convert --mapping FILE`): ours = theirs."""

    description: str = Field(default="", description="Free text.")
    columns: RoleNames
    extra: dict[str, Names] = Field(default={}, description="Extra model outputs by name, such as `action_logp`.")
    optional: list[str] = Field(default=[], description="Our columns that may be missing from all files.")
    unmapped: Literal["extra", "drop", "error"] = Field(
        default="extra",
        description="Unmapped columns: numeric ones become extra model outputs; all are dropped; or they are an error.",
    )
    episode_ends: Literal["flags", "t", "chain"] | None = Field(
        None,
        description="Where an episode ends: at end flags, where `t` decreases, or where `new_obs` is not the next `obs`.",
    )
    rows: Literal["steps", "episodes"] | None = Field(
        default=None, description="Whether a row is a step, or an episode with lists of steps."
    )
    gap: Span | None = Field(
        default=None, description="A new episode begins after a longer gap in `t`: a duration (`30min`) or a number."
    )
    period: Span | None = Field(default=None, description="Each period of `t` of this length is an episode (`1d`).")
    shift: Literal[0, 1] = Field(
        default=0, description="1 if the action, reward and flags of a row belong to the previous row."
    )
    ids_per_file: bool = Field(default=False, description="Whether equal ids in different files are different episodes.")
    categories: dict[str, Texts] = Field(default={}, description="By column: its texts, numbered from 0 in this order.")
    names: dict[str, Word] = Field(default={}, description="By column: its name in the dataset.")
    units: dict[str, Word] = Field(default={}, description="By column: the unit of its numbers.")
    fill: dict[str, Fill] = Field(
        default={}, description='By column: the value of missing cells: "zero", "previous" or a number.'
    )
    images: dict[str, Literal["rgb", "gray"]] = Field(
        default={}, description="By column of PNG or JPEG bytes: the mode to decode to."
    )
    dtypes: Dtypes = Dtypes()
    spaces: Spaces = Spaces()
    action_scale: Literal["env", "normalized"] | None = Field(default=None, description="Scale of Box actions.")
    environment: Word | None = Field(default=None, description="Id of the recorded environment, for the manifest.")
    csv: CsvForm = CsvForm()


# ---- a checked mapping ----


@dataclass(frozen=True, slots=True)
class Part:
    """One of our columns, or one part of a Dict, and the columns it is made of."""

    role: str  # obs, actions, eps_id, ...; `extra` for extra model outputs
    path: tuple[str, ...]  # within the role: () for the whole; for `extra`, the output's name
    columns: tuple[str, ...]  # theirs
    stacked: bool = False  # given as a list: stack the columns into a vector, even a single one
    is_cost: bool = False  # rewards only: the column is a cost, to be negated

    @classmethod
    def of(cls, role: str, *path: str, theirs: Any) -> Part:
        """From a column, or a list of columns."""
        is_list = isinstance(theirs, list)
        return cls(role, path, tuple(theirs) if is_list else (theirs,), is_list)

    @property
    def name(self) -> str:
        """`obs`, `obs.camera`, `extra.action_logp`."""
        return ".".join((self.role, *self.path))

    @property
    def said_as(self) -> str:
        """The name in the mapping."""
        return ".".join(self.path) if self.role == EXTRA else self.name


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A valid mapping; its columns have not been matched with files yet."""

    name: str  # file or preset
    said: MappingDocument
    parts: tuple[Part, ...]  # including obs and actions
    spaces: tuple[Space | None, Space | None]  # of observations and of actions
    document: Mapping[str, Any]  # the whole mapping as plain values, for provenance

    def of(self, role: str) -> tuple[Part, ...]:
        """The parts of one role."""
        return tuple(part for part in self.parts if part.role == role)

    def names(self, *roles: str) -> list[str]:
        """Their distinct columns for the given roles; for all roles if none are given."""
        return list(dict.fromkeys(name for part in self.parts if not roles or part.role in roles for name in part.columns))

    @property
    def infos(self) -> str | None:
        """The column of infos, or None."""
        return next(iter(self.names(Columns.INFOS)), None)

    @property
    def divides_keys(self) -> bool:
        """Whether starts, gaps or periods can divide the rows of one id."""
        return bool(self.said.gap or self.said.period or self.of(STARTS))


def span_of(given: str | float) -> tuple[float, bool]:
    """Parse a span: a number in units of `t`, or a duration in nanoseconds; and whether it is nanoseconds."""
    found = DURATION.fullmatch(given) if isinstance(given, str) else None
    return (float(given), False) if found is None else (float(found[1]) * UNITS[found[2]], True)


# ---- where mappings come from ----


def given_mapping(given: str | os.PathLike[str] | Mapping[str, Any]) -> GivenMapping:
    """Normalize a keyword argument: a path to text, a dict to plain values. Raises BadMapping."""
    if not isinstance(given, Mapping):
        return os.fspath(given)

    def plain(value: Any) -> Any:
        return dict(value) if isinstance(value, Mapping) else value.tolist()  # a NumPy number

    try:
        return dict(json.loads(json.dumps(given, default=plain)))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise BadMapping(f"the mapping has values that TOML does not support: {error}", where=OF_PYTHON, fix=FIX) from error


@cache
def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    return tuple(sorted(path.name.removesuffix(ENDING) for path in (schemas_folder() / "mappings").glob(f"*{ENDING}")))


def preset_text(name: str) -> str:
    """The TOML of one preset."""
    return (schemas_folder() / "mappings" / f"{name}{ENDING}").read_text(encoding="utf-8")


def mapping_text(given: GivenMapping, storage_options: Mapping[str, Any] | None = None) -> bytes:
    """The text of a mapping: TOML; for a dict JSON, in its own order, which is the order of columns.

    Presets take precedence over files: write `./rllib` for a file of that name. Raises StorageNotFound.
    """
    if not isinstance(given, str):
        return json.dumps(given, default=repr).encode()
    presets = preset_names()
    if given in presets:
        return preset_text(given).encode()
    location = open_location(given, storage_options if "://" in given else None)  # they may be for the sources alone
    if location.exists():
        return location.read_bytes()
    near = get_close_matches(given, presets, n=1)
    fix = f"did you mean {near[0]}?" if near else f"give the path of a file, or one of {', '.join(presets)}"
    raise StorageNotFound(f"no mapping file or preset is named {given}", where="--mapping", fix=fix)


def load_mapping(given: GivenMapping, storage_options: Mapping[str, Any] | None = None) -> TableMapping:
    """Load and check a mapping: file, preset or dict. Raises BadMapping, StorageNotFound, StorageError."""
    if isinstance(given, str):
        return mapping_of(mapping_text(given, storage_options), given)
    return _checked(given, OF_PYTHON)


def mapping_of(text: str | bytes, name: str) -> TableMapping:
    """Parse and check a mapping in TOML. Raises BadMapping with all mistakes."""
    try:
        document = tomllib.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, invalid UTF-8, an invalid date
        raise BadMapping(f"not TOML: {error}", where=name, fix=FIX) from error
    return _checked(document, name)


# ---- checks ----


def nearest(word: str, known: Collection[str]) -> str:
    """`, did you mean 'obs'?`; empty if no known word is similar."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f", did you mean '{by_lower[near[0]]}'?" if near else ""


def _checked(given: Mapping[str, Any], name: str) -> TableMapping:
    """Check a document. Raises BadMapping with all mistakes of structure, or otherwise all of content."""
    if deeper_than(given, MAX_DEPTH):
        raise BadMapping(f"tables nested deeper than {MAX_DEPTH}", where=name, fix=FIX)
    columns = given.get("columns")
    named = dict(_dotted(columns, "")) if isinstance(columns, dict) else {}
    document = {**given, "columns": named} if named else dict(given)
    parts = tuple(Part.of(*key.split("."), theirs=theirs) for key, theirs in named.items())
    found = list(_wrong_roles(parts))
    try:
        said = MappingDocument.model_validate(document)
    except ValidationError as error:
        by_place = {
            one["loc"][:2]: _in_words(one, document) for one in error.errors()
        }  # the last error of a union is the most helpful
        found = sorted([*by_place.values(), *found], key=lambda text: "unknown key" not in text)
        raise BadMapping.of(found, where=name, fix=FIX) from error
    parts += tuple(Part.of(EXTRA, key, theirs=theirs) for key, theirs in said.extra.items())
    spaces = tuple(_space(node, role, found) for role, node in vars(said.spaces).items())
    found += [*_contradictions(said, parts), *_wrong_columns(said, parts)]
    if found:
        raise BadMapping.of(found, where=name, fix=FIX)
    plain = json.loads(json.dumps(document), parse_constant=str)  # spaces may have infinities, which JSON lacks
    return TableMapping(name, said, parts, (spaces[0], spaces[1]), plain)


def _dotted(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Flatten `obs = {camera = "cam"}` to `"obs.camera" = "cam"`; TOML reads an unquoted `obs.camera = "cam"` as a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _in_words(error: Any, document: Any) -> str:
    """Format a pydantic error: dotted place in the document, and what is wrong."""
    place = [str(key) for key in error["loc"] if not str(key).startswith(("str", "list[", "float"))]
    if error["type"] == "extra_forbidden":
        belongs = place[-1] in RoleNames.model_fields and len(place) == 1
        hint = ": it belongs under [columns]" if belongs else nearest(place[-1], MappingDocument.model_fields)
        return f"{''.join(f'{key}: ' for key in place[:-1])}unknown key '{place[-1]}'{hint}"
    if error["type"] == "missing":
        return f"'{place[-1]}' is missing"
    return f"{'.'.join(place)}: {error['msg'][:1].lower()}{error['msg'][1:]}, not {str(error['input'])[:60]!r}"


def _space(node: Mapping[str, Any] | None, role: str, found: list[str]) -> Space | None:
    try:
        return None if node is None else space_from_json(node, where=role)
    except UnsupportedSpace as error:
        found.append(f"spaces.{role}: {error.what}")
        return None


def _wrong_roles(parts: Collection[Part]) -> Iterator[str]:
    """Report unknown names, missing roles, and columns given both whole and in parts."""
    names = {part.name for part in parts}
    for name in names:
        if name not in RoleNames.model_fields and not RoleNames.PART.fullmatch(name):
            yield f"columns: unknown key '{name}'{nearest(name, RoleNames.model_fields)}"
        if any(other.startswith(f"{name}.") for other in names):
            yield f"columns: '{name}' is given whole and in parts"
    obs, actions, new_obs = ({part.path for part in parts if part.role == role} for role in TREES)
    yield from (f"columns: '{role}' is missing" for role, one in zip(TREES, (obs, actions), strict=False) if not one)
    for role in KEYS[1:]:
        if role in names and Columns.EPS_ID not in names:
            yield f"columns: '{role}' needs 'eps_id', to distinguish the episodes of an agent"
    if new_obs and obs and new_obs != obs:
        different = ", ".join(sorted(".".join(path) or "(the whole)" for path in obs ^ new_obs))
        yield f"columns: 'new_obs' and 'obs' have different parts: {different}"


def _contradictions(said: MappingDocument, parts: Collection[Part]) -> Iterator[str]:
    roles, named = {part.role for part in parts}, {part.said_as for part in parts}
    needs = {"flags": END_FLAGS, "t": (Columns.T,), "chain": (Columns.NEXT_OBS,), None: roles}[said.episode_ends]
    if not roles.intersection(needs):
        yield f'episode_ends: "{said.episode_ends}" needs a column for one of {", ".join(needs)}'
    for name, given in (("gap", said.gap), ("period", said.period)):
        if given is not None and Columns.T not in roles:
            yield f"{name}: needs a column for t"
    for name in said.optional:
        if name not in named:
            yield f"optional: '{name}' is not mapped{nearest(name, named)}"
        elif name.partition(".")[0] in (Columns.OBS, Columns.ACTIONS):
            yield f"optional: '{name}' is required"


def _wrong_columns(said: MappingDocument, parts: Collection[Part]) -> Iterator[str]:
    """Report columns in `names`, `units`, `fill` and `images` that these do not apply to."""
    values = dict.fromkeys(name for part in parts if part.role in FILLED_ROLES for name in part.columns)
    for section in ("names", "units", "fill", "images"):
        for column in getattr(said, section):
            is_within = section in ("fill", "images") and any(column.startswith(f"{name}.") for name in values)
            if column not in values and not is_within:
                yield f"{section}: column '{column}' is not mapped to values of a step{nearest(column, values)}"
    for part in parts:
        for column in said.images.keys() & part.columns:
            if part.stacked or part.role not in (*TREES, EXTRA) or column in said.categories:
                yield f"images: column '{column}' of {part.said_as} is in a list, has [categories], or is not an observation"


def mapping_schema() -> dict[str, Any]:
    """The JSON Schema of mappings: schemas/mapping.v1.json."""
    found = toml_schema(MappingDocument, "offline-cli:mapping.v1.json", title="Mapping of a table, version 1")
    found["$defs"]["Spaces"]["properties"] = {name: {"$ref": "offline-cli:spaces.v1.json"} for name in Spaces.model_fields}
    return found
