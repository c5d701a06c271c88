"""manifest.json as a typed value: what a dataset is, which shards it has, and how it was made (its provenance).

A broken manifest raises with a list of all mistakes. Two runs of one command may differ in provenance, and in nothing else.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import orjson

from offline_cli import __version__
from offline_cli.datasets.file_names import MANIFEST, SHARD_PATH
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, UnsupportedSpace
from offline_cli.files.blanking import blanked_call, blanked_keys, blanked_values, this_command
from offline_cli.json_documents import deeper_than, mistakes
from offline_cli.spaces import Space, space_from_json, space_to_json

if TYPE_CHECKING:  # `inspect` reads a manifest without what places need
    from offline_cli.files.locations import Location

__all__ = [
    "RECORDING",
    "WRAPPERS",
    "Counts",
    "Environment",
    "Manifest",
    "Shard",
    "content_hash",
    "is_column",
    "is_shard",
    "now",
    "with_defaults",
]

VERSION = 2  # that is written; earlier ones stay readable
MAX_BYTES = 256 << 20
MAX_DEPTH = 100  # of lists and objects; also what keeps the schema's recursion far from Python's
SHARD: Final = re.compile(r"^shards\.(\d+)")  # the place of a mistake
SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_COUNT: Final = 2**63 - 1
SHARD_KEYS: Final = frozenset({"path", "sha256", "episodes", "rows", "steps", "bytes"})
FIGURES: Final = ("nan", "infinite", "min", "max", "mean", "std")
COLUMN_KEYS: Final = frozenset({"dtype", "shape", "pooled", "count", *FIGURES})
FIX = "offline-cli repair builds it anew from the shards; or write the dataset again from its source"

RECORDING: Final = "recording"  # part of the provenance: how `record` made the episodes
WRAPPERS: Final = "wrappers"

PACKAGES = ("numpy", "pyarrow", "gymnasium")


@dataclass(frozen=True, slots=True)
class Environment(EnvironmentSpec):
    """What the episodes were played in; secret arguments are blanked out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", blanked_values(self.kwargs))
        object.__setattr__(self, "wrappers", tuple(map(blanked_call, self.wrappers)))

    @classmethod
    def of(cls, spec: EnvironmentSpec | None) -> Environment | None:
        """As it may be kept."""
        return None if spec is None else cls(spec.id, spec.kwargs, spec.wrappers)

    @property
    def blanked(self) -> list[str]:
        """Dotted names of the arguments whose values are missing here: no environment can be made with them."""
        return blanked_keys(self.kwargs)

    def as_json(self) -> dict[str, Any]:
        """Plain values but for wrappers, which are part of the provenance."""
        return {"id": self.id, "kwargs": dict(self.kwargs)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], provenance: Any) -> Environment:
        """The one in a document: `id`, perhaps `kwargs`; wrappers are in the provenance, those of a recording in its part."""
        known = provenance if isinstance(provenance, Mapping) else {}
        recording = known.get(RECORDING)
        told = recording.get(WRAPPERS) if isinstance(recording, Mapping) else known.get(WRAPPERS)
        given = told if isinstance(told, list) else [] if told is None else [told]
        wrappers = tuple(one if isinstance(one, str) else json.dumps(one) for one in given)
        kwargs = document.get("kwargs")
        return cls(document["id"], kwargs if isinstance(kwargs, dict) else {}, wrappers)


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a dataset."""

    episodes: int
    steps: int
    terminated: int
    truncated: int  # flags as stored: unfinished episodes have it too
    unfinished: int  # truncated only because their recording broke off; ones with neither flag too


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a dataset."""

    path: str  # below the dataset folder: data/shard-0123abcd-000000.parquet
    episodes: int
    rows: int
    steps: int
    bytes: int
    sha256: str  # hex


