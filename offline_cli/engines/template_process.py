"""A template process: a fresh interpreter that has loaded a module, and forks a child of itself for each task, in milliseconds.

For tasks on bytes that may crash C code: each has a process of its own, which can take limits upon itself and be killed. The
template is no process of `multiprocessing`, whose fork server runs the caller's main script once more. It is started when the
first child is asked for, kept, and ends with this process. A child talks to its parent through a socket of its own; what ended
it is known from the template, which alone waits for it, so that its number is not given to another process before.

Only POSIX systems have templates.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self

from offline_cli.errors import MissingPackage
from offline_cli.import_path import path_for_workers, safe_flags

__all__ = ["Child", "main"]

ORDER: Final = struct.Struct("<cq")  # what: b"F" fork, b"E" end; number of a process
ANSWER: Final = struct.Struct("<q")
GRACE: Final = 5.0  # seconds for an interpreter to end by itself
FIX: Final = "convert them on Linux or macOS"

_lock = threading.Lock()
_templates: dict[tuple[int, str], _Template] = {}


class Child:
    """A process that runs the function `serve(socket, file descriptor)` of `module`; a context manager, whose end kills it."""

    def __init__(self, module: str, handle: int, *, seconds: float) -> None:
        """`handle`: an open file for the child. `seconds`: that an answer may take. Nothing is started before `with`."""
        self._module, self._handle, self._seconds = module, handle, seconds
        self._template: _Template | None = None
        self.pid = 0
        self.code: int | None = None  # exit code, minus the number of a signal, once it has ended
        self.socket: socket.socket

    def __enter__(self) -> Self:
        """Raises MissingPackage where the system has no `fork`, OSError where it allows no more processes."""
        if not hasattr(os, "fork"):
            what = "this system cannot fork processes, in which such files are read"
            raise MissingPackage(what, where=sys.platform, fix=FIX)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(self._seconds)
        try:
            with theirs:
                self._template, self.pid = _forked(self._module, [theirs.fileno(), self._handle])
        except BaseException:
            self.socket.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> int | None:
        """Kill it if it still runs; its exit code, None where that is unknown."""
        template, self._template = self._template, None
        if template is not None:
            self.socket.close()
            with _lock, contextlib.suppress(OSError, EOFError):
                self.code = template.ask(b"E", self.pid, [])
        return self.code


def _forked(module: str, handles: list[int]) -> tuple[_Template, int]:
    """A child of the template, which is started again once if it has gone."""
    with _lock:
        for is_last in (False, True):
            key = os.getpid(), module  # a forked process has templates of its own
            if key not in _templates:
                _templates[key] = _Template(module)
            try:
                pid = _templates[key].ask(b"F", 0, handles)
            except (OSError, EOFError):
                _templates.pop(key).close()
                if is_last:
                    raise
            else:
                if pid < 0:
                    raise OSError(-pid, os.strerror(-pid))
                return _templates[key], pid
    raise AssertionError


class _Template:
    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter, and nothing that comes from outside
                [*_command(), module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C goes to the whole group; the parent decides when it ends
            )

    def ask(self, what: bytes, pid: int, handles: list[int]) -> int:
        """Raises OSError, EOFError where it has gone."""
        socket.send_fds(self._socket, [ORDER.pack(what, pid)], handles)
        data = self._socket.recv(ANSWER.size, socket.MSG_WAITALL)
        if len(data) < ANSWER.size:
            raise EOFError
        return int(ANSWER.unpack(data)[0])

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)


def _command() -> list[str]:
    start = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
    return [sys.executable, *safe_flags(), "-c", start, json.dumps(path_for_workers())]


# ---- in the template ----


def main() -> None:
    """Fork a child for each order of the parent, whose socket has the number of the last argument."""
    serve: Any = importlib.import_module(sys.argv[-2]).serve
    children: set[int] = set()
    with socket.socket(fileno=int(sys.argv[-1])) as parent:
        while True:
            data, handles, _, _ = socket.recv_fds(parent, ORDER.size, 2)
            if len(data) < ORDER.size:  # the parent has gone
                break
            what, pid = ORDER.unpack(data)
            if what == b"F":
                answer = _fork(serve, parent, handles)
                children.add(answer)
            else:
                children.discard(pid)
                answer = _ended(pid)
            for handle in handles:
                os.close(handle)
            parent.sendall(ANSWER.pack(answer))
    for pid in children:
        _ended(pid)
    os._exit(0)


def _fork(serve: Any, parent: socket.socket, handles: list[int]) -> int:
    """The number of the child, or minus that of an error."""
    try:
        pid = os.fork()
    except OSError as error:
        return -(error.errno or 1)
    if pid == 0:
        code = 1
        try:
            parent.close()
            serve(socket.socket(fileno=handles[0]), handles[1])
            code = 0
        finally:
            os._exit(code)
    return pid


def _ended(pid: int) -> int:
    """Kill a child, unless it has ended; its exit code, or minus the number of the signal that ended it."""
    if pid <= 0:
        return 0
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
