"""Which files in a folder are ours to replace, move or remove: those whose names we give, and no links; and `quarantine/`.

`quarantine/` holds rows that were set aside, as Parquet: place, error code, reason and the row as it stood; and what `repair`
moves there. No name in it ends in `.parquet`: other tools read `D/**/*.parquet`, and would take its rows for data.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.datasets.file_names import (
    CARD,
    DATA,
    MANIFEST,
    PART_PREFIX,
    QUARANTINE,
    QUARANTINE_PATH,
    SHARD_PATH,
    WRITING,
    quarantine_name,
)
from offline_cli.errors import OutputExists
from offline_cli.storage.local_files import sync_bytes, sync_names
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.tally import Reject

PART: Final = re.compile(rf"{PART_PREFIX}[0-9a-f]{{8}}-.+", re.ASCII)  # a local file that was being written
REJECTS: Final = pa.schema([(name, pa.string()) for name in ("where", "code", "reason")] + [("raw", pa.binary())])
MARK: Final = b'"observation_space"'  # in our manifests: other programs have files of this name too
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


def numbered(file: Location, folder: Location) -> re.Match[str] | None:
    """Match the name of a data file of `folder`; None if it is not one of ours."""
    below = file.path.removeprefix(folder.path.rstrip("/")).lstrip("/")
    return SHARD_PATH.fullmatch(below)


def data_files(folder: Location) -> list[Location]:
    """All files in `data/`, ours and foreign."""
    data = folder.join(DATA)
    return data.files() if data.exists() else []


def shard_files(folder: Location) -> dict[str, dict[int, Location]]:
    """All shards with our names, listed in the manifest or not: generation -> number -> location."""
    found: dict[str, dict[int, Location]] = {}
    for file in data_files(folder):
        if match := numbered(file, folder):
            found.setdefault(match["generation"], {})[int(match["number"])] = file
    return found


def paths_listed_in(commit: bytes | None) -> frozenset[str]:
    """Paths listed in the bytes of a commit file, which may be damaged; empty for None."""
    return frozenset(path.decode("utf-8", "replace") for path in PATH.findall(commit or b""))


def refuse_foreign(folder: Location, *, has_note: bool) -> None:
    """Raise OutputExists for a folder that we did not write, for foreign files in data/, and for links.

    `has_note`: whether the folder has a writer's note.
    """
    files = data_files(folder)
    foreign = [file for file in files if is_link(file) or numbered(file, folder) is None]
    links = [place for name in (MANIFEST, WRITING, CARD, DATA, QUARANTINE) if is_link(place := folder.join(name))]
    if links:
        what = f"{links[0].name} is a symbolic link, which is never written or removed through"
        raise OutputExists(what, where=links[0].url, fix="name its target, or another --out")
    if foreign:
        what = f"data/ holds {len(foreign)} files that belong to no dataset, such as {foreign[0]}"
        raise OutputExists(what, where=folder.url, fix="move them away, or give another --out")
    commit = folder.join(MANIFEST)
    if has_note or files or MARK in ((whole_file(commit) if is_regular(commit) else None) or b""):
        return
    ours = (DATA, QUARANTINE, CARD, WRITING)  # a writer that was killed may leave an empty note
    others = [place.name for place in folder.children() if not is_own_part(place) and place.name not in ours]
    if others:
        what = f"the folder holds {others[0]} and no dataset; --overwrite replaces nothing else"
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