@dataclass(frozen=True, slots=True, eq=False)  # eq=False: compare as_json()
class Manifest:
    """Everything that is known of a dataset without reading its shards."""

    format: str  # "episodes" | "columns"
    complete: bool  # whether all that was asked for is in it
    environment: Environment | None
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool  # the spaces are a guess from the data
    action_scale: str  # "env" | "normalized" | "unknown"
    compression: str
    counts: Counts
    shards: tuple[Shard, ...]  # in reading order
    statistics: Mapping[str, Any]  # columns by path, return, length: see schemas/manifest.v2.json
    assumptions: Mapping[str, int]
    provenance: Mapping[str, Any]  # the only part that differs between two runs of one command
    episodes_lost: int | None = None  # of the sources, and in no shard; None: not known, as of every manifest of version 1

    def as_json(self) -> dict[str, Any]:
        """Plain values, as schemas/manifest.v2.json describes them; what is not known has no key."""
        lost = {} if self.episodes_lost is None else {"episodes_lost": self.episodes_lost}
        return {
            "format": self.format,
            "version": VERSION,
            "complete": self.complete,
            "environment": self.environment and self.environment.as_json(),
            "observation_space": self.observation_space and space_to_json(self.observation_space),
            "action_space": self.action_space and space_to_json(self.action_space),
            "spaces_inferred": self.spaces_inferred,
            "action_scale": self.action_scale,
            "compression": self.compression,
            "counts": asdict(self.counts),
            "shards": [asdict(shard) for shard in self.shards],
            "statistics": dict(self.statistics),
            "assumptions": dict(sorted(self.assumptions.items())),
            **lost,
            "provenance": self._provenance(),
        }

    def _provenance(self) -> dict[str, Any]:
        """With the wrappers of the environment, where no recording has them."""
        wrappers = self.environment.wrappers if self.environment is not None else ()
        told = {WRAPPERS: list(wrappers)} if wrappers and RECORDING not in self.provenance else {}
        return {**self.provenance, **told}

    def to_bytes(self) -> bytes:
        """The file. Raises ValueError for a manifest that its own schema refuses: our bug."""
        document = self.as_json()
        text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False).encode()
        wrong = _mistakes(json.loads(text))
        if wrong:
            raise ValueError(f"this manifest would be unreadable: {wrong}")
        return text + b"\n"

    @staticmethod
    def read(folder: Location) -> Manifest:
        """The manifest of the dataset in `folder`. Raises BadData, naming all mistakes, StorageNotFound, StorageError."""
        place = folder.join(MANIFEST)
        return Manifest.from_bytes(place.read_bytes(), where=place.url)

    @staticmethod
    def from_bytes(data: bytes, *, where: str) -> Manifest:
        """The manifest in a file. Raises BadData, naming all mistakes."""
        document = _parsed(data, where)
        version = document.get("version")
        if isinstance(version, int) and version > VERSION:
            fix = "pip install --upgrade offline-cli"
            raise BadData(f"a manifest of version {version}; this program knows {VERSION}", where=where, fix=fix)
        wrong = _mistakes(document) or _contradictions(document)
        if wrong:
            raise _bad(wrong, where)
        environment = document["environment"]
        return Manifest(
            format=document["format"],
            complete=document["complete"],
            environment=environment and Environment.from_json(environment, document["provenance"]),
            observation_space=_space(document["observation_space"], f"{where}, observation_space"),
            action_space=_space(document["action_space"], f"{where}, action_space"),
            spaces_inferred=document["spaces_inferred"],
            action_scale=document["action_scale"],
            compression=document["compression"],
            counts=Counts(**_whole(document["counts"])),
            shards=tuple(Shard(**_whole(shard)) for shard in document["shards"]),
            statistics=document["statistics"],
            assumptions=_whole(document["assumptions"]),
            provenance=document["provenance"],
            episodes_lost=_whole(document).get("episodes_lost"),
        )


def schema_of(version: Any) -> str:
    """The schema of a manifest of this declared version; that of the newest where the version is unknown."""
    known = version if isinstance(version, int) and 1 <= version <= VERSION else VERSION
    return f"manifest.v{int(known)}.json"


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise _bad([f"{len(data)} bytes; a manifest has at most {MAX_BYTES}"], where)
    try:
        document = orjson.loads(data)  # refuses NaN and infinities, which JSON does not have
    except ValueError as err:
        raise _bad([f"no JSON: {err}"], where) from err
    if not isinstance(document, dict):
        raise _bad(["no JSON object"], where)
    if deeper_than(document, MAX_DEPTH):
        raise _bad([f"nested deeper than {MAX_DEPTH}"], where)
    return document


