"""Objects between a process and its own workers: pickles whose arrays are sent as they lie in memory, and are not copied again.

A message is sent and received by one system call each, however long: threads that answer a worker piece by piece would have to
wait for Python's interpreter lock after each piece, milliseconds at a time, while another thread computes.

Both ends are processes that one command started, or the workers of a cluster that its user named; so they are trusted.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from offline_cli.errors import MissingPackage, StorageError

__all__ = [
    "BEAT",
    "BROKEN",
    "CREDIT",
    "DONE",
    "DROP",
    "FAILED",
    "FUNCTION",
    "ITEM",
    "NOTE",
    "READY",
    "RESULT",
    "SETUP",
    "TAKEN",
    "Payload",
    "never",
    "outcomes",
    "packed",
    "received",
    "sent",
    "unpacked",
]

LENGTH: Final = struct.Struct("<Q")
ALIGNED: Final = 64  # bytes: where arrays begin, seen from the start of the payload
RESULT: Final = 0  # of `outcomes`: a value that the function gave
FAILED: Final = 1  # the exception that ended it
DONE: Final = 2  # it has given all
CREDIT: Final = 16  # results of a stream that are sent ahead of what is taken of it
READY, BEAT, NOTE, BROKEN = range(3, 7)  # what the bridge to a cluster says besides
SETUP, FUNCTION, ITEM, TAKEN, DROP = range(7, 12)  # and what it is told

Payload = bytearray | bytes | memoryview
T = TypeVar("T")
R = TypeVar("R")


def packed(message: object) -> bytearray:
    """One object as bytes: how many parts there are, their lengths, the pickle, and the buffers of its arrays."""
    buffers: list[memoryview] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=lambda one: buffers.append(one.raw()))
    parts = [data, *buffers]
    head = LENGTH.pack(len(parts)) + b"".join(LENGTH.pack(len(part)) for part in parts)
    ends = _places(len(head), [len(part) for part in parts])
    found = bytearray(ends[-1][1])
    found[: len(head)] = head
    for part, (first, stop) in zip(parts, ends, strict=True):
        found[first:stop] = part
    return found


def unpacked(payload: Payload) -> Any:
    """The object in `payload`, whose arrays are views of it."""
    view = memoryview(payload)
    (count,) = LENGTH.unpack_from(view)
    lengths = [LENGTH.unpack_from(view, LENGTH.size * (1 + number))[0] for number in range(count)]
    parts = [view[first:stop] for first, stop in _places(LENGTH.size * (1 + count), lengths)]
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  see above


def _places(head: int, lengths: list[int]) -> list[tuple[int, int]]:
    """Where each part begins and ends."""
    places, end = [], head
    for length in lengths:
        first = -(-end // ALIGNED) * ALIGNED
        end = first + length
        places.append((first, end))
    return places


def outcomes(work: Callable[[], tuple[Callable[[T], Iterator[R]], T]], place: str) -> Iterator[tuple[int, bytearray]]:
    """What a function yields for an item, packed, each with its kind; `work` gives both, and `place` says which worker this is.

    An exception is the last outcome, and not raised.
    """
    try:
        try:
            function, item = work()
        except ModuleNotFoundError as error:
            package = (error.name or "what it needs").partition(".")[0]
            fix = f"install it there: pip install {package}"
            raise MissingPackage(f"a worker has no module {error.name!r}", where=place, fix=fix) from error
        for result in function(item):
            yield RESULT, packed(result)
    except Exception as error:  # noqa: BLE001  raised again where the results are wanted
        if isinstance(error, MissingPackage | StorageError) and place not in error.where:
            error.where = f"{error.where} ({place})"
        yield FAILED, _as_sent(error)
    else:
        yield DONE, bytearray()


def _as_sent(error: Exception) -> bytearray:
    """The exception, packed; as text where it cannot travel."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:  # noqa: BLE001  a class of a user's may raise anything
        return packed(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def never() -> bool:
    """Whether to stop, where nothing stops."""
    return False


# ---- through a socket ----


def sent(to: socket.socket, kind: int, number: int, payload: Payload = b"") -> None:
    """Send a payload of a kind, of the task or stream of that number. Raises OSError where the other end is closed."""
    to.sendall(struct.pack("<QQQ", len(payload), kind, number))
    if payload:
        to.sendall(payload)


def received(source: socket.socket, waited: Callable[[], None] = lambda: None) -> tuple[int, int, bytearray]:
    """Kind, number and payload of the next message. Raises EOFError where the other end is closed.

    `waited` is called whenever the socket's time limit passes without a message; it may raise.
    """
    length, kind, number = struct.unpack("<QQQ", _bytes(source, 24, waited))
    return kind, number, _bytes(source, length, lambda: None)


def _bytes(source: socket.socket, count: int, waited: Callable[[], None]) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        try:
            got = source.recv_into(view[done:], count - done, socket.MSG_WAITALL)
        except TimeoutError:
            waited()
            continue
        if not got:
            raise EOFError
        done += got
    return data
