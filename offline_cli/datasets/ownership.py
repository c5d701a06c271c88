"""Names of all files and folders that we write, and which files we may replace, move or remove.

`quarantine/` holds rejected rows as Parquet (place, error code, reason and original row), and files that `repair` moves there.
No name in it ends in `.parquet`, because other tools read `D/**/*.parquet` as data.

    D/manifest.json                       the commit, written last
    D/data/shard-<8 hex>-000000.parquet   complete shards only
    D/README.md                           the card (`card.py`)
    D/_writing.json                       the note of a writer, active or killed (`lock.py`)
    D/_part-*                             a local file being written; never in data/
    D/quarantine/rows-000000.rejects      rejected rows, as Parquet that *.parquet does not match

A folder of train batches has the same layout: `batches.json` is its commit, `data/batch-000000.parquet` (or `.safetensors`)
its files. Their names contain a generation only if they replace others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.errors import OutputExists
from offline_cli.storage.local_files import PART_PREFIX as PART_PREFIX
from offline_cli.storage.local_files import sync_bytes, sync_names
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.tally import Reject

MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"
BATCHES: Final = "batches.json"
WRITING: Final = "_writing.json"
DATA: Final = "data"
QUARANTINE: Final = "quarantine"
UNFINISHED_WRITING: Final = "unfinished"  # provenance key: the note to resume from
RUN_CONFIG: Final = "config.toml"
RUN_POLICY: Final = "policy.json"

SHARD_PATH: Final = re.compile(r"data/shard-(?P<generation>[0-9a-f]{8})-(?P<number>[0-9]{6,12})\.parquet", re.ASCII)
BATCH_PATH: Final = re.compile(
    r"data/batch-(?P<number>[0-9]{6,12})(?P<generation>(?:-[0-9]{1,12})?)\.(?:parquet|safetensors)", re.ASCII
)
QUARANTINE_PATH: Final = re.compile(r"quarantine/rows-(?P<number>[0-9]{6,12})\.rejects", re.ASCII)


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder that we write."""

    noun: str  # in messages: "a dataset exists here already"
    commit: str  # the file that is written last
    data_path: re.Pattern[str]  # of its files in data/; groups `generation` and `number`
    generation: Callable[[Mapping[str, Any], Collection[str], str | None], str]
    """Makes the unique part of a write's file names from its options, the generations already in the folder, and a salt unique
    to this write (None: the folder is new)."""


def _hashed(options: Mapping[str, Any], taken: Collection[str], salt: str | None) -> str:
    """8 hex digits from the options, without the identity: equal content gets equal names wherever its source lies."""
    named = {name: value for name, value in options.items() if name != "identity"}
    salts = itertools.count() if salt is None else (f"{salt} {number}" for number in itertools.count())
    names = (hashlib.sha256(json.dumps([named, salt], sort_keys=True).encode()).hexdigest()[:8] for salt in salts)
    return next(name for name in names if name not in taken)


def _counted(_: Mapping[str, Any], taken: Collection[str], salt: str | None) -> str:
    """An empty generation for a new folder, then `-1`, `-2`, ..., one more than the highest in the folder."""
    return "" if salt is None else f"-{max((int(name[1:] or 0) for name in taken), default=0) + 1}"


DATASET: Final = FolderKind("dataset", MANIFEST, SHARD_PATH, generation=_hashed)
TRAIN_BATCHES: Final = FolderKind("set of train batches", BATCHES, BATCH_PATH, generation=_counted)


def batch_name(generation: str, number: int, suffix: str) -> str:
    """Path of a batch file, relative to its folder; `suffix`: `parquet` or `safetensors`."""
    return f"{DATA}/batch-{number:06d}{generation}.{suffix}"


def connector_state_name(generation: str) -> str:
    """Path of the learned state of connector pieces, relative to the folder of train batches."""
    return f"connectors{generation}.msgpack"


def shard_name(generation: str, number: int) -> str:
    """Path of a shard, relative to the dataset folder."""
    return f"{DATA}/shard-{generation}-{number:06d}.parquet"


def generation_of(path: str) -> str:
    """The generation in a shard's path; "" if it is no shard name of ours."""
    match = SHARD_PATH.fullmatch(path)
    return match["generation"] if match else ""


def quarantine_name(number: int) -> str:
    """Path of a file of rejected rows, relative to the dataset folder."""
    return f"{QUARANTINE}/rows-{number:06d}.rejects"


PART: Final = re.compile(rf"{PART_PREFIX}[0-9a-f]{{8}}-.+", re.ASCII)  # an incomplete local file
REJECTS: Final = pa.schema([(name, pa.string()) for name in ("where", "code", "reason")] + [("raw", pa.binary())])
MARKS: Final = {MANIFEST: b'"observation_space"', BATCHES: b'"train-batches"'}
"""Text in our commit files: other programs have files called manifest.json too."""
PATH: Final = re.compile(rb'"path":\s*"([^"]+)"')


def is_link(place: Location) -> bool:
    """Whether this is a symbolic link; only local disks have any."""
    return place.is_local and os.path.islink(place.path)


def is_regular(place: Location) -> bool:
    """Whether this is a regular file: no link, folder, pipe or device."""
    if not place.is_local:
        return place.is_file()
    try:
        return stat.S_ISREG(os.lstat(place.path).st_mode)
    except OSError:
        return False


