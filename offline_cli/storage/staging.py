"""Atomic file writes, and creation of small files only if they do not exist.

`StagedFile` counts and hashes the bytes; how it stages them depends on the storage:

* fsspec clients: `autocommit=False`, in blocks of `BLOCK` bytes, each one bounded request: a multipart upload on S3, a
  resumable one on Google Cloud Storage, staged blocks on Azure. S3 keeps the parts of a killed process until a lifecycle
  rule removes them.
* Local: a `_part-` file in the dataset folder, then a rename (fsspec stages in the system's temporary folder).
* `pyarrow.fs` and memory://: a temporary file until `commit`, because these streams can only be closed, which publishes them.

`create_only`: one of several concurrent calls succeeds. Local: O_EXCL. Providers with `creates_only`: the client's
`mode="create"`. Elsewhere, and with `pyarrow.fs`: a check beforehand, which is open to races.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.local_files import PART_PREFIX, sync_names
from offline_cli.storage.locations import BLOCK, Location  # S3 allows 10,000 parts of at least 5 MiB

WRITING: Final = "writing"


class StagedFile(io.RawIOBase):
    """A writable file that `commit` publishes and `discard` drops; call exactly one of them. All methods raise StorageError."""

    def __init__(self, target: Location, *, folder: Location) -> None:
        """`folder`: the dataset folder, which holds the `_part-` file of a local target."""
        super().__init__()
        self.target = target
        self.bytes = 0
        self._sha256 = hashlib.sha256()
        self._discarded = False
        with _writing_failures(target, "opening it for writing"):
            kind = _LocalStage if target.is_local else _WaitingStage if target.is_memory or target.is_arrow else _UploadStage
            self._stage: _LocalStage | _WaitingStage | _UploadStage | None = kind(target, folder)

    @property
    def closed(self) -> bool:
        """Whether the file was committed or discarded."""
        return self._stage is None

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes written so far."""
        return self._sha256.hexdigest()

    def write(self, data: Any) -> int:
        """Append bytes; return their number. A discarded file ignores them: the Parquet writer still sends its footer."""
        if self._discarded:
            return len(data)
        assert self._stage is not None, "the file was committed or discarded"
        view = memoryview(data).cast("B")
        with _writing_failures(self.target):
            self._stage.write(view)
        self._sha256.update(view)
        self.bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes

    def close(self) -> None:
        """Do nothing: `commit` and `discard` end the file."""

    def writable(self) -> bool:
        """True."""
        return True

    def commit(self) -> None:
        """Publish the complete file under its name."""
        assert self._stage is not None, "the file was committed or discarded"
        with _writing_failures(self.target):
            self._stage.commit()
        self._stage = None

    def discard(self) -> None:
        """Discard the file; no effect after `commit` or a second time."""
        stage, self._stage = self._stage, None
        if stage is not None:
            self._discarded = True
            with storage_failures(self.target.url, "removing the incomplete file"):
                stage.discard()


@contextmanager
def _writing_failures(target: Location, doing: str = WRITING) -> Iterator[None]:
    """Within it, failures of storage raise StorageError; StorageNotFound of the bucket, though the client blames the file."""
    target.refuse_read_only()
    try:
        with storage_failures(target.url, doing):
            yield
    except StorageNotFound as err:
        raise target.missing() from err


def write_whole(target: Location, data: bytes, *, folder: Location) -> None:
    """Write `data` to `target`, replacing it atomically. Raises StorageError."""
    is_small = len(data) <= BLOCK and not target.is_arrow
    if is_small and (target.is_in_bucket or target.is_memory):  # one request instead of an upload's three
        with _writing_failures(target):
            target.ask(WRITING, lambda: target.fs.pipe_file(target.path, data))
        return
    file = StagedFile(target, folder=folder)
    try:
        file.write(data)
        file.commit()
    except BaseException:
        file.discard()
        raise


def part_name(name: str) -> str:
    """A temporary name for the file `name`, unique per writer: a stalled writer may wake up while another writes."""
    return f"{PART_PREFIX}{secrets.token_hex(4)}-{name}"


