"""Local cache of remote files: blocks of 1 MiB on disk, removed least recently used first.

* `RemoteCache`, `CachedFile`: what is read of a remote file, through the cache. Reading some columns of a large file keeps
  their blocks only. A block belongs to one version of a file: its address, its size and the ETag that the store reports; a
  changed file is another one, so bytes of two versions never mix. Each block carries a checksum, and one that does not match is
  fetched again. Fetched blocks are kept only once the store, asked again, still has that version: a file that changes while it
  is read leaves nothing here.
* The folder is bounded. Counting takes a listing of the folder, so it happens whenever a share of the bound has been
  written since, and frees as much again: one process never exceeds the bound, and several together exceed it by little.
  Processes that remove blocks at the same time remove the same ones.

Any number of processes may use one folder. A block gets its name when it is complete, and one that is removed while somebody
reads it stays readable. A folder that cannot be written to, or a full disk, turns the cache off with a warning and never fails
the command. Names in the folder are hashes: they contain no address and no credential.

The user names the folder, and it may hold other files. Only a regular file is removed that has the name of a block in a block's
place and ends with a block's trailer. Links are not followed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Any, Final

from offline_cli.errors import StorageError

__all__ = ["BLOCK", "SIZE", "CachedFile", "RemoteCache", "cache_at"]

SHARE: Final = 32  # of the bound, that may be written before the folder is listed again
MAGIC: Final = b"ocb1"  # before the CRC-32 at the end of a block
NAMES: Final = tuple(re.compile(name, re.ASCII) for name in ("[0-9a-f]{2}", "[0-9a-f]{62}", "[0-9]{1,12}"))
"""Of a block, and of the folders that it lies in."""
UNFINISHED: Final = re.compile(r"[0-9]+(-[0-9]+){2,3}", re.ASCII)
LEFT_AFTER: Final = 3600.0  # seconds, after which an unfinished block counts as abandoned

BLOCK: Final = 1 << 20
SIZE: Final = 10 << 30  # bytes that a cache may take by default
KEEP_EVERY: Final = 64 << 20  # bytes fetched of a file, after which the store is asked whether it has changed
USED_AGAIN: Final = 60.0  # seconds within which a second use is not noted
TRAILER: Final = struct.Struct("<4sI")  # after the bytes of a block: what this is, their CRC-32

_log = logging.getLogger(__name__)

Get = Callable[[int, int], bytes]


def _blocks(folder: Path | str, level: int = 0) -> Iterator[tuple[float, int, str]]:
    """(last use, bytes, path) of each file with the name of a block; those that disappear meanwhile are left out."""
    if os.path.islink(folder):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not NAMES[level].fullmatch(entry.name):
                    continue
                if level + 1 < len(NAMES):
                    yield from _blocks(entry.path, level + 1)
                elif entry.is_file(follow_symlinks=False):
                    told = entry.stat(follow_symlinks=False)
                    yield told.st_mtime, told.st_size, entry.path


def _is_block(path: str) -> bool:
    """Whether the file ends with a block's trailer."""
    try:
        with open(path, "rb") as file:
            file.seek(-2 * len(MAGIC), os.SEEK_END)
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@once
def cache_at(folder: str, size: int = SIZE) -> RemoteCache:
    """The cache in a folder, one per process. `size`: bytes that it may take. Raises StorageError where no folder can be."""
    return RemoteCache(Path(folder), size)


