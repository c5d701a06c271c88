"""What lies in a dataset folder, whatever state it is in; refuses nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from offline_cli.errors import BadData
from offline_cli.storage.layout import DATA, MANIFEST, SHARD_PATH, WRITING
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.own_files import is_own_part, is_regular
from offline_cli.storage.staging import whole_file
from offline_cli.storage.uploads import Upload, open_uploads

__all__ = ["Survey", "survey"]


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """One look at a folder."""

    folder: Location
    note_bytes: bytes | None
    note: WritingNote | None  # None also where it cannot be read
    manifest_bytes: bytes | None
    manifest: Manifest | None  # None also where it cannot be read
    shards: Mapping[str, Mapping[int, Location]]  # files named as shards, with something in them: generation -> number -> place
    sizes: Mapping[str, int]  # bytes of every file in data/, by path
    others: tuple[Location, ...]  # further files in data/ that readers of it would take in
    half_written: tuple[Location, ...]  # files that nobody finished: parts, and empty ones under the name of a shard
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
        """What two looks have in common where nothing has changed in between."""
        shards = [place.path for numbered in self.shards.values() for place in numbered.values()]
        return tuple(sorted([*shards, *(place.path for place in self.others), str(self.manifest_bytes)]))


def survey(folder: Location) -> Survey:
    """Look. Raises StorageError."""
    note_bytes, manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
    manifest = None if manifest_bytes is None else _manifest(manifest_bytes, folder)
    listed = {folder.join(shard.path).path for shard in manifest.shards} if manifest else set()
    shards: dict[str, dict[int, Location]] = {}
    others: list[Location] = []
    half_written = [child for child in folder.children() if is_own_part(child)]
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
        note=None if note_bytes is None else WritingNote.if_any(note_bytes, where=folder.join(WRITING).url),
        manifest_bytes=manifest_bytes,
        manifest=manifest,
        shards=shards,
        sizes=sizes,
        others=tuple(others),
        half_written=tuple(half_written),
        uploads=tuple(open_uploads(folder)),
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
        return Manifest.from_bytes(data, where=folder.join(MANIFEST).url)
    except BadData:
        return None
