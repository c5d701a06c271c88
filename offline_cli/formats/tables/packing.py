"""Files unpacked, gzip and zstd by their first bytes, and whether first bytes are those of a CSV table.

A damaged packed file raises by name. Prose is no CSV table: a table needs two lines of as many cells, or a CSV file's name.
"""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from offline_cli.errors import BadData
from offline_cli.formats.source import Openable
from offline_cli.parquet.extension_types import extension_failures
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures

__all__ = ["damage", "is_named_csv", "looks_like_csv", "packing_of", "pieces_of", "unpacked", "unpacked_head"]

MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES: Final = 1 << 16
HEAD_PIECE: Final = 1 << 8  # read at a time: a piece with damage in it is lost whole
PIECE: Final = 1 << 16
NAMED: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst", ".csv.zstd", ".tsv.zstd")
PROSE: Final = (
    *(".md", ".rst", ".html", ".htm", ".xml", ".tex", ".svg", ".log"),
    *(".py", ".sh", ".toml", ".yaml", ".yml", ".ini", ".cfg"),
)
DELIMITERS: Final = (",", "\t", ";", "|")
MAX_NAME: Final = 64  # letters of the name of a column


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


def unpacked(file: Openable, scope: Scope, *, seekable: bool = False, temp_dir: str | None = None) -> Any:
    """A file's content from its start; `seekable`: packed content is first written to a temporary file."""
    stored = scope.enter(file.open())
    packing = packing_of(stored.read(4))
    stored.seek(0)
    if not packing:
        return stored
    stream = scope.enter(pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), packing))
    if not seekable:
        return stream
    plain = scope.enter(tempfile.TemporaryFile(dir=temp_dir))  # noqa: SIM115  the scope closes it
    shutil.copyfileobj(stream, plain, 1 << 20)
    plain.seek(0)
    return plain


def pieces_of(stream: Any, size: int) -> Iterator[bytes]:
    """The content in pieces of about `size` bytes; where it breaks off, what was read before comes first."""
    held = bytearray()
    try:
        while piece := bytes(stream.read(min(PIECE, size))):
            held += piece
            if len(held) >= size:
                yield bytes(held)
                held.clear()
    except Exception:
        if held:
            yield bytes(held)
        raise
    if held:
        yield bytes(held)


def unpacked_head(file: Openable) -> bytes:
    """The first bytes of the content; where the file is damaged, those before that, or none: they still show its kind."""
    head = b""
    with Scope() as scope:
        stream = unpacked(file, scope)
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
    names = {name.strip() for name in header}
    return 1 < len(header) == len(first) == len(names) and max(map(len, names)) <= MAX_NAME
