"""Which process wrote something, and whether it still runs; refuses to say so of processes of other machines.

A process is known by its id and by when it began: ids are used again. What machine it runs on is its host's name and, on
Linux, the boot and the namespace of process ids: two containers of one name see other processes under one id.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one machine."""

    host: str
    machine: str  # boot and namespace; "" where the system does not say
    pid: int
    started: str  # in the units of the system; "" where it does not say

    @staticmethod
    def this() -> Process:
        """The process that asks."""
        return Process(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()))

    @property
    def is_this(self) -> bool:
        """Whether it is the process that asks."""
        return self == Process.this()

    def runs(self) -> bool | None:
        """Whether it still runs, which nothing is known of (None) where it is a process of another machine."""
        here = Process.this()
        if self.host != here.host or ("" not in (self.machine, here.machine) and self.machine != here.machine):
            return None
        if not _is_alive(self.pid):
            return False
        now = _started(self.pid)
        return "" in (self.started, now) or self.started == now  # else a later process with the same id


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    if pid <= 0 or _is_zombie(pid):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, so alive
        return True
    return True


def _is_zombie(pid: int) -> bool:
    """Whether process `pid` has ended, and only waits for its parent to notice."""
    return _stat(pid)[:1] in (["Z"], ["X"])


def _started(pid: int) -> str:
    """When process `pid` began, as Linux counts it; "" elsewhere."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """What Linux says of process `pid`, from its state on; nothing elsewhere."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the second field, the name in brackets, may hold anything
