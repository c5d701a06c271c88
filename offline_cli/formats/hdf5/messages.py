"""Messages between the process that reads an HDF5 file and its parent: lengths, JSON, and raw bytes of arrays.

And the bounds that hold for a group, whether it is read there or without libhdf5 (`plain_file.py`).
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

__all__ = [
    "DEEPEST",
    "FRAMES",
    "LOADED",
    "MESSAGE",
    "OBJECTS",
    "SECONDS",
    "TEXT",
    "filled",
    "plain_text",
    "receive",
    "send",
]

LENGTH: Final = struct.Struct("<Q")
MESSAGE: Final = 64 << 20  # bytes of a request or answer, without arrays
SECONDS: Final = 60  # for one request
TEXT: Final = "text"  # in place of a dtype
FRAMES: Final = "frames"  # the same, of bytes of varying length
DEEPEST: Final = 32  # groups within groups
OBJECTS: Final = 100_000  # below one group
LOADED: Final = 8 << 20  # bytes of values that are given with a group, and of one answer before its last object


def plain_text(raw: Any) -> str:
    """A name or text of a file, whatever its bytes are."""
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


def send(to: socket.socket, data: bytes) -> None:
    """Send one message."""
    to.sendall(LENGTH.pack(len(data)))
    to.sendall(data)


def receive(source: socket.socket, most: int = MESSAGE) -> bytes:
    """The next message. Raises EOFError where the other end is closed, ValueError for one of more than `most` bytes."""
    (length,) = LENGTH.unpack(filled(source, bytearray(LENGTH.size)))
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    return bytes(filled(source, bytearray(length)))


def filled(source: socket.socket, buffer: Any) -> Any:
    """`buffer` with the next bytes."""
    view, done = memoryview(buffer).cast("B"), 0
    while done < len(view):
        got = source.recv_into(view[done:], len(view) - done, socket.MSG_WAITALL)
        if not got:
            raise EOFError
        done += got
    return buffer
