"""Which files and folders are ours to replace, move or remove, by name and content; and rows set aside in quarantine/.

* `is_own_part`, `is_note`, `begins_as`: before a file is removed or replaced, it is checked: its name is one that we give, it
  is a regular file, and it begins as such a file does. Folders of earlier versions carry no other mark. A file that is damaged
  in these first bytes cannot be recognised: it stays, and the user is asked.
* `refuse_foreign_folder`, `refuse_foreign_data`: what in a folder belongs to a dataset, or to a set of train batches;
  `FolderKind` (file_names.py) has the names that differ. Data files count that the commit lists under a name that a writer
  gives, and others of such names that begin as such files do, which a killed writer left. They lie directly in `data/`;
  copies in folders below belong to the user. Links are never ours, whatever they point to.
* `write_rejects`: rows that were set aside, as Parquet files under `quarantine/`: place, error code, reason and the row as it
  stood.
* `keep_names` and the like sync names before anything depends on them: disks of this machine (`local_files.py`); other storage
  is durable once it has answered.
* `set_aside`: into `quarantine/`; what cannot be moved stays where it was.
* No name in `quarantine/` ends in `.parquet`: other tools read `D/**/*.parquet`, and would take its rows for data.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from offline_cli.datasets.file_names import (
    BATCHES,
    DATA,
    DATASET,
    MANIFEST,
    MANIFEST_PARTS,
    PART_PATH,
    PART_PREFIX,
    QUARANTINE,
    QUARANTINE_PATH,
    WRITING,
    FolderKind,
    quarantine_name,
)
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.errors import BadData, OutputExists, StorageNotFound
from offline_cli.json_documents import from_json
from offline_cli.parquet.shard_writing import ShardWriter
from offline_cli.storage.local_files import read_start, sync_bytes, sync_names
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file
from offline_cli.tally import Reject

__all__ = [
    "all_but_parts",
    "begins_as",
    "free_place",
    "head",
    "is_link",
    "is_note",
    "is_own_part",
    "is_regular",
    "keep_bytes",
    "keep_moves",
    "keep_names",
    "listed_parts",
    "listed_paths",
    "manifest_parts",
    "next_number",
    "numbered",
    "quarantine_files",
    "refuse_foreign_data",
    "refuse_foreign_folder",
    "refuse_links",
    "set_aside",
    "write_rejects",
]

HEAD: Final = 256  # bytes that are looked at

_STARTS: Final[dict[str, Callable[[bytes], bool]]] = {
    "json": lambda begun: begun.startswith(b"{"),
    "jsonl": lambda begun: begun.startswith(b"{"),
    "parquet": lambda begun: begun.startswith(b"PAR1"),
    "rejects": lambda begun: begun.startswith(b"PAR1"),
    "png": lambda begun: begun.startswith(b"\x89PNG"),
    "safetensors": lambda begun: begun[8:9] == b"{",
    "msgpack": lambda begun: begun[0] in (0xDE, 0xDF) or 0x80 <= begun[0] < 0x90,  # a map
    "toml": lambda begun: b"\0" not in begun,
}
_STAGED: Final = (
    r"manifest\.json(\.[0-9]+)?|batches\.json|_writing\.json|_training\.json|policy\.json|result\.json|state\.json|config\.toml"
    r"|part-[0-9a-f]{16}\.json|curve\.png|(policy|tensors)\.safetensors|connectors(-[0-9]{1,12})?\.msgpack"
    r"|shard-[0-9a-f]{8}-[0-9]{6,12}\.parquet|rows-[0-9]{6,12}\.rejects|batch-[0-9]{6,12}(-[0-9]{1,12})?\.(parquet|safetensors)"
)
PART: Final = re.compile(f"{PART_PREFIX}(?:[0-9a-f]{{8}}-)?(?P<name>{_STAGED})", re.ASCII)
"""A file that was being written; earlier versions gave it no number."""
TAKING_OVER: Final = f"{PART_PREFIX}taking-over"
TOKEN: Final = re.compile(rb"[0-9a-f]{32}")

SCHEMA = pa.schema([(name, pa.string()) for name in ("where", "code", "reason")] + [("raw", pa.binary())])
COMPRESSION = "zstd"

MARKS: Final = {
    MANIFEST: (b'"shards"', b'"observation_space"', b'"action_scale"'),
    BATCHES: (b'"train-batches"', b'"batches"', b'"pipeline"'),
}
ENOUGH: Final = 2  # of these: one may be damaged
PATH: Final = re.compile(rb'"path":\s*"([^"]+)"')


def is_link(place: Location) -> bool:
    """Whether a symbolic link is here, whatever it leads to. Only disks of this machine have any."""
    return place.is_local and os.path.islink(place.path)


def is_regular(place: Location) -> bool:
    """Whether a file of bytes is here: no link, folder, pipe or device."""
    if not place.is_local:
        return place.is_file()
    try:
        return stat.S_ISREG(os.lstat(place.path).st_mode)
    except OSError:
        return False


def head(place: Location, size: int = HEAD) -> bytes:
    """The first `size` bytes of a file, or all that there are; empty where none is, or a pipe. Raises StorageError."""
    try:
        if place.is_local:
            return place.ask("reading it", lambda: read_start(place.path, size, shown=place.url))[0]
        return place.ask("reading it", lambda: bytes(place.fs.cat_file(place.path, start=0, end=size)))
    except (StorageNotFound, BadData):
        return b""


def begins_as(place: Location, name: str) -> bool:
    """Whether the regular file at `place` begins as our files called `name` do, or holds nothing yet.

    What a power cut leaves of a file is zeros, or nothing.
    """
    if not is_regular(place):
        return False
    begun = head(place)
    return not begun.strip(b"\0") or _STARTS[name.rpartition(".")[2]](begun)


def is_own_part(place: Location) -> bool:
    """Whether a killed writer of ours left this half-written file, or one on a bucket the word that it takes over."""
    if place.name == TAKING_OVER:
        return is_regular(place) and TOKEN.fullmatch(head(place)) is not None
    match = PART.fullmatch(place.name)
    return match is not None and begins_as(place, match["name"].rstrip(".0123456789"))


def is_note(place: Location) -> bool:
    """Whether a writer's note is here, or what is left of one: other JSON belongs to the user."""
    found = whole_file(place) if is_regular(place) else None
    if found is None:
        return False
    try:
        from_json(found)
    except ValueError:
        return begins_as(place, place.name)
    return WritingNote.if_any(found, where=place.url) is not None


