"""Files as they were before somebody packed them, gzip and zstd by their first bytes; refuses damaged ones by name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from offline_cli.errors import BadData
from offline_cli.formats.file_source import Openable
from offline_cli.storage.arrow_extensions import extension_failures
from offline_cli.storage.failures import storage_failures

__all__ = ["damage", "packing_of", "seekable", "unpacked", "unpacked_head"]

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD_BYTES = 1 << 16
HEAD_PIECE = 1 << 8  # read at a time: a piece with damage in it is lost whole


def packing_of(head: bytes) -> str:
    """`gzip`, `zstd`, or nothing, by the first bytes of a file."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def damage(url: str) -> Iterator[None]:
    """Within it, bytes that Arrow cannot read raise BadData, and storage that fails StorageError."""
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
                fix="copy or write the file again; --on-error skip reads the others",
            ) from error


@contextmanager
def unpacked(file: Openable, packing: str) -> Iterator[Any]:
    """The file's content from its start, to be read once from beginning to end."""
    with file.open() as stored:
        if packing:
            with pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), packing) as plain:
                yield plain
        else:
            yield stored


@contextmanager
def seekable(file: Openable, packing: str, temp_dir: str | None) -> Iterator[Any]:
    """The same, to be read at any place: packed content is written to a temporary file first."""
    with unpacked(file, packing) as stream:
        if not packing:
            yield stream
            return
        with tempfile.TemporaryFile(dir=temp_dir) as plain:
            shutil.copyfileobj(stream, plain, 1 << 20)
            plain.seek(0)
            yield plain


def unpacked_head(file: Openable, packing: str) -> bytes:
    """The first bytes of the content; where the file is damaged, those before that, or none: they still tell its kind."""
    head = b""
    with unpacked(file, packing) as stream:
        try:
            while len(head) < HEAD_BYTES and (piece := bytes(stream.read(HEAD_PIECE))):
                head += piece
        except (pa.ArrowException, OSError, EOFError):
            return head
    return head
