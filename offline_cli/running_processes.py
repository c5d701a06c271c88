"""Which processes of this machine run, told apart from later ones of the same number."""

from __future__ import annotations

import os


def _stat(pid: int) -> list[str]:
    """Linux's status of a process, from its state on; empty elsewhere."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def began(pid: int) -> str:
    """When a process began, as Linux counts it: ids are used again; "" elsewhere."""
    return "".join(_stat(pid)[19:20])


def runs(pid: int, since: str) -> bool:
    """Whether the process that began then has not ended; a zombie has."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # somebody else's, so there is one
    except (OSError, OverflowError):
        return False
    fields = _stat(pid)
    return pid > 0 and (not fields or (fields[0] not in ("Z", "X") and fields[19] == since))
