"""A bucket in the memory of this process that behaves as a remote one: ranges, ETags, answers that take their time; counted."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

from fsspec import AbstractFileSystem


class FakeBucket(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files by path. `asked`: what was asked of it; `seconds`: what an answer takes; `fails`: raises, or not, before one."""

    protocol = "s3"
    cachable = False

    @classmethod
    def holding(cls, files: dict[str, bytes], *, tags: bool = True, endpoint: str = "") -> FakeBucket:
        """A bucket with `files`, which are no argument: fsspec would make a hash of them."""
        bucket = cls(tags, endpoint)
        bucket.files |= files
        return bucket

    def __init__(self, tags: bool, endpoint: str) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self._known: dict[str, tuple[bytes, str]] = {}
        self.tags = tags
        self.endpoint_url = endpoint
        self.seconds = 0.0
        self.fails: Callable[[str, int, int], None] = lambda path, start, end: None
        self.gets: list[tuple[str, int, int]] = []
        self.infos: list[str] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        with self._lock:
            self.infos.append(path)
        if path in self.files:
            data = self.files[path]
            tag = {"ETag": self._tag(path, data)} if self.tags else {}
            return {"name": path, "type": "file", "size": len(data), **tag}
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"name": path, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def _tag(self, path: str, data: bytes) -> str:
        known, tag = self._known.get(path, (None, ""))
        if known is not data:
            tag = hashlib.md5(data).hexdigest()
            self._known[path] = data, tag
        return tag

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        names = sorted({f"{path}/{n[len(path) + 1 :].split('/')[0]}" for n in self.files if n.startswith(f"{path}/")})
        return [self.info(name) for name in names] if detail else names

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        data = self.files[path]
        start, end = start or 0, len(data) if end is None else end
        with self._lock:
            self.gets.append((path, start, end))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.seconds)
            self.fails(path, start, end)
            return self.files[path][start:end]
        finally:
            with self._lock:
                self.at_once -= 1
