"""What clients of storages ask of their servers, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


class Requests:
    """What a client asks of its server: (method, key) of S3, ranges of all."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        self.calls: list[tuple[str, str]] = []

    def clear(self) -> None:
        self.ranges.clear()
        self.calls.clear()

    @property
    def gets(self) -> Counter[str]:
        """How often each file was read, by its name."""
        return Counter(path.rpartition("/")[2] for path, _, _ in self.ranges)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Requests:
    """Counts what the clients of all providers read by ranges, and each call of S3's."""
    import fsspec

    found = Requests()
    for scheme in ("s3", "gs", "az"):
        kind = fsspec.get_filesystem_class(scheme)
        original = kind._cat_file

        async def noted(
            self: Any, path: str, start: int | None = None, end: int | None = None, original: Any = original, **kwargs: Any
        ) -> bytes:
            found.ranges.append((path, start or 0, end or 0))
            data: bytes = await original(self, path, start=start, end=end, **kwargs)
            return data

        monkeypatch.setattr(kind, "_cat_file", noted)
    kind = fsspec.get_filesystem_class("s3")
    call = kind._call_s3

    async def counted(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        found.calls.append((method, str(kwargs.get("Key", ""))))
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(kind, "_call_s3", counted)
    return found
