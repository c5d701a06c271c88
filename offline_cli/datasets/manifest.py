"""manifest.json as a typed value: what a dataset is, which shards it has, and how it was made (its provenance).

A broken manifest raises with a list of all mistakes. Two runs of one command may differ in provenance, and in nothing else.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import orjson

from offline_cli import __version__
from offline_cli.datasets.file_names import MANIFEST, PART_PATH, SHARD_PATH, UNFINISHED_WRITING, part_name
from offline_cli.datasets.shard_list import (
    MAX_COUNT,
    Part,
    ReadPart,
    Shard,
    ShardParts,
    content_hash,
    is_part,
    is_shard,
    read_part,
    whole_numbers,
)
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, StorageNotFound, UnsupportedSpace
from offline_cli.json_documents import deeper_than, mistakes
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, space_from_json, space_to_json
from offline_cli.storage.blanking import BLANK, blanked_call, blanked_keys, blanked_values, this_command, without_folders

if TYPE_CHECKING:  # `inspect` reads a manifest without what places need
    from offline_cli.storage.locations import Location

__all__ = [
    "CHANGES",
    "IDENTITY",
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

VERSION = 1
SCHEMA: Final = "manifest.v1.json"
SCHEMA_OF_PARTS: Final = "manifest-of-parts.v1.json"  # of a manifest that lists parts, which list the shards
MAX_BYTES = 256 << 20
MAX_DEPTH = 100  # of lists and objects; also what keeps the schema's recursion far from Python's
MANY: Final = {"shards": is_shard, "parts": is_part}
PLACE: Final = re.compile(r"^(shards|parts)\.(\d+)")  # of a mistake in one of many
FIGURES: Final = ("nan", "infinite", "min", "max", "mean", "std")
COLUMN_KEYS: Final = frozenset({"dtype", "shape", "pooled", "count", *FIGURES})
FIX = "offline-cli repair builds it anew from the shards; or write the dataset again from its source"

RECORDING: Final = "recording"  # part of the provenance: how `record` made the episodes
WRAPPERS: Final = "wrappers"
NO_TEXTS: Final = frozenset({UNFINISHED_WRITING, "mappings"})
"""Parts of a provenance whose texts are no paths, but names that are looked up: they stay as they are."""
IDENTITY: Final = "identity"  # what a recording follows from, by name: a part of the provenance, as are
CHANGES: Final = "changes"  # of it while the recording was resumed or appended to, in words

LEFT: Final = f"{BLANK}/"  # of folders in arguments of an environment
PACKAGES = ("numpy", "pyarrow", "gymnasium")


@dataclass(frozen=True, slots=True)
class Environment(EnvironmentSpec):
    """What the episodes were played in; secret arguments are blanked out, and folders of this machine left out. Of arguments a
    mark stays in their place: `refused` (formats/asked_environment.py) takes none with it for the one that was given.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", without_folders(self.id))
        object.__setattr__(self, "kwargs", without_folders(blanked_values(self.kwargs), mark=LEFT))
        object.__setattr__(self, "wrappers", tuple(without_folders([*map(blanked_call, self.wrappers)])))

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
    shards: Sequence[Shard]  # in reading order: a tuple, or ShardParts, which reads them when they are needed
    statistics: Mapping[str, Any]  # columns by path, return, length: see schemas/manifest.v1.json
    assumptions: Mapping[str, int]
    provenance: Mapping[str, Any]  # the only part that differs between two runs of one command
    episodes_lost: int | None = None  # of the sources, and in no shard; None: not known
    meanings: Meanings = NO_MEANINGS  # of columns, as far as they are known

    def as_json(self) -> dict[str, Any]:
        """Plain values, as schemas/manifest.v1.json or manifest-of-parts.v1.json describe them; what is unknown has no key."""
        parts = [part.as_json() for part in self.shards.parts] if isinstance(self.shards, ShardParts) else None
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
            **({"meanings": self.meanings.as_json()} if self.meanings.by_path else {}),
            "compression": self.compression,
            "counts": asdict(self.counts),
            **({"shards": [asdict(shard) for shard in self.shards]} if parts is None else {"parts": parts}),
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
        return Manifest.from_bytes(place.read_bytes(), where=place.url, read=partial(read_part, folder))

    @staticmethod
    def from_bytes(data: bytes, *, where: str, read: ReadPart | None = None) -> Manifest:
        """The manifest in a file; `read` gives its parts, which None has not. Raises BadData, naming all mistakes."""
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
            counts=Counts(**whole_numbers(document["counts"])),
            shards=_shards(document, read, where),
            statistics=document["statistics"],
            assumptions=whole_numbers(document["assumptions"]),
            provenance=document["provenance"],
            episodes_lost=whole_numbers(document).get("episodes_lost"),
            meanings=Meanings.of(document.get("meanings", {}), where),
        )


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


