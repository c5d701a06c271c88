"""The lines of JSON files: plain, gzip or zip by their first bytes.

A file that breaks off is reported once, as a row of its own; what was read before it counts. A packed file may not hold lines
far larger than itself.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsafeData
from offline_cli.formats.source import Openable
from offline_cli.scopes import Scope, part_of
from offline_cli.storage.failures import storage_failures

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, and a line is a part of a file
SMALL_LINE_BYTES: Final = 8 << 20  # parsed, a line can take 30 times its bytes
MAX_RATIO: Final = 200  # a longer line may be so often the size of its packed file; bombs reach 1032 with deflate
BUFFER_BYTES: Final = 1 << 20  # of a plain file: a line is many times as long as Python's own buffer
PIECE_BYTES: Final = 1 << 20  # of a line that is skipped
GZIP_MAGIC: Final = b"\x1f\x8b"
ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an archive of no files
BOM: Final = b"\xef\xbb\xbf"  # of UTF-8: what editors and Windows put at the start
DAMAGE: Final = (EOFError, LookupError, OverflowError, RuntimeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error)
"""Exceptions of the readers of packed files; zipfile checks little of an archive's tables."""


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
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        is_packed = head[:2] == GZIP_MAGIC or head in ZIP_MAGICS
        limit = min(MAX_LINE_BYTES, max(SMALL_LINE_BYTES, MAX_RATIO * size)) if is_packed else MAX_LINE_BYTES
        try:
            if head in ZIP_MAGICS:
                yield from _lines_of_members(file, size, where, limit, held)
            else:
                opened: Any = gzip.GzipFile(fileobj=file) if is_packed else io.BufferedReader(file, BUFFER_BYTES)
                yield from _split(held.enter(opened), where, file, limit)
        except (OSError, *DAMAGE) as error:
            if not is_packed or getattr(error, "errno", None) is not None:  # the storage's; those of packed bytes have none
                raise
            fix = "fetch the file again from where it was made, or --on-error skip to keep what came before"
            what = f"the file breaks off or is damaged: {str(error) or type(error).__name__}"
            yield BadData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})


def _lines_of_members(file: IO[bytes], size: int, where: str, limit: int, held: Scope) -> Iterator[Line | BadData]:
    """Raises BadZipFile where members overlap: a few bytes could unfold without end."""
    archive = held.enter(zipfile.ZipFile(file))
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if sum(entry.compress_size for entry in entries) > size:
        raise zipfile.BadZipFile("members that overlap")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise zipfile.BadZipFile("a compression method other than deflate")
    for name in sorted(entry.filename for entry in entries):
        with held.part() as one:
            yield from _split(io.BufferedReader(one.enter(archive.open(name))), f"{where}!{name}", file, limit)


def _split(file: Any, file_name: str, stored: IO[bytes], limit: int) -> Iterator[Line | BadData]:
    number = 0
    while data := file.readline(limit):
        number += 1
        whole = data.endswith(b"\n")
        if len(data) == limit and not whole:
            del data  # before the next piece is made
            while (rest := file.readline(PIECE_BYTES)) and not rest.endswith(b"\n"):
                pass
            what, place = f"a line of more than {limit >> 20} MiB", f"{file_name} line {number}"
            yield UnsafeData(what, where=place, fix="write the file again from its source")
        elif stripped := (data.removeprefix(BOM) if number == 1 else data).strip():
            yield Line(stripped, file_name, number, whole, stored.tell())
