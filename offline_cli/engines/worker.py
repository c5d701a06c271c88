"""A worker process and its messages: it gets a function, then items, sends each result, and ends with its parent.

Objects travel between a process and its own workers as pickles through a socket; both ends are ours, so they are trusted. A
message is sent and received by one system call each, however long: threads that answer a worker piece by piece would have to
wait for Python's interpreter lock after each piece, milliseconds at a time, while another thread computes.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
from typing import Any

__all__ = ["main", "receive", "send"]

LENGTH = struct.Struct("<Q")


def send(to: socket.socket, message: object) -> None:
    """Send one object. Raises OSError where the other end is closed."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    to.sendall(LENGTH.pack(len(data)))
    to.sendall(data)


def receive(source: socket.socket) -> Any:
    """The next object. Raises EOFError where the other end is closed."""
    (length,) = LENGTH.unpack(_bytes(source, LENGTH.size))
    return pickle.loads(_bytes(source, length))  # noqa: S301  our own process at the other end


def _bytes(source: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = source.recv_into(view[done:], count - done, socket.MSG_WAITALL)
        if not got:
            raise EOFError
        done += got
    return data


def main() -> None:
    """Answer through the socket whose number is the last argument; nobody else holds its other end."""
    try:
        with socket.socket(fileno=int(sys.argv[-1])) as parent:
            _answer(parent)
    except (EOFError, OSError):  # the parent is done, or gone
        os._exit(0)  # at once: there is nothing to flush, and nobody to notify


def _answer(parent: socket.socket) -> None:
    function = receive(parent)
    outcome: tuple[bool, Any] = True, None  # ready
    while True:
        send(parent, outcome)
        outcome = _outcome(function, receive(parent))


def _outcome(function: Any, item: Any) -> tuple[bool, Any]:
    try:
        return True, function(item)
    except Exception as error:  # noqa: BLE001  raised again by the parent
        return False, error
