"""What the columns of a table mean: a mapping from a file, a preset or a dict, checked, with all its mistakes listed at once.

A mapping is TOML: ours = theirs. `MappingDocument` is its form, from which schemas/mapping.v1.json is written
(`python -m offline_cli.formats.tables.mapping`). `obs`, `actions` and `new_obs` may be given in parts (`"obs.camera"`, or a
table of parts), each of them one column or several that are stacked.
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

DEFAULT: Final = "rllib"  # the preset that is used where no mapping is given
ENDING: Final = ".v1.toml"
EXTRA: Final = "extra"
STARTS: Final = "starts"
FILE_ID, FOLDER_ID = "@file", "@folder"  # in the place of a column of ids
KEYS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES: Final = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
FILLED_ROLES: Final = (*TREES, Columns.REWARDS, EXTRA)
DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|min|m|h|d|w)\s*")
UNITS: Final = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "m": 60e9, "h": 3600e9, "d": 86400e9, "w": 604800e9}
MAX_DEPTH: Final = 64  # of tables and lists; a space is nested at most 16 deep
FIX: Final = "correct the mapping; docs/tables.md and schemas/mapping.v1.json say what it may hold"
OF_PYTHON: Final = "(dict)"  # the name of a mapping that is no file
PREVIOUS: Final = "previous"

GivenMapping = str | Mapping[str, Any]  # a file by path or URL, the name of a preset, or the mapping itself


# ---- the form of a mapping ----

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
        raise ValueError("a duration is written as 30min, 90s or 1d")
    if isinstance(given, float | int) and not 0 < given < math.inf:
        raise ValueError("a span is more than 0")
    return given


def _encoding(name: str) -> str:
    try:
        "a".encode(name)  # codecs of no text refuse it
    except LookupError as error:
        raise ValueError(str(error)) from error
    return name


Span = Annotated[str | float, AfterValidator(_span), WithJsonSchema({"type": ["string", "number"]})]
Encoding = Annotated[str, Field(min_length=1), AfterValidator(_encoding)]


class _MappingModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RoleNames(_MappingModel):
    """Our columns by name, each with theirs; a list of columns is stacked into a vector, `"obs.camera"` is one part of a Dict.

    A name that no column has may lead into structs: `state.position`.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Names]
    PART: ClassVar = re.compile(r"(obs|actions|new_obs)(\.[^.]+)+")

    eps_id: Names | None = Field(
        default=None, description="The episode of a row: a column, several together, `@file` or `@folder`."
    )
    starts: str | None = Field(default=None, description="Whether an episode begins with this row.")
    t: str | None = Field(default=None, description="The order of rows within an episode: numbers, dates or times.")
    agent_id: str | None = Field(default=None, description="Whose row it is, where several agents share an `eps_id`.")
    module_id: str | None = Field(default=None, description="Which policy acted.")
    obs: Names | None = Field(default=None, description="The observation acted on.")
    actions: Names | None = Field(default=None, description="The action taken.")
    rewards: str | None = Field(
        default=None, description="What the action earned, 0 where absent; `-cost` is the negative of `cost`."
    )
    new_obs: Names | None = Field(
        default=None, description="The observation after the action; without it, the next row's `obs`."
    )
    terminateds: str | None = Field(default=None, description="Whether the task ended with this row.")
    truncateds: str | None = Field(default=None, description="Whether the clock ended the episode with this row.")
    dones: str | None = Field(default=None, description="The legacy flag: read as `terminateds`, and counted.")
    done: str | None = Field(default=None, description="The same as `dones`.")
    infos: str | None = Field(default=None, description="JSON objects as text, or structs.")


class CsvForm(_MappingModel):
    """How CSV files are written."""

    delimiter: str | None = Field(default=None, min_length=1, max_length=1, description="Default: a comma, and a tab in .tsv.")
    decimal: Literal[".", ","] = Field(default=".", description="What stands before decimals.")
    encoding: Encoding = Field(default="utf-8", description="How letters are written: any encoding of text that Python knows.")
    nulls: list[str] = Field(default=[], description="Texts that mean: no value. An empty cell always does.")
    columns: Texts | None = Field(default=None, description="Names of the columns, for files that have no header.")


class Dtypes(_MappingModel):
    """The dtype that `obs` or `actions` get; floats are rounded to it."""

    obs: Dtype | None = None
    actions: Dtype | None = None


class Spaces(_MappingModel):
    """What the values may be, in the form of spaces.v1.json; else of `--env`, else inferred."""

    observation: dict[str, Any] | None = None
    action: dict[str, Any] | None = None


