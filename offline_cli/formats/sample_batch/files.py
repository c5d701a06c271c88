"""The lines of recording files, plain, gzip or zip by their first bytes, and groups of lines that are read together.

* `lines_of`: lines without end and archives cut in half are refused. A file that breaks off is reported once, as a row of its
  own; what was read before it counts.
* `line_limit_of`: how long a line of JSON may be; a packed file may not hold lines far larger than itself.
* `grouped`: the lines of many files in groups. A group never spans two files or a lost line.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsafeData
from offline_cli.formats.source import Openable
from offline_cli.scopes import Scope, part_of
from offline_cli.storage.failures import storage_failures
from offline_cli.tally import Rejects, RejectsAhead

__all__ = ["MAX_LINE_BYTES", "Line", "LineGroup", "grouped", "line_limit_of", "lines_of"]

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, and a line is a part of a file
SMALL_LINE_BYTES: Final = 8 << 20  # parsed, a line can take 30 times its bytes
MAX_RATIO: Final = 200  # a longer line may be so often the size of its packed file; bombs reach 1032 with deflate

PIECE_BYTES: Final = 1 << 20  # of a line that is skipped
BUFFER_BYTES: Final = 1 << 20  # of a plain file: a line is many times as long as Python's own buffer
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
GZIP_MAGIC: Final = b"\x1f\x8b"
ZIP_MAGICS: Final = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an archive of no files
DAMAGE: Final = (
    EOFError,
    IndexError,  # a member of a zip archive without a name
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,  # places before the archive's start
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of the readers of packed files; zipfile checks little of an archive's tables."""

TOGETHER_LINES: Final = 4096  # each that cannot be read is an error in memory
TOGETHER_BYTES: Final = 2 << 20  # of lines whose numbers become arrays together; parsed, they can take 30 times as much


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


BOM: Final = b"\xef\xbb\xbf"


def lines_of(location: Openable, rejects: Rejects, scope: Scope | None = None) -> Iterator[Line]:
    """The lines of the file, blank ones left out. A file that cannot be decompressed to its end goes to `rejects`.

    `scope` owns it while it is open.
    """
    where = location.url
    with storage_failures(where, "reading it"), part_of(scope) as held:
        file = held.enter(location.open())
        head = file.read(4)
        file.seek(len(BOM) if head.startswith(BOM) else 0)
        try:
            yield from _lines(file, head, where, rejects, held)
        except OSError as err:
            if err.errno is not None:  # the storage's; those of packed bytes have none
                raise
            rejects.add(_damaged(err, where))
        except DAMAGE as err:
            if not _is_packed(head):
                raise
            rejects.add(_damaged(err, where))


def _damaged(err: Exception, where: str) -> BadData:
    fix = "fetch the file again from where it was made, or --on-error skip to keep what came before"
    what = f"the file breaks off or is damaged: {str(err) or type(err).__name__}"
    return BadData(what, where=where, fix=fix, details={PROBLEM: "unreadable-file"})


def _is_packed(head: bytes) -> bool:
    return head[:2] == GZIP_MAGIC or head in ZIP_MAGICS


def _lines(file: IO[bytes], head: bytes, where: str, rejects: Rejects, held: Scope) -> Iterator[Line]:
    if not _is_packed(head):
        plain = _Buffer(file, BUFFER_BYTES)  # type: ignore[arg-type]  # any file that can be read into a buffer
        yield from _split(plain, where, rejects, plain, MAX_LINE_BYTES)
        return
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    limit = line_limit_of(size, packed=True)
    if head[:2] == GZIP_MAGIC:
        yield from _split(held.enter(gzip.GzipFile(fileobj=file)), where, rejects, file, limit)
    else:
        archive = held.enter(zipfile.ZipFile(file))
        for name in _members(archive, size):
            with held.part() as one:
                member = one.enter(archive.open(name))
                yield from _split(io.BufferedReader(member), f"{where}!{name}", rejects, file, limit)


class _Buffer(io.BufferedReader):
    """Leaves the file to its owner: dropping it would close the file, and a bucket gets a request then."""

    def __del__(self) -> None:
        with suppress(ValueError):  # the file is closed
            self.detach()


def _members(archive: zipfile.ZipFile, size: int) -> list[str]:
    """The names of the archive's files, sorted. Raises BadZipFile where they overlap: a few bytes could unfold without end."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if sum(entry.compress_size for entry in entries) > size:
        raise zipfile.BadZipFile("members that overlap")
    other = [entry.compress_type for entry in entries if entry.compress_type not in METHODS]
    if other:
        raise NotImplementedError(f"compression method {other[0]}, not deflate")
    return sorted(entry.filename for entry in entries)


def _split(file: Any, file_name: str, rejects: Rejects, stored: IO[bytes], limit: int) -> Iterator[Line]:
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
            rejects.add(UnsafeData(f"a line of more than {limit >> 20} MiB", where=place, fix=fix))
        elif stripped := data.strip():
            yield Line(stripped, file_name, number, whole, stored.tell())


@dataclass(slots=True)
class LineGroup:
    """Consecutive lines of a file, and what could not be read right before them."""

    rejects: RejectsAhead = field(default_factory=RejectsAhead)
    lost: list[str] = field(default_factory=list)  # the files of these
    lines: list[Line] = field(default_factory=list)
    nbytes: int = 0  # of the lines
    done: int = 0  # bytes of all files, as they are stored, that have been read with them


def grouped(files: Sequence[Openable], scope: Scope | None = None) -> Iterator[LineGroup]:
    """The lines of all files, in order; what cannot be read is in the group after it, if need be in one without lines.

    `scope` owns the file that is open. Raises StorageError, after the lines before it.
    """
    rejects, group = RejectsAhead(), LineGroup()
    for file in files:
        before, lines = group.done, lines_of(file, rejects, scope)
        while True:
            try:
                line = next(lines, None)
            except Exception:
                yield group
                raise
            is_full = line is not None and (
                group.nbytes + len(line.data) > TOGETHER_BYTES or len(group.lines) == TOGETHER_LINES
            )
            if group.lines and (line is None or is_full or rejects.told):
                yield group
                group = LineGroup(done=group.done)
            if rejects.told:
                group.lost.append(file.url)
                rejects.pass_on(group.rejects)
            if line is None:
                break
            group.lines.append(line)
            group.nbytes += len(line.data)
            group.done = before + line.position
    if group.lost:
        yield group