class _LocalStage:
    """A `_part-` file, then a rename."""

    def __init__(self, target: Location, folder: Location) -> None:
        self._final, self._part = target.path, folder.join(part_name(target.name)).path
        self._file = open(self._part, "wb")  # noqa: SIM115  # closed by commit or discard
        self.write = self._file.write

    def commit(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())  # a rename may reach the disk before the bytes
        self._file.close()
        os.replace(self._part, self._final)
        sync_names(os.path.dirname(self._final) or ".")  # old shards may be removed only once the new manifest is durable

    def discard(self) -> None:
        with suppress(OSError):  # closing flushes, which fails on a full disk
            self._file.close()
        with suppress(FileNotFoundError):  # interrupted after the rename
            os.remove(self._part)


class _UploadStage:
    """An upload through an fsspec client."""

    def __init__(self, target: Location, folder: Location) -> None:
        block = {"block_size": BLOCK} if target.is_in_bucket else {}
        self._target = target
        self._waiting = bytearray()  # less than a block
        opening = partial(target.fs.open, target.path, "wb", autocommit=False, **block)
        self._file: Any = target.ask("opening it for writing", opening)

    def write(self, data: memoryview) -> None:
        self._waiting += data
        while len(self._waiting) >= BLOCK:  # Cloudflare R2 requires parts of equal size
            self._send()

    def _send(self) -> None:
        part = bytes(self._waiting[:BLOCK])
        del self._waiting[:BLOCK]
        self._target.ask(WRITING, partial(self._file.write, part), moving=len(part))

    def commit(self) -> None:
        self._send()
        self._target.ask(WRITING, self._file.close)
        self._target.ask(WRITING, self._file.commit)

    def discard(self) -> None:
        try:
            if not self._target.provider.forgets_uploads:
                self._target.ask("aborting the upload", self._file.discard)
        finally:
            with suppress(AttributeError):  # read-only in filesystems that do not need this
                self._file.closed = True  # otherwise the garbage collector closes it, which uploads the rest


class _WaitingStage:
    """A temporary file, uploaded on commit."""

    def __init__(self, target: Location, folder: Location) -> None:
        self._target = target
        self._waiting = tempfile.SpooledTemporaryFile(BLOCK, prefix="offline-cli-")  # noqa: SIM115  # commit and discard close it
        self.write, self.discard = self._waiting.write, self._waiting.close

    def commit(self) -> None:
        was_there = self._target.exists()
        try:
            self._waiting.seek(0)
            stream: Any = self._target.ask(WRITING, lambda: self._target.fs.open(self._target.path, "wb"))
            while part := self._waiting.read(BLOCK):
                self._target.ask(WRITING, partial(stream.write, part))
            self._target.ask(WRITING, stream.close)
        except BaseException:
            if not was_there:
                with suppress(StorageError):  # the first failure is reported
                    self._target.remove()
            raise
        self._waiting.close()


# ---- exclusive creation ----


def create_only(target: Location, data: bytes) -> bool:
    """Create `target` with `data`, which must be unique to this caller; return False if it exists already.

    Raises StorageError.
    """
    creates_only = target.is_local or (target.provider.creates_only and not target.is_arrow)

    def request() -> bool:
        try:
            if target.is_local:
                _create(target.path, data)
            else:
                target.fs.pipe_file(target.path, data, **({"mode": "create"} if creates_only else {}))
        except FileExistsError:
            return False
        except OSError:
            if target.is_local or not target.exists():
                raise
            return False  # radosgw rejects it without a usable message
        return True

    if not creates_only and target.exists():
        return False
    with _writing_failures(target, "writing it"):
        return target.ask("writing it", request) or whole_file(target) == data


def _create(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            sync_names(os.path.dirname(path) or ".")
        except OSError:
            os.remove(path)  # the caller is told that it was not created
            raise


def whole_file(place: Location) -> bytes | None:
    """Read a file in one request, so that it is consistent; None if it does not exist.

    Raises StorageError; BadData for a pipe or a device.
    """
    try:
        return place.read_bytes() if place.is_local else place.ask("reading it", lambda: bytes(place.fs.cat_file(place.path)))
    except StorageNotFound:
        return None
