"""Uploads to S3 that were never completed, as a killed process leaves them.

Nobody sees one, and S3 bills for it until somebody aborts it, or a lifecycle rule of the bucket does (docs/storage.md).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from offline_cli.errors import StorageNotFound
from offline_cli.storage.locations import Location

__all__ = ["Upload", "open_uploads"]


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload that is not complete."""

    target: Location  # the name that it would get
    names: dict[str, str]  # by which S3 knows it
    begun: str  # ISO time, from the store

    def abort(self) -> None:
        """Drop what was uploaded; one that is gone already is no error. Raises StorageError."""
        with contextlib.suppress(StorageNotFound):
            self.target.ask("aborting an upload", partial(self.target.fs.call_s3, "abort_multipart_upload", **self.names))

    def __str__(self) -> str:
        return f"{self.target.url} (upload begun at {self.begun})"


def open_uploads(folder: Location) -> list[Upload]:
    """Those of files in `folder`; none where the client cannot list any. Raises StorageError."""
    if not hasattr(folder.fs, "call_s3"):
        return []
    bucket, key, _ = folder.fs.split_path(folder.path)
    found, prefix, page = list[Upload](), f"{key.rstrip('/')}/", dict[str, Any]()
    while True:
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]} if page else {}
        request = partial(folder.fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        page = folder.ask("listing uploads", request)
        for entry in page.get("Uploads", ()):
            names = {"Bucket": bucket, "Key": str(entry["Key"]), "UploadId": str(entry["UploadId"])}
            begun = entry["Initiated"].isoformat(timespec="seconds") if entry.get("Initiated") else "an unknown time"
            found.append(Upload(folder.join(names["Key"].removeprefix(prefix)), names, begun))
        if not page.get("IsTruncated"):
            return found
