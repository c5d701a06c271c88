"""The engine `ray`: workers of a Ray cluster, behind a process of its own.

That process, the bridge (`ray_bridge.py`), alone imports Ray, connects to the cluster at the address, or starts one on this
machine where there is no address, and ends with the socket to this process. Ray ends the process that uses it when the cluster
is lost, takes its signals and prints to its outputs; here a lost cluster is an error like any other, and what was complete is
kept.

Between the two, payloads travel as they are: arguments and results are unpacked at their ends alone. A stream gets CREDIT
results ahead of what is taken of it, so that streams that are read in turn do not wait for each other.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import platform
import socket
import subprocess
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

from offline_cli.engines.messages import (
    BEAT,
    BROKEN,
    DONE,
    DROP,
    FAILED,
    FUNCTION,
    ITEM,
    NOTE,
    READY,
    RESULT,
    SETUP,
    TAKEN,
    Payload,
    never,
    packed,
    received,
    sent,
    unpacked,
)
from offline_cli.engines.processes import interpreter
from offline_cli.errors import ClusterLost, MissingPackage, OfflineCliError, UsageError
from offline_cli.scopes import Reading, Scope

__all__ = ["RayEngine"]

STARTING: Final = 180.0  # seconds for a cluster to start, or to answer
SILENCE: Final = 60.0  # seconds without a sign of life of the cluster
LOOK: Final = 1.0  # seconds between two looks at the time
ENDING: Final = 20.0  # seconds for the bridge to end its work and the cluster that it started
TAIL: Final = 400  # letters of what the bridge has printed
RESUME: Final = "run the same command again, with --resume where it has written shards: complete ones are kept"

T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


class RayEngine:
    """See `Engine`."""

    is_local: Final = False

    def __init__(self, address: str | None, workers: int, *, gpus: float = 0, together: bool = False) -> None:
        """`address`: of a cluster, as Ray takes it; None: one is started. `gpus`: of each call. `together`: `workers` calls
        wait for each other. Raises UsageError, and MissingPackage without Ray.
        """
        if address is not None and address.startswith("ray://"):
            fix = "run this command on a node of the cluster, with --engine-address auto or HOST:6379"
            raise UsageError("addresses of Ray Client cannot be used", where=f"--engine-address {address}", fix=fix)
        if importlib.util.find_spec("ray") is None:
            raise MissingPackage("the package ray is missing", where="--engine ray", fix="pip install 'offline-cli[ray]'")
        self._address, self._workers = address, workers
        self._each = {"workers": workers, "gpus": gpus, "together": together}
        self._scope = Scope()
        self._bridge: _Bridge | None = None

    def streamed(
        self, function: Callable[[T], Iterator[R]], items: Iterable[T], *, stopped: Callable[[], bool] = never
    ) -> Reading[R]:
        """See `Engine`."""
        return Reading(lambda scope: self._streamed(function, items, stopped, scope))

    def _streamed(
        self, function: Callable[[T], Iterator[R]], items: Iterable[T], stopped: Callable[[], bool], scope: Scope
    ) -> Iterator[R]:
        with scope.part() as held:
            stream = held.enter(_Stream(self._begun(), packed(function)))
            source, waiting, is_ended = iter(items), 0, False
            while True:
                while not is_ended and waiting <= 2 * self._workers:
                    try:
                        stream.send(ITEM, packed(next(source)))
                        waiting += 1
                    except StopIteration:
                        is_ended = True
                if not waiting or stopped():
                    return
                outcome = stream.receive(stopped)
                if outcome is None:
                    return
                kind, payload = outcome
                if kind == FAILED:
                    raise unpacked(payload)
                if kind == DONE:
                    waiting -= 1
                else:
                    yield unpacked(payload)

    def _begun(self) -> _Bridge:
        if self._bridge is None:
            self._bridge = self._scope.enter(_Bridge(self._address, self._each))
        return self._bridge

    def __enter__(self) -> Self:
        if self._address is not None:
            self._begun()  # it connects while the caller prepares the work; a cluster is not started before there is some
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bridge = None
        self._scope.__exit__(kind, error, trace)


class _Stream:
    """One call of `streamed`; at its end the cluster forgets it."""

    def __init__(self, bridge: _Bridge, function: Payload) -> None:
        self._bridge = bridge
        self._number = bridge.next_number()
        self.send(FUNCTION, function)

    def send(self, kind: int, payload: Payload = b"") -> None:
        """Raises ClusterLost."""
        self._bridge.send(kind, self._number, payload)

    def receive(self, stopped: Callable[[], bool]) -> tuple[int, Payload] | None:
        """The next outcome; None: stopped. Raises ClusterLost, and what the bridge reports."""
        try:
            kind, payload = self._bridge.receive(self._number, stopped)
        except _Stopped:
            return None
        if kind == RESULT:
            self.send(TAKEN)
        return kind, payload

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OfflineCliError):
            self.send(DROP)
        self._bridge.forget(self._number)


class _Stopped(Exception):
    """The caller wants no more."""


class _Bridge:
    """The process that uses Ray; it ends with the socket to it, and the cluster that it started with it."""

    def __init__(self, address: str | None, each: Mapping[str, Any]) -> None:
        self._address = address
        self._streams = 0
        self._inbox: dict[int, deque[tuple[int, Payload]]] = defaultdict(deque)
        self._heard = time.monotonic()
        self._patience = STARTING
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the bridge
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(LOOK)
        with theirs:
            self._process: subprocess.Popen[bytes] = interpreter(
                "offline_cli.engines.ray_bridge:main", theirs, output=self._output
            )
        versions = {"python": platform.python_version_tuple()[:2], "offline-cli": _version()}
        setup = {"address": address, "versions": versions, **each}
        self.send(SETUP, 0, json.dumps(setup).encode())

    def __enter__(self) -> Self:
        return self

    def next_number(self) -> int:
        """That of another stream."""
        self._streams += 1
        return self._streams

    def send(self, kind: int, number: int, payload: Payload = b"") -> None:
        """Raises ClusterLost."""
        try:
            self._socket.settimeout(SILENCE)
            sent(self._socket, kind, number, payload)
        except TimeoutError as error:  # it is there, and takes nothing
            raise self._lost(f"nothing was taken within {SILENCE:.0f} s") from error
        except OSError as error:
            raise self._why() from error
        finally:
            self._socket.settimeout(LOOK)

    def _why(self) -> OfflineCliError:
        """Why it has ended: what it has said before it did, and nobody has read yet."""
        with suppress(EOFError, OSError):
            while True:
                kind, _, payload = received(self._socket)
                if kind == BROKEN:
                    broken: OfflineCliError = unpacked(payload)
                    return broken
        return self._lost()

    def receive(self, number: int, stopped: Callable[[], bool]) -> tuple[int, Payload]:
        """The next outcome of a stream. Raises ClusterLost, what the bridge reports, and _Stopped."""

        def look() -> None:
            if stopped():
                raise _Stopped
            if time.monotonic() > self._heard + self._patience:
                raise self._lost(f"no answer within {self._patience:.0f} s")

        while not self._inbox[number]:
            self._heard = time.monotonic()  # not the time that the caller took
            try:
                kind, stream, payload = received(self._socket, look)
            except (EOFError, OSError) as error:
                raise self._lost() from error
            if kind == READY:
                self._patience = SILENCE
            elif kind == NOTE:
                _log.warning("note: %s", payload.decode())
            elif kind == BROKEN:
                broken = unpacked(payload)
                assert isinstance(broken, OfflineCliError), "the bridge reports nothing else"
                raise broken
            elif kind != BEAT:
                self._inbox[stream].append((kind, payload))
        return self._inbox[number].popleft()

    def forget(self, number: int) -> None:
        """Drop what has come for a stream; what comes later takes CREDIT results at most."""
        self._inbox.pop(number, None)

    def _lost(self, how: str = "") -> ClusterLost:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if how else ENDING)
        with suppress(OSError):
            self._output.seek(0)
        printed = [line for line in self._output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        said = how or (printed[-1][:TAIL] if printed else f"exit code {self._process.returncode}")
        what = f"the Ray cluster is lost: {said}"
        return ClusterLost(what, where=f"--engine-address {self._address or '(a cluster of this machine)'}", fix=RESUME)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        if self._patience == STARTING and self._address is not None:
            self._process.kill()  # it would connect first
        try:
            self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it started ends with it
            self._process.wait()
        finally:
            self._output.close()


def _version() -> str:
    """Of this package; imported when it is asked for."""
    from offline_cli import __version__

    return __version__
