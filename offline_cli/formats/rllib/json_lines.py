"""The lines of JSON files: plain, gzip or zip by their first bytes.

Lines without end and archives cut in half are refused. A file that breaks off is reported once, as a row of its own; what was
read before it counts. A packed file may not hold lines far larger than itself.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsafeData
from offline_cli.formats.source import Openable
from offline_cli.scopes import Scope, part_of
from offline_cli.storage.failures import storage_failures

__all__ = ["MAX_LINE_BYTES", "Line", "line_limit_of", "lines_of"]

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, and a line is a part of a file
SMALL_LINE_BYTES: Final = 8 << 20  # parsed, a line can take 30 times its bytes
MAX_RATIO: Final = 200  # a longer line may be so often the size of its packed file; bombs reach 1032 with deflate
PIECE_BYTES: Final = 1 << 20  # of a line that is skipped
BUFFER_BYTES: Final = 1 << 20  # of a plain file: a line is many times as long as Python's own buffer
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
GZIP_MAGIC: Final = b"\x1f\x8b"
ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an archive of no files
BOM: Final = b"\xef\xbb\xbf"  # of UTF-8: what editors and Windows put at the start
DAMAGE: Final = (
    EOFError,
    LookupError,  # a member of a zip archive without a name
    OverflowError,
    RuntimeError,  # NotImplementedError too
    ValueError,  # places before the archive's start
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of the readers of packed files; zipfile checks little of an archive's tables."""


def line_limit_of(size: int, *, packed: bool) -> int:
    """Bytes that a line may have in a file of `size` bytes as it is stored."""
    return min(MAX_LINE_BYTES, max(SMALL_LINE_BYTES, MAX_RATIO * size)) if packed else MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, its end of line taken off; never blank."""

    data: bytes
    file: str  # URL, for a zip archive with the member's name after "!"
    number: int  # from 1
    whole: bool = True  # whether an end of line followed: a killed writer leaves none
    position: int = 0  # bytes of the file, as it is stored, that have been read with it

    @property
    def where(self) -> str:
        """For messages: `recordings/output-0.json line 3`."""
        return f"{self.file} line {self.number}"


def lines_of(location: Openable, scope: Scope | None = None) -> Iterator[Line | BadData]:
    """The lines of the file, blank ones left out; errors in place of a line that is too long, and of the rest of a file that
    cannot be decompressed to its end. `scope` owns the file while it is open.
    """
    where = location.url
    with storage_failures(where, "reading it"), part_of(scope) as held:
        file = held.enter(location.open())
        head = file.read(4)
        file.seek(0)
        is_packed = head[:2] == GZIP_MAGIC or head in ZIP_MAGICS
        try:
            yield from _packed_lines(file, head, where, held) if is_packed else _plain_lines(file, where)
        except (OSError, *DAMAGE) as error:
            if not is_packed or getattr(error, "errno", None) is not None:  # the storage's; those of packed bytes have none
                raise
            fix = "fetch the file again from where it was made, or --on-error skip to keep what came before"
            what = f"the file breaks off or is damaged: {str(error) or type(error).__name__}"
            yield BadData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})


class _Buffer(io.BufferedReader):
    """Leaves the file to its owner: dropping it would close the file, and a bucket gets a request then."""

    def __del__(self) -> None:
        with suppress(ValueError):  # the file is closed
            self.detach()


def _plain_lines(file: Any, where: str) -> Iterator[Line | BadData]:
    plain = _Buffer(file, BUFFER_BYTES)
    return _split(plain, where, plain, MAX_LINE_BYTES)


def _packed_lines(file: IO[bytes], head: bytes, where: str, held: Scope) -> Iterator[Line | BadData]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    limit = line_limit_of(size, packed=True)
    if head[:2] == GZIP_MAGIC:
        yield from _split(held.enter(gzip.GzipFile(fileobj=file)), where, file, limit)
        return
    archive = held.enter(zipfile.ZipFile(file))
    for name in _members(archive, size):
        with held.part() as one:
            member = one.enter(archive.open(name))
            yield from _split(io.BufferedReader(member), f"{where}!{name}", file, limit)


def _members(archive: zipfile.ZipFile, size: int) -> list[str]:
    """The names of the archive's files, sorted. Raises BadZipFile where they overlap: a few bytes could unfold without end."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if sum(entry.compress_size for entry in entries) > size:
        raise zipfile.BadZipFile("members that overlap")
    other = [entry.compress_type for entry in entries if entry.compress_type not in METHODS]
    if other:
        raise zipfile.BadZipFile(f"compression method {other[0]}, not deflate")
    return sorted(entry.filename for entry in entries)


def _split(file: Any, file_name: str, stored: IO[bytes], limit: int) -> Iterator[Line | BadData]:
    number = 0
    while data := file.readline(limit):
        number += 1
        whole = data.endswith(b"\n")
        if len(data) == limit and not whole:
            del data  # before the next piece is made
            while (rest := file.readline(PIECE_BYTES)) and not rest.endswith(b"\n"):
                pass
            fix = "write the file again from its source"
            place = f"{file_name} line {number}"
            yield UnsafeData(f"a line of more than {limit >> 20} MiB", where=place, fix=fix)
        elif stripped := (data.removeprefix(BOM) if number == 1 else data).strip():
            yield Line(stripped, file_name, number, whole, stored.tell())
