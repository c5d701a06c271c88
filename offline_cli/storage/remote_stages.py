"""Uploads of which nothing shows until they are committed, and nothing remains where they are discarded, if the store allows.

* Clients of fsspec: its `autocommit=False`. Blocks of `BLOCK` bytes, each one request under the watchdog, are a multipart
  upload on S3, a resumable one on Google's storage, staged blocks on Azure. `discard` aborts it on S3; the others forget what
  was never completed by themselves, within a week.
* `pyarrow.fs`: bytes wait in a temporary file of this machine and are uploaded by `commit`, because its streams can only be
  closed, which publishes what they hold. What a failed upload left under a name that was free (Azure: an empty file) goes.

A process that is killed cannot abort its upload: docs/storage.md says how buckets get rid of those.
"""

from __future__ import annotations

import contextlib
import tempfile
from functools import partial
from typing import Any, Final

from fsspec.implementations.arrow import ArrowFSWrapper

from offline_cli.errors import StorageError
from offline_cli.storage.locations import Location

__all__ = ["BLOCK", "ArrowStage", "UploadStage", "is_arrow", "takes_whole"]

BLOCK: Final = 8 << 20  # bytes of an uploaded part; S3 takes 10,000 of them, of at least 5 MiB
WRITING: Final = "writing"


def is_arrow(target: Location) -> bool:
    """Whether `target` is in a filesystem of `pyarrow.fs`."""
    return isinstance(target.fs, ArrowFSWrapper)


def takes_whole(target: Location) -> bool:
    """Whether the client puts a small file under its name by one request that succeeds or fails as a whole."""
    return target.is_in_bucket and not is_arrow(target)


class UploadStage:
    """An upload by a client of fsspec. Raises StorageError."""

    def __init__(self, target: Location) -> None:
        block = {"block_size": BLOCK} if target.is_in_bucket else {}
        self._target = target
        self._waiting = bytearray()  # less than a block
        self._file: Any = target.ask("opening it for writing", partial(_opened, target, autocommit=False, **block))

    def write(self, data: Any) -> object:
        """Send `data`, a block at a time: the client would send it in one request, however large."""
        rest = memoryview(data)
        while len(self._waiting) + len(rest) >= BLOCK:
            room = BLOCK - len(self._waiting)
            self._waiting += rest[:room]
            rest = rest[room:]
            self._send()
        self._waiting += rest
        return len(data)

    def _send(self) -> None:
        part, self._waiting = bytes(self._waiting), bytearray()
        self._target.ask(WRITING, partial(self._file.write, part))

    def commit(self) -> None:
        """Put the file under its name."""
        self._send()
        self._target.ask(WRITING, self._file.close)
        self._target.ask(WRITING, self._file.commit)

    def discard(self) -> None:
        """Abort the upload."""
        try:
            if not self._target.forgets_uploads:
                self._target.ask("aborting the upload", self._file.discard)
        finally:
            with contextlib.suppress(AttributeError):  # read-only in some filesystems, which need no such help
                self._file.closed = True  # else the garbage collector would close it, and closing uploads what is left


class ArrowStage:
    """An upload by a filesystem of `pyarrow.fs`. Raises StorageError."""

    def __init__(self, target: Location) -> None:
        self._target = target
        self._waiting = tempfile.TemporaryFile(prefix="offline-cli-")  # noqa: SIM115  # closed by commit or discard

    def write(self, data: Any) -> object:
        """Keep `data` for `commit`."""
        return self._waiting.write(data)

    def commit(self) -> None:
        """Upload what waits."""
        was_there = self._target.exists()
        try:
            self._upload()
        except BaseException:
            if not was_there:
                with contextlib.suppress(StorageError):  # the failure itself is told
                    self._target.remove()
            raise
        self._waiting.close()

    def _upload(self) -> None:
        self._waiting.seek(0)
        stream: Any = self._target.ask("opening it for writing", partial(_opened, self._target))
        while part := self._waiting.read(BLOCK):
            self._target.ask(WRITING, partial(stream.write, part))
        self._target.ask(WRITING, stream.close)

    def discard(self) -> None:
        """Forget what waits."""
        self._waiting.close()


def _opened(target: Location, **options: Any) -> Any:
    return target.fs.open(target.path, "wb", **options)
