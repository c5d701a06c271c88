"""Uploads to S3 that were never completed, as a killed process leaves them.

Nobody sees one, and S3 bills for it until somebody aborts it, or a lifecycle rule of the bucket does (docs/storage.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from offline_cli.storage.locations import Location

__all__ = ["Upload", "open_uploads"]


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

        def request() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.target.fs.call_s3("abort_multipart_upload", Bucket=self.bucket, Key=self.key, UploadId=self.id)

        self.target.ask("aborting an upload", request)

    def __str__(self) -> str:
        return f"{self.target.url} (upload begun at {self.begun})"


def open_uploads(folder: Location) -> list[Upload]:
    """Those of files in `folder`; none where the client cannot list any. Raises StorageError."""
    if not hasattr(folder.fs, "call_s3"):
        return []
    bucket, key, _ = folder.fs.split_path(folder.path)
    prefix = f"{key.rstrip('/')}/"
    return [
        Upload(
            folder.join(str(entry["Key"]).removeprefix(prefix)),
            bucket,
            str(entry["Key"]),
            str(entry["UploadId"]),
            entry["Initiated"].isoformat(timespec="seconds") if entry.get("Initiated") else "an unknown time",
        )
        for entry in _entries(folder, bucket, prefix)
    ]


def _entries(folder: Location, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    after: dict[str, str] = {}
    while True:
        request = partial(folder.fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        page: dict[str, Any] = folder.ask("listing uploads", request)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