def _mistakes(document: dict[str, Any]) -> list[str]:
    """Every mistake against the schema, which skips columns and shards that are valid at a glance: they may be many."""
    statistics, shards = document.get("statistics"), document.get("shards")
    columns = statistics.get("columns") if isinstance(statistics, dict) else None
    if isinstance(statistics, dict) and isinstance(columns, dict):
        doubtful = {path: column for path, column in columns.items() if not is_column(column)}
        document = {**document, "statistics": {**statistics, "columns": doubtful}}
    if not isinstance(shards, list):
        return mistakes(document, schema_of(document.get("version")))
    numbers = [number for number, shard in enumerate(shards) if not is_shard(shard)]
    document = {**document, "shards": [shards[number] for number in numbers]}
    found = mistakes(document, schema_of(document.get("version")))
    return [SHARD.sub(lambda place: f"shards.{numbers[int(place[1])]}", text) for text in found]


def _contradictions(document: dict[str, Any]) -> list[str]:
    """Mistakes beyond any schema: sums that disagree, a shard listed twice."""
    shards, counts = document["shards"], document["counts"]
    wrong = [f"shards: {path} is listed {n} times" for path, n in Counter(shard["path"] for shard in shards).items() if n > 1]
    wrong += [f"shards: {shard['path']!r} is no shard's name" for shard in shards if not SHARD_PATH.fullmatch(shard["path"])]
    for name in ("episodes", "steps"):
        total = sum(shard[name] for shard in shards)
        if total != counts[name]:
            wrong.append(f"counts.{name}: {counts[name]}, but the shards hold {total}")
    if document["format"] == "columns" and None in (document["observation_space"], document["action_space"]):
        wrong.append("format: columns need an observation_space and an action_space")
    return wrong


def _whole(counts: Mapping[str, Any]) -> dict[str, Any]:
    """`counts` with integers as int: JSON Schema takes 3.0 for an integer too."""
    if float not in map(type, counts.values()):
        return dict(counts)
    return {name: int(value) if isinstance(value, float) else value for name, value in counts.items()}


def _space(node: Mapping[str, Any] | None, where: str) -> Space | None:
    if node is None:
        return None
    try:
        return space_from_json(node, where=where)
    except UnsupportedSpace as err:
        raise BadData(err.what, where=err.where, fix=FIX) from err


def _bad(wrong: list[str], where: str) -> BadData:
    what = wrong[0] if len(wrong) == 1 else f"{len(wrong)} mistakes:\n  - " + "\n  - ".join(wrong)
    return BadData(f"the manifest cannot be read: {what}", where=where, fix=FIX, details={"problems": wrong})


# ---- parts of which a manifest has many ----


def content_hash(shards: Iterable[Shard]) -> str:
    """A hash that no other content has: of the paths and hashes of `shards`."""
    return hashlib.sha256(repr([(shard.path, shard.sha256) for shard in shards]).encode()).hexdigest()


def is_shard(value: Any) -> bool:
    """Whether a shard has the form that the schema asks for, which takes 0.1 ms for each.

    False for some that the schema accepts (3.0 for a count), never true for one that it refuses.
    """
    if type(value) is not dict or value.keys() != SHARD_KEYS:
        return False
    path, sha256 = value["path"], value["sha256"]
    counts = value["episodes"], value["rows"], value["steps"], value["bytes"]
    return (
        type(path) is str
        and type(sha256) is str
        and SHARD_PATH.fullmatch(path) is not None
        and SHA256.fullmatch(sha256) is not None
        and [*map(type, counts)] == [int] * 4
        and 0 <= min(counts) <= max(counts) <= MAX_COUNT
    )


def is_column(value: Any) -> bool:
    """The same of a column's statistics, each of which takes a schema 6 ms."""
    return (
        isinstance(value, dict)
        and value.keys() == COLUMN_KEYS
        and isinstance(value["dtype"], str)
        and isinstance(value["pooled"], bool)
        and isinstance(value["shape"], list)
        and all(map(_is_count, (value["count"], *value["shape"])))
        and all(_are_figures(value[name]) for name in FIGURES)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _are_figures(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_are_figures, value))
    return value is None or type(value) in (int, float) or value in ("inf", "-inf")


def now() -> str:
    """This moment in ISO text, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def with_defaults(given: Mapping[str, Any], *, started: str) -> dict[str, Any]:
    """`given` with commands, times, host and versions filled in where they are missing."""
    return {
        "commands": [this_command()],
        "started": started,
        "finished": now(),
        "host": socket.gethostname(),
        **given,
        "versions": {**_versions(), **given.get("versions", {})},
    }


def _versions() -> dict[str, str]:
    found = {"offline-cli": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed by other means than pip
            found[name] = "unknown"
    return found
