"""Read the lines of JSON files: plain, gzip or zip, detected by the first bytes.

A truncated file is reported once, as one bad row; lines before it are kept. Lines of compressed files have a size limit
relative to the file.
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

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, so lines are smaller
SMALL_LINE_BYTES: Final = 8 << 20  # always allowed; a parsed line can take 30 times its size
MAX_RATIO: Final = 200  # limit of a longer line, as a multiple of its compressed file; deflate bombs reach 1032
BUFFER_BYTES: Final = 1 << 20  # for plain files: lines are much longer than Python's default buffer
PIECE_BYTES: Final = 1 << 20  # read at a time when skipping a line
GZIP_MAGIC: Final = b"\x1f\x8b"
ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an empty archive
BOM: Final = b"\xef\xbb\xbf"  # UTF-8 byte order mark, written by editors and Windows
DAMAGE: Final = (EOFError, LookupError, OverflowError, RuntimeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error)
"""Exceptions of decompressors for damaged files; zipfile hardly checks an archive's tables."""


@dataclass(frozen=True, slots=True)
class Line:
    """One nonblank line of a file, without its newline."""

    data: bytes
    file: str  # URL; for a zip archive, followed by "!" and the member's name
    number: int  # from 1
    whole: bool = True  # whether a newline followed; false if the writer was killed
    position: int = 0  # bytes of the stored file read up to its end

    @property
    def where(self) -> str:
        """For messages: `recordings/output-0.json line 3`."""
        return f"{self.file} line {self.number}"


def lines_of(location: Openable, scope: Scope | None = None) -> Iterator[Line | BadData]:
    """The nonblank lines of a file. Yields errors for lines that are too long, and for an unreadable rest of the file.

    `scope` closes the file.
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
            if (
                not is_packed or getattr(error, "errno", None) is not None
            ):  # from storage; errors of decompression have no errno
                raise
            fix = "fetch the file again from its origin, or keep the lines before with --on-error skip"
            what = f"the file is truncated or damaged: {str(error) or type(error).__name__}"
            yield BadData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})


def _lines_of_members(file: IO[bytes], size: int, where: str, limit: int, held: Scope) -> Iterator[Line | BadData]:
    """Lines of a zip archive. Raises BadZipFile if members overlap, as in zip bombs."""
    archive = held.enter(zipfile.ZipFile(file))
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if sum(entry.compress_size for entry in entries) > size:
        raise zipfile.BadZipFile("members overlap")
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
            del data  # free memory before reading the next piece
            while (rest := file.readline(PIECE_BYTES)) and not rest.endswith(b"\n"):
                pass
            what, place = f"the line is longer than {limit >> 20} MiB", f"{file_name} line {number}"
            yield UnsafeData(what, where=place, fix="write the file again from its source")
        elif stripped := (data.removeprefix(BOM) if number == 1 else data).strip():
            yield Line(stripped, file_name, number, whole, stored.tell())
