"""manifest.json: the contents of a dataset, its shards, and how it was made (its provenance).

`Manifest` is a pydantic model, from which schemas/manifest.v1.json is generated (`manifest_schema`). A broken manifest raises
one BadData that lists all mistakes. Two runs of the same command differ only in provenance.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from dataclasses import field as plain_field
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import gymnasium as gym
import orjson
import pydantic
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic.dataclasses import dataclass as model
from typing_extensions import TypedDict

from offline_cli import __version__
from offline_cli.datasets.file_names import MANIFEST, UNFINISHED_WRITING
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, BadData, UnsupportedSpace
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.schema_files import deeper_than
from offline_cli.spaces import Space, space_from_json, space_to_json
from offline_cli.storage.blanking import BLANK, blanked_call, blanked_values, this_command, without_folders

if TYPE_CHECKING:  # `inspect` reads a manifest without importing fsspec
    from offline_cli.storage.locations import Location

SCHEMA: Final = "manifest.v1.json"
MAX_DEPTH: Final = 100  # of lists and objects: JSON writers stop at 255
MAX_MISTAKES: Final = 50  # listed in one error
NO_MANIFEST: Final = (
    "write the dataset again from its source, or from its shards: "
    "offline-cli convert D/data --out NEW --env ENV --action-scale SCALE"
)

RECORDING: Final = "recording"  # provenance key: how `record` made the episodes
WRAPPERS: Final = "wrappers"
NO_TEXTS: Final = frozenset({UNFINISHED_WRITING, "mappings"})
"""Provenance keys whose texts are names to look up, not paths: they are kept unchanged."""
IDENTITY: Final = "identity"  # provenance key: everything that determines a recording, by name
CHANGES: Final = "changes"  # provenance key: changes of the identity on --resume or --append, as text

LEFT: Final = f"{BLANK}/"  # replacement for folders in environment arguments
STRICT: Final = ConfigDict(extra="forbid", strict=False, arbitrary_types_allowed=True)


@model(frozen=True, config=STRICT)
class EnvironmentRecord(EnvironmentSpec):
    """The environment of the episodes, with secret arguments redacted and local folders removed. A mark replaces folders in
    arguments, so that `refused` (formats/asked_environment.py) does not use such values.
    """

    id: Annotated[str, Field(min_length=1)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", without_folders(self.id))
        object.__setattr__(self, "kwargs", without_folders(blanked_values(self.kwargs), mark=LEFT))
        object.__setattr__(self, "wrappers", tuple(without_folders([*map(blanked_call, self.wrappers)])))

    @classmethod
    def of(cls, spec: EnvironmentSpec | None) -> EnvironmentRecord | None:
        """The record of an environment, or None."""
        return None if spec is None else cls(spec.id, spec.kwargs, spec.wrappers)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"id": self.id, "kwargs": dict(self.kwargs), WRAPPERS: list(self.wrappers)}

    @classmethod
    def from_json(cls, document: Any) -> EnvironmentRecord:
        """Parse the output of `as_json`. Raises ValueError if it is invalid."""
        return TypeAdapter(cls).validate_python(document)


# ---- custom pydantic fields ----


def _read(value: Any, kind: type[Any], of: Callable[[Any], Any]) -> Any:
    """`value` if it is a `kind`, otherwise `of(value)`, which parses JSON."""
    try:
        return value if isinstance(value, kind) else of(value)
    except (UnsupportedSpace, BadConfig) as error:
        raise ValueError(error.what) from error


Count = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
Flag = Annotated[bool, Field(strict=True)]
SpacePart = Annotated[
    Space | None,
    PlainValidator(lambda value: value and _read(value, gym.Space, lambda told: space_from_json(told, where=""))),
    PlainSerializer(lambda space: space and space_to_json(space)),
    WithJsonSchema({"type": ["object", "null"]}),
]
MeaningsPart = Annotated[
    Meanings,
    PlainValidator(lambda value: _read(value, Meanings, lambda told: Meanings.of(told, ""))),
    PlainSerializer(lambda known: known.as_json()),
    WithJsonSchema({"type": "object"}),
]
Figure = Literal["inf", "-inf"] | pydantic.StrictInt | pydantic.StrictFloat | None
"""A number in JSON, with text for infinities and null for NaN."""


class Distribution(TypedDict):
    """Statistics of one number per episode; quantiles by percent."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    count: Count
    min: Figure
    max: Figure
    mean: Figure
    std: Figure
    quantiles: dict[str, Figure]


class Reference(TypedDict):
    random: float
    expert: float


"""Mean returns of random play and of an expert, which normalised scores (0 and 1) refer to."""

Statistics = TypedDict("Statistics", {"return": Distribution, "length": Distribution})
"""Statistics of the episodes."""


@model(frozen=True, slots=True, config=STRICT)
class Shard:
    """One Parquet file of a dataset."""

    path: Annotated[str, Field(pattern=r"^data/shard-[0-9a-f]{8}-[0-9]{6,12}\.parquet$")]  # relative to the dataset folder
    episodes: Count
    rows: Count
    steps: Count
    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@model(frozen=True, slots=True, config=STRICT)
class Counts:
    """Sizes of a dataset."""

    episodes: Count
    steps: Count
    terminated: Count
    truncated: Count  # by the stored flags, including unfinished episodes
    unfinished: Count  # truncated only because the recording stopped, or with neither flag


