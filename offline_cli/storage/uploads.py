"""Uploads that were begun and never completed: nobody sees them, and S3 bills for them; refuses to find those of other stores.

A killed process cannot abort its upload. Google's storage and Azure forget such parts after a week.
S3 keeps them until somebody aborts them, or a lifecycle rule of the bucket does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from offline_cli.storage.layout import DATA
from offline_cli.storage.locations import Location

__all__ = ["Upload", "open_uploads"]


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload that is not complete."""

    target: Location  # the name that it would get
    bucket: str
    key: str
    id: str
    begun: str  # ISO time, as the store says it

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
    """Those of files in the `data/` of dataset `folder`; none where the client cannot list any. Raises StorageError."""
    if not hasattr(folder.fs, "call_s3"):
        return []
    data = folder.join(DATA)
    bucket, key, _ = data.fs.split_path(data.path)
    return [_upload(data, bucket, key, entry) for entry in _entries(data, bucket, f"{key.rstrip('/')}/")]


def _entries(data: Location, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    after: dict[str, str] = {}
    while True:
        request = partial(data.fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        page: dict[str, Any] = data.ask("listing uploads", request)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _upload(data: Location, bucket: str, key: str, entry: dict[str, Any]) -> Upload:
    begun = entry.get("Initiated")
    target = data.join(str(entry["Key"]).removeprefix(key.rstrip("/") + "/"))
    said = begun.isoformat(timespec="seconds") if begun is not None else "an unknown time"
    return Upload(target, bucket, str(entry["Key"]), str(entry["UploadId"]), said)