def is_own_part(place: Location) -> bool:
    """Whether this is an incomplete file left by a killed writer."""
    return PART.fullmatch(place.name) is not None and is_regular(place)


def numbered(file: Location, folder: Location, kind: FolderKind = DATASET) -> re.Match[str] | None:
    """Match the name of a data file of `folder`; None if it is not one of ours."""
    below = file.path.removeprefix(folder.path.rstrip("/")).lstrip("/")
    return kind.data_path.fullmatch(below)


def data_files(folder: Location) -> list[Location]:
    """All files in `data/`, ours and foreign."""
    data = folder.join(DATA)
    return data.files() if data.exists() else []


def shard_files(folder: Location, kind: FolderKind = DATASET) -> dict[str, dict[int, Location]]:
    """All data files with our names, listed in the manifest or not: generation -> number -> location."""
    found: dict[str, dict[int, Location]] = {}
    for file in data_files(folder):
        if match := numbered(file, folder, kind):
            found.setdefault(match["generation"], {})[int(match["number"])] = file
    return found


def paths_listed_in(commit: bytes | None) -> frozenset[str]:
    """Paths listed in the bytes of a commit file, which may be damaged; empty for None."""
    return frozenset(path.decode("utf-8", "replace") for path in PATH.findall(commit or b""))


def refuse_foreign(folder: Location, kind: FolderKind, *, has_note: bool) -> None:
    """Raise OutputExists for a folder that we did not write, for foreign files in data/, and for links.

    `has_note`: whether the folder has a writer's note.
    """
    files = data_files(folder)
    foreign = [file for file in files if is_link(file) or numbered(file, folder, kind) is None]
    links = [place for name in (kind.commit, WRITING, CARD, DATA, QUARANTINE) if is_link(place := folder.join(name))]
    if links:
        what = f"{links[0].name} is a symbolic link, which is never written or removed through"
        raise OutputExists(what, where=links[0].url, fix="name its target, or another --out")
    if foreign:
        what = f"data/ holds {len(foreign)} files that belong to no {kind.noun}, such as {foreign[0]}"
        raise OutputExists(what, where=folder.url, fix="move them away, or give another --out")
    commit = folder.join(kind.commit)
    if has_note or files or MARKS[kind.commit] in ((whole_file(commit) if is_regular(commit) else None) or b""):
        return
    others = [
        place.name for place in folder.children() if not is_own_part(place) and place.name not in (DATA, QUARANTINE, CARD)
    ]
    if others:
        what = f"the folder holds no {kind.noun} but {others[0]}, and --overwrite replaces nothing else"
        raise OutputExists(what, where=folder.url, fix="give another --out")


# ---- quarantine ----


def write_rejects(folder: Location, rejects: Sequence[Reject], number: int) -> Location:
    """Write `rejects` as quarantine file `number` of dataset `folder`. Raises StorageError."""
    folder.join(QUARANTINE).make_folder()
    target, bytes_ = folder.join(quarantine_name(number)), pa.BufferOutputStream()
    rows = [{name: getattr(reject, name) for name in REJECTS.names} for reject in rejects]
    pq.write_table(pa.Table.from_pylist(rows, REJECTS), bytes_, compression="zstd", write_page_checksum=True)
    write_whole(target, bytes_.getvalue(), folder=folder)
    return target


def quarantine_files(folder: Location) -> dict[int, Location]:
    """Files of rejected rows in dataset `folder`, by number; copies in subfolders belong to the user."""
    matches = {file: QUARANTINE_PATH.fullmatch(f"{QUARANTINE}/{file.name}") for file in folder.join(QUARANTINE).children()}
    return {int(match["number"]): file for file, match in matches.items() if match}


def next_number(folder: Location) -> int:
    """The number for the next file of rejected rows."""
    return max(quarantine_files(folder), default=-1) + 1


def free_place(folder: Location, name: str) -> Location:
    """The first free name in the quarantine of `folder`: `name`, `name.1`, ...; `shard.parquet` becomes `shard.aside`."""
    name = f"{stem}.aside" if (stem := name.removesuffix(".parquet")) != name else name
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(place for name in names if not (place := folder.join(QUARANTINE, name)).exists())


def set_aside(file: Location, folder: Location) -> Location:
    """Move `file` of dataset `folder` into its quarantine; return its new location.

    In object stores it is copied and removed. Call `keep_names` to fsync. Raises StorageError.
    """
    folder.join(QUARANTINE).make_folder()
    target = free_place(folder, file.name)
    if file.is_local:
        file.ask("moving it to quarantine/", partial(os.rename, file.path, target.path))
    else:
        file.ask("moving it to quarantine/", partial(file.fs.cp_file, file.path, target.path))
        file.remove()
    return target


# ---- fsync ----


def keep_bytes(file: Location) -> None:
    """Fsync a local file. Raises StorageError."""
    if file.is_local:
        file.ask("writing", partial(sync_bytes, file.path))


def keep_names(*folders: Location) -> None:
    """Fsync local folders, in this order; missing ones are skipped. Raises StorageError."""
    for folder in folders:
        if folder.is_local and folder.exists():
            folder.ask("writing", partial(sync_names, folder.path))