class MappingDocument(_MappingModel):
    """What the columns of a foreign table mean (TOML, `convert --mapping FILE`): ours = theirs."""

    description: str = Field(default="", description="For people.")
    columns: RoleNames
    extra: dict[str, Names] = Field(default={}, description="Extra model outputs by name, such as `action_logp`.")
    optional: list[str] = Field(default=[], description="Names that are left out where no file has such a column.")
    unmapped: Literal["extra", "drop", "error"] = Field(
        default="extra",
        description="Columns not named: numeric ones become extra model outputs; all are dropped; or are an error.",
    )
    episode_ends: Literal["flags", "t", "chain"] | None = Field(
        None,
        description="What divides rows in order: end flags, `t` that falls back, `new_obs` that is not the next `obs`.",
    )
    rows: Literal["steps", "episodes"] | None = Field(
        default=None, description="What a row is: a step, or an episode of lists of steps."
    )
    gap: Span | None = Field(
        default=None, description="An episode begins after a longer step of `t`: a duration (`30min`) or a number."
    )
    period: Span | None = Field(default=None, description="Every span of `t` of this length is an episode (`1d`).")
    shift: Literal[0, 1] = Field(default=0, description="1 where action, reward and flags of a row belong to the row before.")
    ids_per_file: bool = Field(default=False, description="Whether equal ids in two files are two episodes.")
    categories: dict[str, Texts] = Field(default={}, description="By column: its texts, in the order that numbers them from 0.")
    names: dict[str, Word] = Field(default={}, description="By column: what it is called in the dataset.")
    units: dict[str, Word] = Field(default={}, description="By column: the unit of its numbers.")
    fill: dict[str, Fill] = Field(
        default={}, description='By column: what a missing cell becomes: "zero", "previous" or a number.'
    )
    images: dict[str, Literal["rgb", "gray"]] = Field(
        default={}, description="By column of PNG or JPEG bytes: what they are decoded to."
    )
    dtypes: Dtypes = Dtypes()
    spaces: Spaces = Spaces()
    action_scale: Literal["env", "normalized"] | None = Field(default=None, description="Scale of Box actions.")
    environment: Word | None = Field(default=None, description="Id of the environment that was recorded, for the manifest.")
    csv: CsvForm = CsvForm()


# ---- a mapping that has been checked ----


@dataclass(frozen=True, slots=True)
class Part:
    """One column of ours, or one part of a Dict: what it is made of."""

    role: str  # obs, actions, eps_id, ...; `extra` for extra model outputs
    path: tuple[str, ...]  # within the role: () for all of it; the name of an extra output
    columns: tuple[str, ...]  # theirs
    stacked: bool = False  # a list was given: the columns become a vector, even if there is one
    is_cost: bool = False  # of rewards: the column is a cost, a negative reward

    @classmethod
    def of(cls, role: str, *path: str, theirs: Any) -> Part:
        """From a column, or a list of them."""
        is_list = isinstance(theirs, list)
        return cls(role, path, tuple(theirs) if is_list else (theirs,), is_list)

    @property
    def name(self) -> str:
        """`obs`, `obs.camera`, `extra.action_logp`."""
        return ".".join((self.role, *self.path))

    @property
    def said_as(self) -> str:
        """The name as the mapping has it."""
        return ".".join(self.path) if self.role == EXTRA else self.name


@dataclass(frozen=True, slots=True)
class TableMapping:
    """A mapping without mistakes of its own; whether its columns exist depends on the files."""

    name: str  # of the file or preset
    said: MappingDocument
    parts: tuple[Part, ...]  # at least one of obs and of actions
    spaces: tuple[Space | None, Space | None]  # of observations and of actions
    document: Mapping[str, Any]  # all of it as plain values, for provenance

    def of(self, role: str) -> tuple[Part, ...]:
        """The parts of one role."""
        return tuple(part for part in self.parts if part.role == role)

    def names(self, *roles: str) -> list[str]:
        """Their columns for some roles, of all parts where none is given, each once."""
        return list(dict.fromkeys(name for part in self.parts if not roles or part.role in roles for name in part.columns))

    @property
    def infos(self) -> str | None:
        """The column of infos; None: there is none."""
        return next(iter(self.names(Columns.INFOS)), None)

    @property
    def divides_keys(self) -> bool:
        """Whether starts, gaps or periods divide the rows of an id."""
        return bool(self.said.gap or self.said.period or self.of(STARTS))


def span_of(given: str | float) -> tuple[float, bool]:
    """A number in the units of `t`, or a duration in nanoseconds; whether it is nanoseconds."""
    found = DURATION.fullmatch(given) if isinstance(given, str) else None
    return (float(given), False) if found is None else (float(found[1]) * UNITS[found[2]], True)


# ---- where mappings come from ----


def given_mapping(given: str | os.PathLike[str] | Mapping[str, Any]) -> GivenMapping:
    """A keyword as it is kept: a path as text, a dict as a copy of plain values. Raises BadMapping for others."""
    if not isinstance(given, Mapping):
        return os.fspath(given)

    def plain(value: Any) -> Any:
        return dict(value) if isinstance(value, Mapping) else value.tolist()  # a number of numpy

    try:
        return dict(json.loads(json.dumps(given, default=plain)))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise BadMapping(f"a mapping of other values than TOML has: {error}", where=OF_PYTHON, fix=FIX) from error