class RemoteCache:
    """Blocks of remote files, by version."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self._blocks, self._unfinished = folder / "blocks", folder / "unfinished"
        self._taken = size  # so that the first to write lists the folder
        self._keeps = True  # False once that has failed
        self._lock = threading.Lock()
        self._count = 0
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._unfinished.mkdir(exist_ok=True)
        except OSError as err:
            if not self._blocks.is_dir():
                fix = "name a folder that can be made, or leave out --cache"
                raise StorageError(f"no cache can be here: {err.strerror or err}", where=str(folder), fix=fix) from err
            self._give_up(err)

    def __reduce__(self) -> tuple[Any, ...]:
        return cache_at, (str(self.folder), self.size)

    def file(self, address: Iterable[str], version: str, size: int, get: Get, still: Callable[[], bool]) -> CachedFile:
        """One version of a remote file of `size` bytes, whose ranges `get` fetches.

        `address`: what distinguishes it from any other file. `still`: whether the store has that version now.
        """
        name = hashlib.sha256(json.dumps([*address, version, size]).encode()).hexdigest()
        return CachedFile(self, self._blocks / name[:2] / name[2:], size, get, still)

    def read(self, block: Path, into: memoryview) -> bool:
        """Fill `into` with the bytes of a block; False where it is not here, or not as it was written."""
        try:
            with block.open("rb") as file:
                count, trailer = file.readinto(into), file.read(TRAILER.size + 1)
                if count != len(into) or trailer != TRAILER.pack(MAGIC, zlib.crc32(into)):
                    raise ValueError
                used = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return False
        except (OSError, ValueError):  # damaged, or a disk that fails: fetched again
            with suppress(OSError):
                block.unlink()
            return False
        if abs(time.time() - used) > USED_AGAIN:
            with suppress(OSError):
                os.utime(block)
        return True

    def write(self, data: memoryview) -> Path | None:
        """`data` in a temporary file that nobody reads yet; None where that is not possible."""
        if not self._keeps:
            return None
        with self._lock:
            self._count += 1
            name = f"{os.getpid()}-{threading.get_ident()}-{self._count}-{time.time_ns()}"
        place = self._unfinished / name
        try:
            with place.open("xb", buffering=0) as file:
                for piece in (data, TRAILER.pack(MAGIC, zlib.crc32(data))):
                    _write_all(file, memoryview(piece))
        except OSError as err:
            remove([place])
            self._give_up(err)
            return None
        return place

    def keep(self, written: Iterable[tuple[Path, Path]]) -> None:
        """Give blocks that were written, and checked, their names: (as written, name). Makes room for them."""
        pairs = list(written)
        self._make_room(len(pairs) * (BLOCK + TRAILER.size))
        for place, block in pairs:
            try:
                block.parent.mkdir(parents=True, exist_ok=True)
                place.replace(block)
            except FileNotFoundError:  # the folder was empty for a moment, and is gone again
                remove([place])
            except OSError as err:
                remove([place])
                self._give_up(err)

    def _make_room(self, size: int) -> None:
        """Make room for `size` bytes that are about to be added, if it is time to list the folder."""
        with self._lock:
            self._taken += size
            if self._taken <= self.size // SHARE:
                return
            self._taken = 0
        self._sweep()
        found = sorted(_blocks(self._blocks))
        total, most = sum(size for _, size, _ in found), self.size - self.size // SHARE - size
        for _, freed, block in found:  # the least recently used first
            if total <= most:
                return
            if not _is_block(block):
                continue
            with suppress(OSError):
                os.unlink(block)
            total -= freed
            with suppress(OSError):  # unless it was the last of its file
                os.rmdir(os.path.dirname(block))

    def _sweep(self) -> None:
        """Remove unfinished blocks of processes that died."""
        if os.path.islink(self._unfinished):
            return
        with suppress(OSError), os.scandir(self._unfinished) as entries:
            for entry in entries:
                with suppress(OSError):
                    ours = UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                    if ours and time.time() - entry.stat(follow_symlinks=False).st_mtime > LEFT_AFTER:
                        os.unlink(entry.path)

    def _give_up(self, err: OSError) -> None:
        if self._keeps:
            self._keeps = False
            text = "warning: nothing more is written to the cache %s: %s; the command continues without it"
            _log.warning(text, self.folder, err.strerror or err)


class CachedFile:
    """One version of a remote file while it is read: by any number of threads, until `close`."""

    def __init__(self, cache: RemoteCache, folder: Path, size: int, get: Get, still: Callable[[], bool]) -> None:
        self._cache, self._folder, self._size = cache, folder, size
        self._get, self._still = get, still
        self._lock = threading.Lock()
        self._written: dict[int, Path] = {}  # blocks that were fetched, and are not kept yet
        self._closed = self._changed = False

    def get(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`, fetched as far as they are not here. Raises what fetching raises."""
        first, last = start // BLOCK, -(-end // BLOCK)
        low, high = first * BLOCK, min(last * BLOCK, self._size)
        data = bytearray(high - low)
        view = memoryview(data)
        missing = [i for i in range(first, last) if not self._read(i, view[i * BLOCK - low :][:BLOCK])]
        for begin, stop in _runs(missing):
            fetched = memoryview(self._get(begin * BLOCK, min(stop * BLOCK, self._size)))
            view[begin * BLOCK - low :][: len(fetched)] = fetched
            for i in range(begin, stop):
                self._write(i, fetched[(i - begin) * BLOCK :][:BLOCK])
        if len(self._written) * BLOCK >= KEEP_EVERY:
            self._keep(self._still)
        return data if (low, high) == (start, end) else data[start - low : end - low]  # type: ignore[return-value]

    def close(self, still: Callable[[], bool]) -> bool:
        """Keep what was fetched, if `still` says that the store has this version; False where it has another one.

        Raises what `still` raises.
        """
        with self._lock:
            self._closed = True
        self._keep(still)
        return not self._changed

    def discard(self) -> None:
        """Keep nothing more."""
        with self._lock:
            self._closed = True
            written, self._written = self._written, {}
        remove(written.values())

    def _read(self, index: int, into: memoryview) -> bool:
        with self._lock:
            written = self._written.get(index)
        return (written is not None and self._cache.read(written, into)) or self._cache.read(self._folder / str(index), into)

    def _write(self, index: int, data: memoryview) -> None:
        place = self._cache.write(data)
        if place is None:
            return
        with self._lock:
            if self._closed or index in self._written:
                remove([place])
            else:
                self._written[index] = place

    def _keep(self, still: Callable[[], bool]) -> None:
        with self._lock:
            written, self._written = self._written, {}
        if not written:
            return
        same = False
        try:
            same = still()
        finally:
            if not same:
                remove(written.values())
        if same:
            self._cache.keep((place, self._folder / str(index)) for index, place in written.items())
        else:
            self._changed = True


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, from the first to before the one after the last."""
    starts = [i for i in numbers if i - 1 not in numbers]
    ends = [i + 1 for i in numbers if i + 1 not in numbers]
    return list(zip(starts, ends, strict=True))


def _write_all(file: Any, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


def remove(files: Iterable[Path]) -> None:
    """Remove files that may be gone already."""
    for file in files:
        with suppress(OSError):
            file.unlink()
