"""Files unpacked, gzip and zstd by their first bytes, and whether first bytes are those of a CSV table.

A damaged packed file raises by name. Prose is no CSV table: a table needs two lines of as many cells, or a CSV file's name.
"""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import pyarrow as pa

from offline_cli.errors import BadData
from offline_cli.formats.source import Openable
from offline_cli.parquet.extension_types import extension_failures
from offline_cli.storage.failures import storage_failures

__all__ = ["damage", "is_named_csv", "looks_like_csv", "packing_of", "seekable", "unpacked", "unpacked_head"]

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES = 1 << 16
HEAD_PIECE = 1 << 8  # read at a time: a piece with damage in it is lost whole

NAMED = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst", ".csv.zstd", ".tsv.zstd")
PROSE = (".md", ".rst", ".html", ".htm", ".xml", ".py", ".sh", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".log", ".tex", ".svg")
DELIMITERS = (",", "\t", ";", "|")
MAX_NAME = 64  # letters of the name of a column


def packing_of(head: bytes) -> str:
    """`gzip`, `zstd`, or nothing, by the first bytes of a file."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def damage(url: str) -> Iterator[None]:
    """Within it, bytes that Arrow cannot read raise BadData, and failing storage StorageError."""
    with storage_failures(url, "reading it"):
        try:
            with extension_failures():
                yield
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the storage's; Arrow's own have no number
                raise
            text = str(error).strip().splitlines()
            raise BadData(
                f"the file breaks off or is damaged: {text[0] if text else type(error).__name__}",
                where=url,
                fix="copy or write the file again, or --on-error skip to read the others",
            ) from error


class unpacked:  # noqa: N801  reads as what it gives, as in contextlib
    """A file's content from its start, to be read once from beginning to end; a context manager, harmless to drop."""

    packing = ""  # as `packing_of` says, once it is open

    def __init__(self, file: Openable) -> None:
        self._file, self._stack = file, ExitStack()

    def __enter__(self) -> Any:
        with ExitStack() as stack:
            stream = self._opened(stack)
            self._stack = stack.pop_all()
        return stream

    def _opened(self, stack: ExitStack) -> Any:
        stored = stack.enter_context(self._file.open())
        self.packing = packing_of(stored.read(4))
        stored.seek(0)
        if not self.packing:
            return stored
        return stack.enter_context(pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), self.packing))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)


class seekable(unpacked):  # noqa: N801
    """The same, to be read at any place: packed content is written to a temporary file first."""

    def __init__(self, file: Openable, temp_dir: str | None) -> None:
        super().__init__(file)
        self._temp_dir = temp_dir

    def _opened(self, stack: ExitStack) -> Any:
        stream = super()._opened(stack)
        if not self.packing:
            return stream
        plain = stack.enter_context(tempfile.TemporaryFile(dir=self._temp_dir))  # noqa: SIM115  the stack closes it
        shutil.copyfileobj(stream, plain, 1 << 20)
        plain.seek(0)
        return plain


def unpacked_head(file: Openable) -> bytes:
    """The first bytes of the content; where the file is damaged, those before that, or none: they still show its kind."""
    head = b""
    with unpacked(file) as stream:
        try:
            while len(head) < HEAD_BYTES and (piece := bytes(stream.read(HEAD_PIECE))):
                head += piece
        except (pa.ArrowException, OSError, EOFError):
            return head
    return head


def is_named_csv(name: str) -> bool:
    """Whether a file is called a CSV table, packed or not."""
    return name.lower().endswith(NAMED)


def looks_like_csv(head: bytes, name: str) -> bool:
    """`head`: the first bytes; `name`: of the file, which helps where a table has one column, or prose has commas."""
    if not head.strip() or name.lower().endswith(PROSE):
        return False
    text = _text(head)
    return is_named_csv(name) or any(_is_table(text, delimiter) for delimiter in DELIMITERS)


def _text(head: bytes) -> str:
    """Empty where the bytes are not text."""
    if b"\0" in head:
        return ""
    try:
        return head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cut_in_half = error.start > len(head) - 4
        return head[: error.start].decode("utf-8-sig") if cut_in_half else ""


def _is_table(text: str, delimiter: str) -> bool:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header, first = next(rows, []), next(rows, [])
    except csv.Error:
        return False
    names = [name.strip() for name in header]
    return (
        len(names) > 1
        and len(first) == len(names)
        and len(set(names)) == len(names)
        and all(len(name) <= MAX_NAME for name in names)
    )
