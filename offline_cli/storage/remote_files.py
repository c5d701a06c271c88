"""A remote file for reading: each read is one bounded request whose failure is a StorageError."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from offline_cli.errors import StorageError

__all__ = ["BLOCK", "remote_file"]

BLOCK: Final = 8 << 20  # bytes of a request, and as many that are read ahead
BUFFER: Final = 1 << 20

Ask = Callable[[str, Callable[[], bytes]], bytes]  # makes a bounded request; raises StorageError


def remote_file(raw: Any, size: int, url: str, ask: Ask) -> BinaryIO:
    """`raw`, a client's open file of `size` bytes at `url`, whose reads are requests made by `ask`."""
    return io.BufferedReader(_RemoteFile(raw, size, url, ask), BUFFER)


class _RemoteFile(io.RawIOBase):
    def __init__(self, raw: Any, size: int, url: str, ask: Ask) -> None:
        super().__init__()
        self._raw, self._size, self._url, self._ask = raw, size, url, ask
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"a position before the file: {position}")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        data = self._part(len(into))
        into[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._part(BLOCK), b""))

    def _part(self, wanted: int) -> bytes:
        start, wanted = self._position, min(wanted, BLOCK, self._size - self._position)
        if wanted <= 0:
            return b""

        def request() -> bytes:
            self._raw.seek(start)
            return bytes(self._raw.read(wanted))

        data = self._ask("reading it", request)
        if len(data) != wanted:
            what = f"the file changed while it was read: {len(data)} bytes came where {wanted} were asked for"
            raise StorageError(what, where=self._url, fix="run the command again once nobody writes there")
        self._position += wanted
        return data

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()
