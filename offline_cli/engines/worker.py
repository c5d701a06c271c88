"""What a worker process does: it gets a function, then items, sends what the function makes of each, ends with its parent."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from offline_cli.engines.messages import receive, send

__all__ = ["main"]


def main() -> None:
    """Answer through the socket whose number is the last argument; nobody else holds its other end."""
    try:
        with socket.socket(fileno=int(sys.argv[-1])) as parent:
            _answer(parent)
    except (EOFError, OSError):  # the parent has all it wants, or is gone
        os._exit(0)  # at once: there is nothing to flush, and nobody to tell


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