def _shards(document: Mapping[str, Any], read: ReadPart | None, where: str) -> Sequence[Shard]:
    if "parts" in document:
        return ShardParts([Part.from_json(node) for node in document["parts"]], read or _no_part, where=where)
    return tuple(Shard(**whole_numbers(shard)) for shard in document["shards"])


def _no_part(path: str) -> bytes:
    raise StorageNotFound("a manifest was read without its folder", where=path, fix=FIX)


def _mistakes(document: dict[str, Any]) -> list[str]:
    """Every mistake against the schema, which skips columns, shards and parts that are valid at a glance: they may be many."""
    statistics, numbers = document.get("statistics"), dict[str, list[int]]()
    columns = statistics.get("columns") if isinstance(statistics, dict) else None
    if isinstance(statistics, dict) and isinstance(columns, dict):
        doubtful = {path: column for path, column in columns.items() if not is_column(column)}
        document = {**document, "statistics": {**statistics, "columns": doubtful}}
    for name, has_form in MANY.items():
        listed = document.get(name)
        if isinstance(listed, list) and listed:
            numbers[name] = [number for number, one in enumerate(listed) if not has_form(one)] or [0]
            document = {**document, name: [listed[number] for number in numbers[name]]}
    found = mistakes(document, SCHEMA_OF_PARTS if "parts" in document else SCHEMA)
    return [PLACE.sub(lambda place: f"{place[1]}.{numbers[place[1]][int(place[2])]}", text) for text in found]


def _contradictions(document: dict[str, Any]) -> list[str]:
    """Mistakes beyond any schema: sums that disagree, a shard or part listed twice."""
    many, counts = "parts" if "parts" in document else "shards", document["counts"]
    listed, noun = document[many], many.removesuffix("s")
    pattern = PART_PATH if many == "parts" else SHARD_PATH
    wrong = [f"{many}: {path} is listed {n} times" for path, n in Counter(one["path"] for one in listed).items() if n > 1]
    wrong += [f"{many}: {one['path']!r} is no {noun}'s name" for one in listed if not pattern.fullmatch(one["path"])]
    if many == "parts" and not wrong:
        wrong = [
            f"parts: {one['path']} is not named by its sha256" for one in listed if one["path"] != part_name(one["sha256"])
        ]
    for name in ("episodes", "steps"):
        total = sum(one[name] for one in listed)
        if total != counts[name]:
            wrong.append(f"counts.{name}: {counts[name]}, but the {many} hold {total}")
    if document["format"] == "columns" and None in (document["observation_space"], document["action_space"]):
        wrong.append("format: columns need an observation_space and an action_space")
    return wrong


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


def is_column(value: Any) -> bool:
    """As `is_shard`, of a column's statistics, each of which takes a schema 6 ms."""
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
    """`given` with commands, times and versions filled in where they are missing.

    Folders of this machine are left out: a dataset is passed on, and where its maker keeps files is nobody's business.
    """
    known = {"commands": [this_command()], "started": started, "finished": now(), **given}
    as_given = {name: part for name, part in known.items() if name in NO_TEXTS}
    return {**without_folders(known), **as_given, "versions": {**_versions(), **given.get("versions", {})}}


@cache
def _versions() -> Mapping[str, str]:
    """Their files are looked for once."""
    found = {"offline-cli": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # installed by other means than pip
            found[name] = "unknown"
    return found