def write_rejects(folder: Location, rejects: Sequence[Reject], number: int) -> Location:
    """Write `rejects` as file `number` of dataset `folder`. Raises StorageError."""
    folder.join(QUARANTINE).make_folder()
    target = folder.join(quarantine_name(number))
    columns = [[getattr(reject, name) for reject in rejects] for name in SCHEMA.names]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    writer = ShardWriter(target, SCHEMA, folder=folder, compression=COMPRESSION)
    try:
        writer.write(table)
        writer.commit()
    except BaseException:
        writer.discard()
        raise
    return target


def quarantine_files(folder: Location) -> dict[int, Location]:
    """Files of rows set aside in dataset `folder`, by number; copies in folders below belong to the user."""
    where = folder.join(QUARANTINE)
    matches = {file: QUARANTINE_PATH.fullmatch(f"{QUARANTINE}/{file.name}") for file in where.children()}
    return {int(match["number"]): file for file, match in matches.items() if match}


def next_number(folder: Location) -> int:
    """The number after that of the last file of rows set aside."""
    return max(quarantine_files(folder), default=-1) + 1


def all_but_parts(folder: Location) -> list[Location]:
    """What is in the folder, but for half-written files of ours, which do not count."""
    return [child for child in folder.children() if not is_own_part(child)]


def numbered(file: Location, folder: Location, kind: FolderKind) -> re.Match[str] | None:
    """The parts of the name of a data file of `folder`; None where no writer gives such a name, or not there."""
    below = file.path.removeprefix(folder.path.rstrip("/")).lstrip("/")
    return kind.data_path.fullmatch(below)


def refuse_links(folder: Location, kind: FolderKind) -> None:
    """Raise OutputExists where a link has one of our names in `folder`: nothing is written or removed through it."""
    for name in (kind.commit, WRITING, DATA, MANIFEST_PARTS, QUARANTINE):
        if is_link(folder.join(name)):
            what = f"{name} is a symbolic link, and nothing is written or removed through one"
            raise OutputExists(what, where=folder.join(name).url, fix="name the folder that it leads to, or another --out")


def refuse_foreign_folder(folder: Location, kind: FolderKind) -> None:
    """Raise OutputExists for a folder with neither commit nor note of ours, nor what a killed writer of ours may leave."""
    if _is_commit(folder.join(kind.commit), kind) or is_note(folder.join(WRITING)):
        return
    ours = {DATA, MANIFEST_PARTS, QUARANTINE}
    data = folder.join(DATA)
    if any(numbered(file, folder, kind) and begins_as(file, file.name) for file in data.children()):
        ours |= {kind.commit, WRITING}  # damaged
    foreign = [child for child in all_but_parts(folder) if child.name not in ours]
    if foreign:
        what = f"the folder holds no {kind.noun}, and --overwrite replaces nothing else; {foreign[0].name} is in it"
        raise OutputExists(what, where=folder.url, fix="give another --out")


