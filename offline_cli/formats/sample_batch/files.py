"""The lines of a recording file, plain, gzip or zip by its first bytes; refuses lines without end and archives cut in half.

A file that breaks off is reported once, as a row of its own; what was read before it stands.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsafeData
from offline_cli.formats.file_source import Openable
from offline_cli.storage.failures import storage_failures
from offline_cli.tally import Rejects

__all__ = ["Line", "lines_of"]

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, and a line is a part of a file
GZIP_MAGIC: Final = b"\x1f\x8b"
ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an archive of no files


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


def lines_of(location: Openable, rejects: Rejects) -> Iterator[Line]:
    """The lines of the file, blank ones left out. A file that cannot be decompressed to its end goes to `rejects`."""
    where = location.url
    with storage_failures(where, "reading it"), location.open() as file:
        head = file.read(4)
        file.seek(0)
        try:
            yield from _lines(file, head, where, rejects)
        except (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as err:
            fix = "fetch the file again from where it was made, or --on-error skip to keep what came before"
            what = f"the file breaks off or is damaged: {err}"
            rejects.add(BadData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"}))


def _lines(file: IO[bytes], head: bytes, where: str, rejects: Rejects) -> Iterator[Line]:
    if head[:2] == GZIP_MAGIC:
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from _split(unpacked, where, rejects, file)
    elif head in ZIP_MAGICS:
        with zipfile.ZipFile(file) as archive:
            for name in sorted(entry.filename for entry in archive.infolist() if not entry.is_dir()):
                with archive.open(name) as member:
                    yield from _split(io.BufferedReader(member), f"{where}!{name}", rejects, file)
    else:
        yield from _split(file, where, rejects, file)


def _split(file: Any, file_name: str, rejects: Rejects, stored: IO[bytes]) -> Iterator[Line]:
    number = 0
    while data := file.readline(MAX_LINE_BYTES):
        number += 1
        whole = data.endswith(b"\n")
        if len(data) == MAX_LINE_BYTES and not whole:
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            fix = "write the file again from its source"
            rejects.add(
                UnsafeData(f"a line of more than {MAX_LINE_BYTES >> 20} MiB", where=f"{file_name} line {number}", fix=fix)
            )
        elif stripped := data.strip():
            yield Line(stripped, file_name, number, whole, stored.tell())
