"""The shards of a dataset as a sequence: a tuple where they are few, else parts of the manifest that are read when needed.

A manifest lists up to `LISTED` shards itself. Of more it lists parts: files `manifest/part-<16 hex>.json` of `PER_PART` shards
each, with counts and figures of returns and lengths. The name of a part is the beginning of its sha256, so that a name never
has other content, and a write that is resumed leaves no second copy. Parts are written before the manifest that lists them;
one that no manifest lists is a leftover. `ShardParts` keeps the entries of `HELD` parts in memory, however many there are.

Rules that hold for the whole and are checked part by part: the sha256 and counts of a part are those that the manifest says;
of one generation, numbers of shards ascend, so that none is listed twice.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import orjson

from offline_cli.datasets.file_names import MANIFEST, PART_PATH, SHARD_PATH, part_name
from offline_cli.errors import BadData, StorageError, StorageNotFound
from offline_cli.json_documents import mistakes

if TYPE_CHECKING:  # `inspect` reads a manifest without what places need
    from offline_cli.storage.locations import Location

__all__ = [
    "Part",
    "ReadPart",
    "Shard",
    "ShardParts",
    "content_hash",
    "is_part",
    "is_shard",
    "part_bytes",
    "parts_of",
    "read_part",
    "replaced_meanwhile",
    "total",
    "where_episodes_are",
    "whole_numbers",
    "with_figures",
]

LISTED: int = 10_000  # shards that a manifest lists itself
PER_PART: int = 1_000
HELD: Final = 3  # parts whose entries are in memory
PART_VERSION: Final = 1
PART_SCHEMA: Final = "manifest-part.v1.json"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_COUNT: Final = 2**63 - 1
SHARD_KEYS: Final = frozenset({"path", "sha256", "episodes", "rows", "steps", "bytes"})
SUMS: Final = ("episodes", "rows", "steps", "bytes")  # of the shards of a part
FIX: Final = "offline-cli repair builds the manifest anew from the shards; or write the dataset again from its source"

ReadPart = Callable[[str], bytes]
"""The bytes of a part, by its path below the dataset folder. Raises StorageNotFound, StorageError."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a dataset."""

    path: str  # below the dataset folder: data/shard-0123abcd-000000.parquet
    episodes: int
    rows: int
    steps: int
    bytes: int
    sha256: str  # hex


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a manifest."""

    path: str  # below the dataset folder: manifest/part-0123456789abcdef.json
    sha256: str  # hex, of the part
    shards: int
    episodes: int
    rows: int
    steps: int
    bytes: int  # of its shards
    figures: Mapping[str, Any] | None = None  # min, max and mean of the `return` and `length` of its episodes

    def as_json(self) -> dict[str, Any]:
        """Plain values, as schemas/manifest-of-parts.v1.json describes them."""
        plain = asdict(self)
        return {**{name: value for name, value in plain.items() if name != "figures"}, **(self.figures or {})}

    @staticmethod
    def from_json(node: Mapping[str, Any]) -> Part:
        """One that the schema accepts."""
        known = whole_numbers(node)
        figures = {name: known.pop(name) for name in ("return", "length")}
        return Part(**known, figures=figures)


class ShardParts(Sequence[Shard]):
    """Shards that are read part by part. Raises BadData, naming the part, for one that is missing or has other content."""

    def __init__(self, parts: Sequence[Part], read: ReadPart, *, where: str, first: int = 0, stop: int | None = None) -> None:
        """`where`: of the manifest. `first`, `stop`: the range of the shards of `parts` that this is."""
        self.parts, self.read, self.where = tuple(parts), read, where
        self._ends = list(accumulate(part.shards for part in self.parts))
        self._first, self._stop = first, (self._ends[-1] if self._ends else 0) if stop is None else stop
        self._held: tuple[tuple[int, tuple[Shard, ...]], ...] = ()  # replaced as a whole: threads may read at once

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ShardParts, where=self.where, first=self._first, stop=self._stop), (self.parts, self.read)

    @property
    def is_whole(self) -> bool:
        """Whether this is all shards of its parts."""
        return (self._first, self._stop) == (0, self._ends[-1] if self._ends else 0)

    def __len__(self) -> int:
        return max(0, self._stop - self._first)

    @overload
    def __getitem__(self, which: int) -> Shard: ...
    @overload
    def __getitem__(self, which: slice) -> ShardParts: ...
    def __getitem__(self, which: int | slice) -> Shard | ShardParts:
        """A shard, or a range of them (steps of 1), which is not read yet."""
        if isinstance(which, slice):
            first, stop, step = which.indices(len(self))
            if step != 1:
                raise ValueError("shards are taken in ranges, one after the other")
            first, stop = self._first + first, self._first + max(first, stop)
            low = bisect_right(self._ends, first)
            parts = self.parts[low : bisect_left(self._ends, stop) + 1 if first < stop else low]
            begin = self._begin(low)
            return ShardParts(parts, self.read, where=self.where, first=first - begin, stop=stop - begin)
        if not -len(self) <= which < len(self):
            raise IndexError(f"shard {which} of {len(self)}")
        at = self._first + which % len(self)
        number = bisect_right(self._ends, at)
        return self.entries(number)[at - self._begin(number)]

    def __iter__(self) -> Iterator[Shard]:
        last: dict[str, int] = {}  # number of the last shard by generation
        for number, begin, part in zip(range(len(self.parts)), (0, *self._ends), self.parts, strict=False):
            if begin >= self._stop or begin + part.shards <= self._first:
                continue
            entries = self.entries(number)
            if wrong := _not_ascending(entries, last):
                raise _broken(part.path, f"{wrong} is listed twice, or not in the order of its numbers", self.where)
            yield from islice(entries, max(0, self._first - begin), self._stop - begin)

    def _begin(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def entries(self, number: int) -> tuple[Shard, ...]:
        """The shards of part `number`."""
        for held, entries in self._held:
            if held == number:
                return entries
        found = _entries(self.parts[number], self.read, self.where)
        self._held = ((number, found), *self._held)[:HELD]
        return found

    def total(self, name: str) -> int:
        """Sum of a count of all shards; of parts that are taken whole, without reading them."""
        known = 0
        for number, part in enumerate(self.parts):
            begin, end = self._begin(number), self._ends[number]
            if self._first <= begin and end <= self._stop:
                known += getattr(part, name)
            elif begin < self._stop and end > self._first:
                some = self.entries(number)[max(0, self._first - begin) : self._stop - begin]
                known += sum(getattr(shard, name) for shard in some)
        return known


def read_part(folder: Location, path: str) -> bytes:
    """A part of the manifest of dataset `folder`. Raises StorageError where that was replaced since its manifest was read."""
    try:
        return folder.join(path).read_bytes()
    except StorageNotFound as err:
        manifest = folder.join(MANIFEST)
        if not manifest.exists() or path.encode() in manifest.read_bytes():
            raise
        raise replaced_meanwhile(folder.join(path)) from err


def replaced_meanwhile(place: Location) -> StorageError:
    """The error of a reader with an older manifest: the file at `place` went with the dataset that it was part of."""
    what = "this file is gone: the dataset was replaced after this began to read it"
    return StorageError(what, where=place.url, fix="open the dataset again, or run the same again: it reads what is here now")


def _entries(part: Part, read: ReadPart, where: str) -> tuple[Shard, ...]:
    try:
        data = read(part.path)
    except (StorageNotFound, FileNotFoundError) as err:
        raise _broken(part.path, "it is missing", where) from err
    if (digest := hashlib.sha256(data).hexdigest()) != part.sha256:
        raise _broken(part.path, f"its sha256 is {digest[:12]}..., the manifest says {part.sha256[:12]}...", where)
    try:
        document = orjson.loads(data)
    except ValueError as err:
        raise _broken(part.path, f"no JSON: {err}", where) from err
    nodes = document.get("shards") if isinstance(document, dict) else None
    if not (isinstance(nodes, list) and document == {"version": PART_VERSION, "shards": nodes} and all(map(is_shard, nodes))):
        wrong = mistakes(document, PART_SCHEMA)
        if wrong:
            raise _broken(part.path, "; ".join(wrong), where)
        nodes = [whole_numbers(node) for node in nodes or []]
        if other := [node["path"] for node in nodes if not SHARD_PATH.fullmatch(node["path"])]:
            raise _broken(part.path, f"{other[0]!r} is no shard's name", where)
    shards = tuple(Shard(**node) for node in nodes)
    wrong = [] if len(shards) == part.shards else [f"{len(shards)} shards, the manifest says {part.shards}"]
    for name in SUMS:
        found, said = sum(getattr(shard, name) for shard in shards), getattr(part, name)
        wrong += [f"its shards hold {found} {name}, the manifest says {said}"] * (found != said)
    if not wrong and (twice := _not_ascending(shards, {})):
        wrong = [f"{twice} is listed twice, or not in the order of its numbers"]
    if wrong:
        raise _broken(part.path, "; ".join(wrong), where)
    return shards


def _not_ascending(shards: Iterable[Shard], last: dict[str, int]) -> str | None:
    """The path of the first shard whose number is not beyond those before it, of its generation; `last` is updated."""
    for shard in shards:
        generation, number = shard.path[11:19], int(shard.path[20:-8])
        if number <= last.get(generation, -1):
            return shard.path
        last[generation] = number
    return None


def _broken(path: str, what: str, where: str) -> BadData:
    said = f"{path}: {what}"
    return BadData(f"a part of the manifest cannot be read: {said}", where=where, fix=FIX, details={"problems": [said]})


# ---- episodes by their numbers ----


def total(shards: Sequence[Shard], name: str) -> int:
    """Sum of a count of `shards`; of whole parts, without reading them."""
    return shards.total(name) if isinstance(shards, ShardParts) else sum(getattr(shard, name) for shard in shards)


def where_episodes_are(shards: Sequence[Shard], indices: Any) -> tuple[Any, Any]:
    """For each episode of `indices` (K,) the number of its shard, and its number there; parts without one are not read."""
    if not isinstance(shards, ShardParts) or not shards.is_whole:
        return _located([shard.episodes for shard in shards], indices)
    of_part, inside = _located([part.episodes for part in shards.parts], indices)
    begins = np.cumsum([0, *(part.shards for part in shards.parts)])
    of_shard, episode = np.zeros_like(of_part), np.zeros_like(inside)
    for number in np.unique(of_part).tolist():
        at = of_part == number
        found, episode[at] = _located([shard.episodes for shard in shards.entries(number)], inside[at])
        of_shard[at] = found + begins[number]
    return of_shard, episode


def _located(sizes: Sequence[int], indices: Any) -> tuple[Any, Any]:
    first = np.cumsum([0, *sizes])
    found = np.searchsorted(first, indices, side="right") - 1
    return found, indices - first[found]


# ---- what is written ----


def part_bytes(shards: Sequence[Shard]) -> tuple[Part, bytes]:
    """A part of `shards`, and its file; without figures."""
    lines = [orjson.dumps({name: getattr(shard, name) for name in Shard.__slots__}) for shard in shards]
    data = b'{"version": %d, "shards": [\n%s\n]}\n' % (PART_VERSION, b",\n".join(lines))
    digest = hashlib.sha256(data).hexdigest()
    sums = {name: sum(getattr(shard, name) for shard in shards) for name in SUMS}
    return Part(part_name(digest), digest, len(shards), **sums), data


def parts_of(shards: Sequence[Shard]) -> tuple[Part, ...]:
    """The parts that shards are listed in; none where the manifest lists them itself."""
    return shards.parts if isinstance(shards, ShardParts) else ()


def with_figures(shards: Sequence[Shard], returns: Any, lengths: Any) -> Sequence[Shard]:
    """`shards`, whose parts get figures of the returns and lengths (E,) of all their episodes, in order."""
    if not isinstance(shards, ShardParts) or all(part.figures for part in shards.parts):
        return shards
    stops = list(accumulate((part.episodes for part in shards.parts), initial=0))
    parts = [
        replace(part, figures={"return": _figures(returns[first:stop]), "length": _figures(lengths[first:stop])})
        for part, first, stop in zip(shards.parts, stops[:-1], stops[1:], strict=True)
    ]
    return ShardParts(parts, shards.read, where=shards.where)


def _figures(values: Any) -> dict[str, Any]:
    """min, max and mean of the finite ones; null where there is none."""
    finite = values[abs(values) < float("inf")]
    if not len(finite):
        return dict.fromkeys(("min", "max", "mean"))
    return {"min": finite.min().item(), "max": finite.max().item(), "mean": float(finite.mean())}


# ---- the forms, at a glance ----


def content_hash(shards: Iterable[Shard]) -> str:
    """A hash that no other content has: of the paths and hashes of `shards`, as the text of a list."""
    digest, mark = hashlib.sha256(b"["), b""
    for shard in shards:
        digest.update(mark + repr((shard.path, shard.sha256)).encode())
        mark = b", "
    digest.update(b"]")
    return digest.hexdigest()


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


def is_part(value: Any) -> bool:
    """The same of a part."""
    if type(value) is not dict or value.keys() != {"path", "sha256", "shards", *SUMS, "return", "length"}:
        return False
    counts = value["shards"], *(value[name] for name in SUMS)
    figures = [value[name] for name in ("return", "length")]
    return (
        [*map(type, (value["path"], value["sha256"]))] == [str] * 2
        and PART_PATH.fullmatch(value["path"]) is not None
        and SHA256.fullmatch(value["sha256"]) is not None
        and [*map(type, counts)] == [int] * 5
        and 0 <= min(counts) <= max(counts) <= MAX_COUNT
        and value["shards"] > 0
        and all(type(one) is dict and one.keys() == {"min", "max", "mean"} for one in figures)
        and all(figure is None or type(figure) in (int, float) for one in figures for figure in one.values())
    )


def whole_numbers(counts: Mapping[str, Any]) -> dict[str, Any]:
    """`counts` with integers as int: JSON Schema takes 3.0 for an integer too."""
    if float not in map(type, counts.values()):
        return dict(counts)
    return {name: int(value) if isinstance(value, float) else value for name, value in counts.items()}