def _is_commit(place: Location, kind: FolderKind) -> bool:
    content = whole_file(place) if is_regular(place) else None
    return content is not None and sum(mark in content for mark in MARKS[kind.commit]) >= ENOUGH


def refuse_foreign_data(folder: Location, kind: FolderKind, resumed: str | None = None) -> list[Location]:
    """The files in data/. Raises OutputExists for those that no writer of ours put there, and such under names of quarantine/.

    `resumed`: the generation of a write that is resumed, whose shards are read in any case: in a bucket, where each look at one
    is a request, their names are enough here.
    """
    data = folder.join(DATA)
    listed = listed_paths(folder, kind)
    files = data.files() if data.exists() else []
    known = resumed if folder.is_in_bucket else None
    foreign = [file.url for file in files if not _is_data(file, folder, kind, listed, known)]
    if foreign:
        what = f"data/ holds {len(foreign)} files that no {kind.noun} put there, such as {foreign[0]}"
        raise OutputExists(what, where=folder.url, fix="move them away, or give another --out")
    aside = [file.url for file in quarantine_files(folder).values() if not begins_as(file, file.name)]
    if aside:
        what = f"{aside[0]} has the name of rows that were set aside, and holds none"
        raise OutputExists(what, where=folder.url, fix="move it away, or give another --out")
    return files


def listed_paths(folder: Location, kind: FolderKind = DATASET) -> set[str]:
    """Paths below `folder` that its commit lists, and the parts of a manifest, whole or damaged; none where there is none."""
    found = _paths(whole_file(folder.join(kind.commit)))
    for part in filter(PART_PATH.fullmatch, tuple(found)):
        found |= _paths(whole_file(folder.join(part)))
    return found


def listed_parts(folder: Location) -> set[str]:
    """Paths of the parts that the manifest of `folder` lists, whole or damaged."""
    return set(filter(PART_PATH.fullmatch, _paths(whole_file(folder.join(MANIFEST)))))


def _paths(commit: bytes | None) -> set[str]:
    return {path.decode("utf-8", "replace") for path in PATH.findall(commit or b"")}


def manifest_parts(folder: Location) -> list[Location]:
    """The files named as parts of the manifest of dataset `folder`, listed or not, that begin as such."""
    named = [file for file in folder.join(MANIFEST_PARTS).children() if PART_PATH.fullmatch(f"{MANIFEST_PARTS}/{file.name}")]
    return [file for file in named if begins_as(file, file.name)]


def _is_data(file: Location, folder: Location, kind: FolderKind, listed: set[str], resumed: str | None) -> bool:
    match = numbered(file, folder, kind)
    if match is None:
        return False
    if match["generation"] == resumed:
        return True
    if match[0] in listed:
        return not is_link(file)
    return begins_as(file, file.name)


# ---- moves, and what is synced ----


def keep_bytes(file: Location) -> None:
    """Sync the bytes of a file to disk. Raises StorageError."""
    if file.is_local:
        file.ask("writing", partial(sync_bytes, file.path))


def keep_names(*folders: Location) -> None:
    """Sync the names in folders to disk, in this order; a missing folder is skipped. Raises StorageError."""
    for folder in folders:
        if folder.is_local and folder.exists():
            folder.ask("writing", partial(sync_names, folder.path))


def free_place(folder: Location, name: str) -> Location:
    """A place in the quarantine of dataset `folder` for a file called `name`, or `name.1`, ...: the first that is free.

    `shard.parquet` is called `shard.aside` there.
    """
    name = f"{stem}.aside" if (stem := name.removesuffix(".parquet")) != name else name
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(place for name in names if not (place := folder.join(QUARANTINE, name)).exists())


def set_aside(file: Location, folder: Location) -> Location:
    """Move `file` of dataset `folder` into its quarantine; where it is now.

    Object stores know no move: there it is copied, and then removed. `keep_moves` syncs it. Raises StorageError.
    """
    folder.join(QUARANTINE).make_folder()
    target = free_place(folder, file.name)
    if file.is_local:
        file.ask("setting it aside", partial(os.rename, file.path, target.path))
    else:
        file.ask("setting it aside", partial(file.fs.cp_file, file.path, target.path))
        file.remove()
    return target


def keep_moves(files: Sequence[Location], folder: Location) -> None:
    """Sync to disk that `files` of dataset `folder` were set aside: their new names, then that the old ones are gone.

    Raises StorageError.
    """
    if files:
        before = sorted({os.path.dirname(file.path) for file in files})
        keep_names(folder.join(QUARANTINE), *(replace(folder, path=path, url=path) for path in before))