@cache
def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    return tuple(sorted(path.name.removesuffix(ENDING) for path in (schemas_folder() / "mappings").glob(f"*{ENDING}")))


def preset_text(name: str) -> str:
    """The TOML of one preset."""
    return (schemas_folder() / "mappings" / f"{name}{ENDING}").read_text(encoding="utf-8")


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
    near = get_close_matches(given, presets, n=1)
    fix = f"did you mean {near[0]}?" if near else f"give the path of a file, or one of {', '.join(presets)}"
    raise StorageNotFound(f"no mapping file and no preset is called {given}", where="--mapping", fix=fix)


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


# ---- checks ----


def nearest(word: str, known: Collection[str]) -> str:
    """`, did you mean 'obs'?`, or nothing where no word is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f", did you mean '{by_lower[near[0]]}'?" if near else ""


def _checked(given: Mapping[str, Any], name: str) -> TableMapping:
    """The mapping that a document says. Raises BadMapping with all mistakes of its form, or else of its contents."""
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
        by_place = {one["loc"][:2]: _in_words(one, document) for one in error.errors()}  # of a union, the last one tells most
        found = sorted([*by_place.values(), *found], key=lambda text: "unknown key" not in text)
        raise BadMapping.of(found, where=name, fix=FIX) from error
    parts += tuple(Part.of(EXTRA, key, theirs=theirs) for key, theirs in said.extra.items())
    spaces = tuple(_space(node, role, found) for role, node in vars(said.spaces).items())
    found += [*_contradictions(said, parts), *_wrong_columns(said, parts)]
    if found:
        raise BadMapping.of(found, where=name, fix=FIX)
    plain = json.loads(json.dumps(document), parse_constant=str)  # JSON has no infinities, which spaces may have
    return TableMapping(name, said, parts, (spaces[0], spaces[1]), plain)


def _dotted(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """`obs = {camera = "cam"}` as `"obs.camera" = "cam"`; TOML reads an unquoted `obs.camera = "cam"` as the first."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _in_words(error: Any, document: Any) -> str:
    """A mistake that pydantic found: its dotted place in the document, and what is wrong there."""
    place = [str(key) for key in error["loc"] if not str(key).startswith(("str", "list[", "float"))]
    if error["type"] == "extra_forbidden":
        belongs = place[-1] in RoleNames.model_fields and len(place) == 1
        hint = ": it belongs under [columns]" if belongs else nearest(place[-1], MappingDocument.model_fields)
        return f"{''.join(f'{key}: ' for key in place[:-1])}unknown key '{place[-1]}'{hint}"
    if error["type"] == "missing":
        return f"'{place[-1]}' is missing"
    return f"{'.'.join(place)}: {error['msg'][:1].lower()}{error['msg'][1:]}, and not {str(error['input'])[:60]!r}"


def _space(node: Mapping[str, Any] | None, role: str, found: list[str]) -> Space | None:
    try:
        return None if node is None else space_from_json(node, where=role)
    except UnsupportedSpace as error:
        found.append(f"spaces.{role}: {error.what}")
        return None


def _wrong_roles(parts: Collection[Part]) -> Iterator[str]:
    """Names that are none of ours, roles that are missing, and trees given twice."""
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
            yield f"columns: '{role}' needs 'eps_id', which distinguishes the episodes of an agent"
    if new_obs and obs and new_obs != obs:
        different = ", ".join(sorted(".".join(path) or "(all of it)" for path in obs ^ new_obs))
        yield f"columns: 'new_obs' has other parts than 'obs': {different}"


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
            yield f"optional: '{name}' is named nowhere{nearest(name, named)}"
        elif name.partition(".")[0] in (Columns.OBS, Columns.ACTIONS):
            yield f"optional: there is no episode without '{name}'"


def _wrong_columns(said: MappingDocument, parts: Collection[Part]) -> Iterator[str]:
    """Columns of `names`, `units`, `fill` and `images` that are mapped to nothing that has these, and fills that are none."""
    values = dict.fromkeys(name for part in parts if part.role in FILLED_ROLES for name in part.columns)
    for section in ("names", "units", "fill", "images"):
        for column in getattr(said, section):
            is_within = section in ("fill", "images") and any(column.startswith(f"{name}.") for name in values)
            if column not in values and not is_within:
                yield f"{section}: column '{column}' is not mapped to values of a step{nearest(column, values)}"
    for part in parts:
        for column in said.images.keys() & part.columns:
            if part.stacked or part.role not in (*TREES, EXTRA) or column in said.categories:
                yield f"images: column '{column}' of {part.said_as} is in a list, has [categories], or is no observation"


def mapping_schema() -> dict[str, Any]:
    """The JSON Schema of mappings: schemas/mapping.v1.json."""
    found = toml_schema(MappingDocument, "offline-cli:mapping.v1.json", title="Mapping of a table, version 1")
    found["$defs"]["Spaces"]["properties"] = {name: {"$ref": "offline-cli:spaces.v1.json"} for name in Spaces.model_fields}
    return found
