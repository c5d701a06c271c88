"""Uploads to remote storage: invisible until they are committed; and those that were never completed.

* Clients of fsspec: its `autocommit=False`. Blocks of `BLOCK` bytes, each one request under the watchdog, are a multipart
  upload on S3, a resumable one on Google Cloud Storage, staged blocks on Azure. `discard` aborts it on S3; the others drop
  incomplete uploads by themselves, within a week.
* `pyarrow.fs`: bytes wait in a temporary file of this machine and are uploaded by `commit`, because its streams can only be
  closed, which publishes what they hold. What a failed upload left under a name that was free (Azure: an empty file) is
  removed.

A killed process cannot abort its upload, which nobody sees and S3 bills for until somebody aborts it, or a lifecycle rule of
the bucket does (docs/storage.md). `open_uploads` lists those of S3.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fsspec.implementations.arrow import ArrowFSWrapper

from offline_cli.errors import StorageError
from offline_cli.files.locations import Location

__all__ = ["BLOCK", "ArrowStage", "Upload", "UploadStage", "is_arrow", "open_uploads", "takes_whole"]

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
        """Publish the file under its name."""
        self._send()
        self._target.ask(WRITING, self._file.close)
        self._target.ask(WRITING, self._file.commit)

    def discard(self) -> None:
        """Abort the upload."""
        try:
            if not self._target.provider.forgets_uploads:
                self._target.ask("aborting the upload", self._file.discard)
        finally:
            with contextlib.suppress(AttributeError):  # read-only in some filesystems, which need none of this
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
                with contextlib.suppress(StorageError):  # the failure itself is reported
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
        """Drop what waits."""
        self._waiting.close()


def _opened(target: Location, **options: Any) -> Any:
    return target.fs.open(target.path, "wb", **options)


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload that is not complete."""

    target: Location  # the name that it would get
    bucket: str
    key: str
    id: str
    begun: str  # ISO time, from the store

    def abort(self) -> None:
        """Drop what was uploaded; one that is gone already is no error. Raises StorageError."""
        request = partial(self.target.fs.call_s3, "abort_multipart_upload", Bucket=self.bucket, Key=self.key, UploadId=self.id)

        def gone_is_fine() -> None:
            try:
                request()
            except FileNotFoundError:
                return

        self.target.ask("aborting an upload", gone_is_fine)

    def __str__(self) -> str:
        return f"{self.target.url} (upload begun at {self.begun})"


def open_uploads(folder: Location) -> list[Upload]:
    """Those of files in `folder`; none where the client cannot list any. Raises StorageError."""
    if not hasattr(folder.fs, "call_s3"):
        return []
    bucket, key, _ = folder.fs.split_path(folder.path)
    return [_upload(folder, bucket, key, entry) for entry in _entries(folder, bucket, f"{key.rstrip('/')}/")]


def _entries(folder: Location, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    after: dict[str, str] = {}
    while True:
        request = partial(folder.fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        page: dict[str, Any] = folder.ask("listing uploads", request)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _upload(folder: Location, bucket: str, key: str, entry: dict[str, Any]) -> Upload:
    begun = entry.get("Initiated")
    target = folder.join(str(entry["Key"]).removeprefix(key.rstrip("/") + "/"))
    said = begun.isoformat(timespec="seconds") if begun is not None else "an unknown time"
    return Upload(target, bucket, str(entry["Key"]), str(entry["UploadId"]), said)
