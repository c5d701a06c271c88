"""What is in a dataset folder, whatever state it is in, and which of its shards are the dataset; nothing is changed.

* `said_of_shards`: what a manifest that can be read says of each shard.
* `Survey`, `survey`: the files of the folder.
* `choose`: which shards are the dataset. Shards of one write share a generation in their names. A manifest lists its own; a
  note names the generation of a write that did not end. Where both exist and differ, a dataset was being overwritten, and the
  user decides which one stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from offline_cli.datasets.file_names import (
    DATA,
    MANIFEST,
    MANIFEST_PARTS,
    SHARD_PATH,
    WRITING,
    generation_of,
    shard_name,
)
from offline_cli.datasets.lease_record import APPENDS_TO, WritingNote
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.ownership import is_own_part, is_regular, listed_parts, manifest_parts
from offline_cli.datasets.shard_list import read_part
from offline_cli.errors import BadData, NoData, UsageError
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file
from offline_cli.storage.uploads import Upload, open_uploads

__all__ = ["Broken", "Choice", "Said", "Survey", "choose", "missing", "said_of_shards", "survey"]


@dataclass(frozen=True, slots=True)
class Said:
    """A shard by its manifest entry."""

    bytes: int
    sha256: str  # hex

    def refusal(self, size: int, sha256: str) -> str | None:
        """Why a shard of `size` bytes with this sha256 is another one; None where it is the same."""
        if (self.bytes, self.sha256) == (size, sha256):
            return None
        theirs = f"{self.sha256[:12]}... of {self.bytes:,} bytes"
        return f"its sha256 is {sha256[:12]}..., of {size:,} bytes; the manifest says {theirs}"


def said_of_shards(found: Survey) -> Mapping[str, Said]:
    """By path below the dataset folder, in the order of the manifest; empty where it cannot be read."""
    shards = found.manifest.shards if found.manifest is not None else ()
    return {shard.path: Said(shard.bytes, shard.sha256) for shard in shards}


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The content of a folder at one moment."""

    folder: Location
    note_bytes: bytes | None
    note: WritingNote | None  # None also where it cannot be read
    manifest_bytes: bytes | None
    manifest: Manifest | None  # None also where it cannot be read
    shards: Mapping[str, Mapping[int, Location]]  # files named as shards, with something in them: generation -> number -> place
    sizes: Mapping[str, int]  # bytes of every file in data/, by path
    others: tuple[Location, ...]  # further files in data/ that readers of it would include
    half_written: tuple[Location, ...]  # unfinished files, empty ones under the name of a shard, unlisted parts of a manifest
    uploads: tuple[Upload, ...]

    @property
    def is_dataset(self) -> bool:
        """Whether anything of ours is here."""
        return self.note_bytes is not None or self.manifest_bytes is not None or bool(self.shards)

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the shards that are there, as their filesystem spells them."""
        return frozenset(place.path for numbered in self.shards.values() for place in numbered.values())

    def left_of_manifest(self) -> dict[str, Any]:
        """What can be read of a manifest that is broken, unchecked; empty where it is no JSON object."""
        try:
            document = orjson.loads(self.manifest_bytes or b"{}")
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def files(self) -> tuple[str, ...]:
        """Equal for two surveys where nothing has changed in between."""
        return tuple(sorted([*self.paths, *(place.path for place in self.others), str(self.manifest_bytes)]))


def survey(folder: Location) -> Survey:
    """List the folder. Raises StorageError."""
    note_bytes, manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
    manifest = None if manifest_bytes is None else _manifest(manifest_bytes, folder)
    listed = {folder.join(shard.path).path for shard in manifest.shards} if manifest else set()
    shards: dict[str, dict[int, Location]] = {}
    others: list[Location] = []
    half_written = [child for child in folder.children() if is_own_part(child)]
    in_manifest = listed_parts(folder)
    half_written += [file for file in manifest_parts(folder) if f"{MANIFEST_PARTS}/{file.name}" not in in_manifest]
    data = folder.join(DATA)
    sizes = _sizes(data)
    for file in data.files() if sizes else []:
        below = file.path.removeprefix(data.path.rstrip("/")).lstrip("/")
        match = SHARD_PATH.fullmatch(f"{DATA}/{below}")
        if match and file.path not in listed and not sizes.get(file.path, 1) and is_regular(file):
            half_written.append(file)
        elif match:
            shards.setdefault(match["generation"], {})[int(match["number"])] = file
        elif not any(part.startswith((".", "_")) for part in below.split("/")):
            others.append(file)
    return Survey(
        folder=folder,
        note_bytes=note_bytes,
        note=WritingNote.if_any(note_bytes, where=folder.join(WRITING).url),
        manifest_bytes=manifest_bytes,
        manifest=manifest,
        shards=shards,
        sizes=sizes,
        others=tuple(others),
        half_written=tuple(half_written),
        uploads=tuple(open_uploads(folder.join(DATA))),
    )


def _sizes(data: Location) -> dict[str, int]:
    """Bytes of each file below a folder, by path, from one listing: there may be thousands, and a request for each is slow."""

    def request() -> dict[str, int]:
        data.fs.invalidate_cache()
        try:
            found = data.fs.find(data.path, detail=True)
        except FileNotFoundError:
            return {}
        return {path: int(info["size"] or 0) for path, info in found.items()}

    return data.ask("listing it", request)


def _manifest(data: bytes, folder: Location) -> Manifest | None:
    try:
        found = Manifest.from_bytes(data, where=folder.join(MANIFEST).url, read=partial(read_part, folder))
        deque(found.shards, maxlen=0)  # of which parts may be broken
        return found
    except BadData:
        return None


@dataclass(frozen=True, slots=True)
class Broken:
    """A shard that cannot be part of the dataset, or several in a row that are missing."""

    place: Location  # of the first
    why: str
    is_there: bool
    count: int = 1


def missing(first: Location, count: int = 1) -> Broken:
    """So many shards in a row, none of which is there."""
    others = f", and so are the {count - 1:,} after it" if count > 1 else ""
    return Broken(first, f"it is missing{others}", is_there=False, count=count)


@dataclass(frozen=True, slots=True)
class Choice:
    """The shards that are to be the dataset."""

    shards: tuple[Location, ...]  # in reading order; of those that a manifest lists, some may not be there
    by_manifest: Manifest | None  # the manifest that lists them, or some of them; None: none that can be read does
    expected: Mapping[str, Said] = field(default_factory=dict)  # by path: what they must be to the last byte
    generation: str = ""  # of a write that did not end, or whose manifest cannot be read; "": the manifest's
    gaps: tuple[Broken, ...] = ()  # further ones that are missing

    @property
    def total(self) -> int:
        """How many shards there should be."""
        return len(self.shards) + sum(gap.count for gap in self.gaps)

    @property
    def is_listed(self) -> bool:
        """Whether a manifest lists all of them: it says nothing of what was being added to it."""
        return all(place.path in self.expected for place in self.shards)

    def rest(self, found: Survey) -> list[Location]:
        """Files in `data/` that are not among them."""
        mine = {place.path for place in self.shards}
        files = [place for numbered in found.shards.values() for place in numbered.values()]
        return sorted((place for place in [*files, *found.others] if place.path not in mine), key=lambda place: place.path)


def choose(found: Survey, keep: str | None) -> Choice:
    """The dataset in a folder. `keep`: `old` or `new` of one that was being overwritten, or a generation.

    Raises NoData where no shard is there, UsageError where `keep` is needed, or names nothing.
    """
    note, manifest = found.note, found.manifest
    if keep not in (None, "old", "new", *found.shards):
        fix = f"use old, new or {' or '.join(found.shards)}"
        raise UsageError(f"there are no shards of {keep!r}", where=f"--keep for {found.folder.url}", fix=fix)
    begun = note.generation if note is not None and note.generation in found.shards else None
    if keep is not None and keep in found.shards:
        return _of_writing(found, keep) if keep == begun else _of_ended_writing(found, keep)
    if manifest is None:
        return _of_writing(found, begun) if begun else _of_ended_writing(found, _only_generation(found))
    if begun is not None and note is not None and APPENDS_TO in note.options and keep != "new":
        return _of_appending(found, manifest, begun if keep is None else "")
    continued = begun is not None and len(found.shards[begun]) > len(manifest.shards)  # after the manifest was written
    listed = {match["generation"] for shard in manifest.shards if (match := SHARD_PATH.fullmatch(shard.path))}
    if begun is None or (begun in listed and not listed - {begun} and not continued):
        return _of_manifest(found, manifest)
    if begun in listed or not listed:
        return _of_writing(found, begun, manifest)
    if keep is None:
        raise _two_datasets(found, manifest, begun)
    return _of_manifest(found, manifest) if keep == "old" else _of_writing(found, begun)


def _of_manifest(found: Survey, manifest: Manifest) -> Choice:
    places = tuple(found.folder.join(shard.path) for shard in manifest.shards)
    return Choice(places, manifest, dict(zip((place.path for place in places), said_of_shards(found).values(), strict=True)))


def _of_appending(found: Survey, manifest: Manifest, begun: str) -> Choice:
    """The shards of a dataset, and those that a writer who added to it has finished; `begun` is "" for the former alone."""
    choice, there = _of_manifest(found, manifest), found.shards.get(begun, {})
    new = [there[number] for number in sorted(there) if there[number].path not in choice.expected]
    if not new or f"{DATA}/{new[0].name}" in said_of_shards(found):
        return choice
    return replace(choice, shards=(*choice.shards, *new), gaps=tuple(_gaps(found, begun, there)))


def _of_writing(found: Survey, generation: str, manifest: Manifest | None = None) -> Choice:
    """All shards of one generation up to the last that is there; hashes may have changed since a manifest listed some."""
    there = found.shards[generation]
    gaps = tuple(_gaps(found, generation, there))
    return Choice(tuple(there[number] for number in sorted(there)), manifest, generation=generation, gaps=gaps)


def _of_ended_writing(found: Survey, generation: str) -> Choice:
    """All shards of one generation that was not being written: what a manifest lists of it must be there, and the same."""
    there, said = found.shards[generation], said_of_shards(found)
    listed = [(path, int(match["number"])) for path in said if (match := SHARD_PATH.fullmatch(path))]
    own = [(path, number) for path, number in listed if generation_of(path) == generation]
    gone = [missing(found.folder.join(path)) for path, number in own if number not in there]
    return Choice(
        tuple(there[number] for number in sorted(there)),
        None,
        {found.folder.join(path).path: one for path, one in said.items()},
        generation,
        tuple(gone if own else _gaps(found, generation, there)),
    )


def _gaps(found: Survey, generation: str, there: Iterable[int]) -> Iterator[Broken]:
    """Between the numbers that are `there`; one shard may have any number, so none of them is walked."""
    before = -1
    for number in sorted(there):
        if number > before + 1:
            yield missing(found.folder.join(shard_name(generation, before + 1)), number - before - 1)
        before = number


def _only_generation(found: Survey) -> str:
    if not found.shards:
        what = "no complete shard is here, and no readable manifest: there is nothing to repair"
        fix = "run the command that was writing here, with --resume or --overwrite"
        raise NoData(what, where=found.folder.url, fix=fix)
    if len(found.shards) > 1:
        what = f"shards of {len(found.shards)} writes are here, and nothing readable tells which of them is the dataset"
        described = [f"{generation} ({len(numbered)} shards)" for generation, numbered in sorted(found.shards.items())]
        raise UsageError(what, where=found.folder.url, fix=f"--keep {' or --keep '.join(described)}")
    return next(iter(found.shards))


def _two_datasets(found: Survey, manifest: Manifest, begun: str) -> UsageError:
    old, new = len(manifest.shards), len(found.shards[begun])
    there = f"a dataset ({manifest.counts.episodes} episodes in {old} shards)"
    what = f"{there} was being overwritten, and {new} complete shards of the new one are here"
    fix = "--keep old for the one that was there, --keep new for what there is of the new one; the other goes to quarantine/"
    return UsageError(what, where=found.folder.url, fix=fix)