@model(frozen=True, slots=True, eq=False, config=STRICT)  # eq=False: compare as_json()
class Manifest:
    """The metadata of a dataset, readable without its shards."""

    _: KW_ONLY
    format: Annotated[str, Field(pattern="^(episodes|columns)$")]  # a row is an episode, or a step
    version: Literal[1] = 1
    complete: Flag  # whether it holds everything that was requested
    environment: EnvironmentRecord | None
    observation_space: SpacePart
    action_space: SpacePart
    spaces_inferred: Flag  # the spaces were inferred from the data
    action_scale: Annotated[
        str, Field(pattern="^(env|normalized|unknown)$")
    ]  # env: the action space's scale; normalized: [-1, 1]
    meanings: MeaningsPart = plain_field(default=NO_MEANINGS)  # of columns, where known
    reference: Reference | None = None  # returns for normalised scores; None: unknown
    compression: str  # Parquet codec of the shards
    counts: Counts
    shards: tuple[Shard, ...]  # in reading order
    statistics: Statistics
    assumptions: dict[str, Count]  # counts of assumed, dropped or repaired data, by kind
    episodes_lost: Count | None = None  # source episodes that are in no shard; None: unknown
    provenance: dict[str, Any]  # how it was made: the only part that differs between two runs of the same command

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values in the form of schemas/manifest.v1.json."""
        document: dict[str, Any] = _adapter().dump_python(self, mode="json")
        if self.reference is None:
            del document["reference"]
        return {**document, "assumptions": dict(sorted(self.assumptions.items()))}

    def to_bytes(self) -> bytes:
        """The file's content."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False, ensure_ascii=False).encode() + b"\n"

    @staticmethod
    def read(folder: Location) -> Manifest:
        """Read the manifest of the dataset in `folder`. Raises BadData, naming all mistakes, StorageNotFound, StorageError."""
        place = folder.join(MANIFEST)
        return Manifest.from_bytes(place.read_bytes(), where=place.url)

    @staticmethod
    def from_bytes(data: bytes, *, where: str) -> Manifest:
        """Parse a manifest file. Raises BadData, naming all mistakes."""
        try:
            document = orjson.loads(data)  # rejects NaN and infinities
            if deeper_than(document, MAX_DEPTH):
                raise _bad([f"values nested deeper than {MAX_DEPTH}"], where)
            found: Manifest = _adapter().validate_python(document)
        except pydantic.ValidationError as error:
            mistakes = error.errors(include_url=False, include_input=False)
            raise _bad([f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in mistakes], where) from error
        except (ValueError, RecursionError) as error:
            raise _bad([f"invalid JSON: {error}"], where) from error
        if wrong := _contradictions(found):
            raise _bad(wrong, where)
        return found


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def manifest_schema() -> dict[str, Any]:
    """The content of schemas/manifest.v1.json."""
    schema = TypeAdapter(Manifest).json_schema()
    for name in ("observation_space", "action_space"):
        schema["properties"][name] = {"oneOf": [{"type": "null"}, {"$ref": "offline-cli:spaces.v1.json"}]}
    schema["properties"]["meanings"] = {"$ref": "offline-cli:meanings.v1.json"}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"offline-cli:{SCHEMA}"}
    return {**head, **schema, "title": "Manifest of a dataset, version 1"}


def reference_of(text: str | Sequence[str]) -> Reference:
    """From `random=R,expert=E`, or both apart. Raises BadConfig for another form, or where they are equal."""
    parts = [part for one in ([text] if isinstance(text, str) else text) for part in one.split(",")]
    found = {name.strip(): value for name, _, value in (part.partition("=") for part in parts)}
    try:
        random, expert = (float(found.pop(name)) for name in ("random", "expert"))
        if found or not math.isfinite(expert - random) or random == expert:
            raise ValueError
    except (KeyError, ValueError) as err:
        what = f"{', '.join(parts)!r} is not two different returns, random=R,expert=E"
        raise BadConfig(what, where="--reference", fix="for example --reference random=22,expert=500") from err
    return {"random": random, "expert": expert}


def _contradictions(found: Manifest) -> list[str]:
    """Mistakes that a schema cannot express: sums that disagree, a shard listed twice."""
    times = Counter(shard.path for shard in found.shards)
    wrong = [f"shards: {path} is listed {n} times" for path, n in times.items() if n > 1]
    for name in ("episodes", "steps"):
        total, count = sum(getattr(shard, name) for shard in found.shards), getattr(found.counts, name)
        if total != count:
            wrong.append(f"counts.{name}: {count}, but the shards hold {total}")
    if found.format == "columns" and None in (found.observation_space, found.action_space):
        wrong.append("format: columns needs an observation_space and an action_space")
    return wrong


def _bad(wrong: Sequence[str], where: str) -> BadData:
    listed = wrong[:MAX_MISTAKES]
    what = listed[0] if len(wrong) == 1 else f"{len(wrong)} mistakes:\n  - " + "\n  - ".join(listed)
    return BadData(f"the manifest cannot be read: {what}", where=where, fix=NO_MANIFEST, details={"problems": listed})


# ---- provenance ----


def now() -> str:
    """The current time in UTC as ISO text, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def with_defaults(given: Mapping[str, Any], *, started: str) -> dict[str, Any]:
    """Fill in missing commands, times and versions of a provenance.

    Local folders are removed: a dataset may be shared, and its author's folders are private.
    """
    known = {"commands": [this_command()], "started": started, "finished": now(), **given}
    as_given = {name: part for name, part in known.items() if name in NO_TEXTS}
    return {**without_folders(known), **as_given, "versions": {**_versions(), **given.get("versions", {})}}


@cache
def _versions() -> Mapping[str, str]:
    installed = {name: version(name) for name in ("numpy", "pyarrow", "gymnasium")}
    return {"offline-cli": __version__, "python": platform.python_version(), **installed}
