"""What is a file of ours, by name and content; refuses to take a link, a folder or somebody's own file for one.

Before a file is removed, or its place is taken, it is looked at: its name is one that we give, it is a regular file, and it
begins as such a file does. Folders of earlier versions carry no other mark. A file that is damaged in these first bytes is
nobody's, as far as can be told: it stays, and the user is asked.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Final

from offline_cli.errors import BadData, StorageNotFound
from offline_cli.json_documents import from_json
from offline_cli.storage.layout import PART_PREFIX
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.local_files import open_plain
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file

__all__ = ["begins_as", "head", "is_link", "is_note", "is_own_part", "is_regular"]

HEAD: Final = 256  # bytes that are looked at

_STARTS: Final[dict[str, Callable[[bytes], bool]]] = {
    "json": lambda begun: begun.startswith(b"{"),
    "jsonl": lambda begun: begun.startswith(b"{"),
    "parquet": lambda begun: begun.startswith(b"PAR1"),
    "png": lambda begun: begun.startswith(b"\x89PNG"),
    "safetensors": lambda begun: begun[8:9] == b"{",
    "msgpack": lambda begun: begun[0] in (0xDE, 0xDF) or 0x80 <= begun[0] < 0x90,  # a map
    "toml": lambda begun: b"\0" not in begun,
}
_STAGED: Final = (
    r"manifest\.json(\.[0-9]+)?|batches\.json|_writing\.json|_training\.json|policy\.json|result\.json|state\.json|config\.toml"
    r"|curve\.png|(policy|tensors)\.safetensors|connectors(-[0-9]{1,12})?\.msgpack"
    r"|(shard-[0-9a-f]{8}|rows)-[0-9]{6,12}\.parquet|batch-[0-9]{6,12}(-[0-9]{1,12})?\.(parquet|safetensors)"
)
PART: Final = re.compile(f"{PART_PREFIX}(?:[0-9a-f]{{8}}-)?(?P<name>{_STAGED})", re.ASCII)
"""A file that was being written; earlier versions gave it no number."""
TAKING_OVER: Final = f"{PART_PREFIX}taking-over"
TOKEN: Final = re.compile(rb"[0-9a-f]{32}")


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
            return place.ask("reading it", lambda: _first(place, size))
        return place.ask("reading it", lambda: bytes(place.fs.cat_file(place.path, start=0, end=size)))
    except (StorageNotFound, BadData):
        return b""


def _first(place: Location, size: int) -> bytes:
    with open_plain(place.path, shown=place.url) as file:
        return file.read(size)


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
    """Whether a writer's note is here, or what is left of one: JSON that says something else is somebody's."""
    found = whole_file(place) if is_regular(place) else None
    if found is None:
        return False
    try:
        from_json(found)
    except ValueError:
        return begins_as(place, place.name)
    return WritingNote.if_any(found, where=place.url) is not None
