"""The process between a command and a Ray cluster; the only one that imports Ray, and no part of the command's own.

It makes one task of each item, and sends what these yield in the order of the items. A task that dies with its worker or its
node is made again, ATTEMPTS times in all; what was sent of it is left out. It ends, and the cluster that it started, when the
command closes its socket, or dies. Ray is imported by name: the types that it declares are those of one of its versions.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from socket import create_connection, socket
from typing import Any, Final

from offline_cli.engines.messages import (
    BEAT,
    BROKEN,
    CREDIT,
    DROP,
    FAILED,
    FUNCTION,
    ITEM,
    NOTE,
    READY,
    RESULT,
    TAKEN,
    Payload,
    packed,
    received,
    sent,
)
from offline_cli.engines.ray_worker import opened, worker_function
from offline_cli.engines.worker_processes import ATTEMPTS, worker_lost
from offline_cli.errors import ClusterLost, MissingPackage, OfflineCliError, UsageError

__all__ = ["main"]

AHEAD: Final = 16  # results of a task that wait in the cluster for their turn
PAUSE: Final = 0.2  # seconds between two looks at whether the stream was dropped
CONNECTING: Final = 20.0  # seconds for a cluster's head to take a connection
BEATING: Final = 2.0  # seconds between two signs of life
QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
EXTRA: Final = "install there what is installed here: pip install offline-cli=={}, with Python {}"


def main() -> None:
    """Serve through the socket whose number is the last argument; nobody else holds its other end."""
    command = socket(fileno=int(sys.argv[-1]))
    try:
        _, _, payload = received(command)
        setup = json.loads(payload)
        bridge = _Bridge(command, setup)
        try:
            _connect(setup["address"], setup["workers"])
            if setup["together"]:
                _check_room(setup["workers"], setup["gpus"])
        except OfflineCliError as error:
            bridge.send(BROKEN, 0, packed(error))
            return
        bridge.send(READY, 0)
        bridge.serve()
    except (EOFError, OSError):
        pass  # the command is done, or gone
    finally:
        if "ray" in sys.modules:
            with suppress(Exception):
                sys.modules["ray"].shutdown()
        os._exit(0)


def _ray() -> Any:
    return importlib.import_module("ray")


def _connect(address: str | None, workers: int) -> None:
    """Connect, or start a cluster. Raises ClusterLost where none answers, MissingPackage for other versions than its own."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    where = "--engine ray" if address is None else f"--engine-address {address}"
    own: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        if address is not None and ":" in address:  # Ray itself tries for minutes
            host, _, port = address.rpartition(":")
            create_connection((host.strip("[]"), int(port)), CONNECTING).close()
        _ray().init(**(own if address is None else {"address": address}), log_to_driver=False, logging_level="error")
    except Exception as error:
        said = " ".join(str(error).split())[:400]
        if "ersion mismatch" in said:
            raise MissingPackage(
                said, where=where, fix="use the cluster's versions of Ray and Python here, or there these"
            ) from error
        fix = "check the address (ray status), and its token: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"
        what = f"no Ray cluster answers ({type(error).__name__}: {said})"
        raise ClusterLost(what, where=where, fix=fix if address else "see the files in /tmp/ray/session_latest/logs") from error


def _check_room(workers: int, gpus: float) -> None:
    """Raise UsageError where the cluster cannot run so many tasks at a time, which would wait for each other without end."""
    found = _ray().cluster_resources()
    for name, each, words in (("CPU", 1.0, "processors"), ("GPU", gpus, "GPUs")):
        have, wanted = float(found.get(name, 0)), workers * each
        if have < wanted:
            what = f"{workers} learners take {wanted:g} {words}, and the cluster has {have:g}"
            raise UsageError(what, where="--num-learners", fix="ask for fewer, or add nodes")


class _Bridge:
    """Takes the command's messages, and has a thread for each stream."""

    def __init__(self, command: socket, setup: Mapping[str, Any]) -> None:
        self._command, self.setup = command, setup
        self.window = setup["workers"] + 1  # tasks at a time: one more, so that a worker that is done has the next
        self._sending = threading.Lock()
        self._streams: dict[int, _Stream] = {}

    def send(self, kind: int, number: int, payload: Payload = b"") -> None:
        """To the command. Raises OSError where that is gone."""
        with self._sending:
            sent(self._command, kind, number, payload)

    def serve(self) -> None:
        """Until the command closes its end, which raises EOFError or OSError."""
        threading.Thread(target=self._beat, name="beats", daemon=True).start()
        while True:
            kind, number, payload = received(self._command)
            stream = self._streams.get(number)
            if kind == FUNCTION:
                self._streams[number] = _Stream(self, number, bytes(payload))
            elif stream is not None and kind == ITEM:
                stream.items.put(bytes(payload))
            elif stream is not None and kind == TAKEN:
                stream.credit.release()
            elif stream is not None and kind == DROP:
                stream.is_dropped = True
                del self._streams[number]

    def _beat(self) -> None:
        """Say every few seconds that the cluster answers, that this node belongs to it, and that one can work."""
        ray = _ray()
        own = ray.get_runtime_context().get_node_id()
        while True:
            with suppress(Exception):
                alive = [node for node in ray.nodes() if node["Alive"]]
                if any(node["NodeID"] == own for node in alive) and any(node["Resources"].get("CPU") for node in alive):
                    self.send(BEAT, 0)
            time.sleep(BEATING)


class _Stream:
    """The tasks of one function."""

    def __init__(self, bridge: _Bridge, number: int, function: bytes) -> None:
        self.bridge, self.number, self.function = bridge, number, function
        self.items: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.credit = threading.Semaphore(CREDIT)
        self.is_dropped = False
        self._running: deque[_Task] = deque()
        self._numbers = count()
        threading.Thread(target=self._run, name=f"stream-{number}", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self.is_dropped:
                self._begin_some()
                if self._running and self._passed_on(self._running[0]):
                    self._running.popleft()
        except OfflineCliError as error:
            self._say(FAILED, packed(error))
        except Exception as error:  # noqa: BLE001  of Ray's: it is not known what it may raise
            self._say(FAILED, packed(ClusterLost(f"Ray: {error}", where="--engine ray", fix="--engine processes, or local")))
        for task in self._running:
            task.cancel()

    def _say(self, kind: int, payload: Payload) -> None:
        with suppress(OSError):  # the command is gone
            self.bridge.send(kind, self.number, payload)

    def _begin_some(self) -> None:
        while len(self._running) < self.bridge.window:
            try:
                item = self.items.get(block=not self._running, timeout=PAUSE)
            except queue.Empty:
                return
            self._running.append(_Task(self, next(self._numbers), item))

    def _passed_on(self, task: _Task) -> bool:
        """Pass on the next outcome of a task, if there is one by now; whether it was the last."""
        outcome = task.outcome()
        if outcome is None:
            return False
        kind, payload = outcome
        while kind == RESULT and not self.credit.acquire(timeout=PAUSE):
            if self.is_dropped:
                return False
        self._say(kind, payload)
        if kind == FAILED:
            self.is_dropped = True
        return kind != RESULT


class _Task:
    """One item's task, and those after it where it dies."""

    def __init__(self, stream: _Stream, number: int, item: bytes) -> None:
        self._stream, self.number, self._item = stream, number, item
        self._passed = 0  # outcomes
        self._lost: list[str] = []
        self._begin()

    def _begin(self) -> None:
        ray = _ray()
        options: dict[str, Any] = {
            "num_returns": "streaming",
            "max_retries": 0,
            "_generator_backpressure_num_objects": AHEAD,
            "num_cpus": 1,
        }
        if gpus := self._stream.bridge.setup["gpus"]:
            options["num_gpus"] = gpus
        remote = ray.remote(worker_function()).options(**options)
        self._outcomes = remote.remote(self._stream.function, self._item, self._passed, [*sys.path])
        self._worker: Mapping[str, Any] | None = None  # which it is, once it has said so

    def cancel(self) -> None:
        """End it, with its worker."""
        with suppress(Exception):
            _ray().cancel(self._outcomes, force=True)

    def outcome(self) -> tuple[int, Payload] | None:
        """The next one; None: not yet. Raises ClusterLost where too many workers died of it, MissingPackage."""
        ray = _ray()
        ready, _ = ray.wait([self._outcomes], timeout=PAUSE)
        if not ready:
            return None
        try:
            found = ray.get(next(self._outcomes))
        except StopIteration:
            self._again("a worker ended without a word")
            return None
        except ray.exceptions.RayTaskError as error:  # before the function began: it raises nothing itself
            raise MissingPackage(f"a worker cannot begin: {_last_line(error)}", where=self._place, fix=self._fix) from error
        except ray.exceptions.RayError as error:
            self._again(f"{self._place} is lost ({type(error).__name__})")
            return None
        if self._worker is None:
            self._worker = json.loads(bytes(found))
            self._check(self._worker)
            return None
        self._passed += 1
        self._lost.clear()
        return opened(found)

    @property
    def _place(self) -> str:
        return "a worker" if self._worker is None else f"worker {self._worker['pid']} on node {self._worker['node']}"

    @property
    def _fix(self) -> str:
        wanted = self._stream.bridge.setup["versions"]
        return EXTRA.format(wanted["offline-cli"], ".".join(wanted["python"]))

    def _check(self, worker: Mapping[str, Any]) -> None:
        """Raise MissingPackage where the worker lacks a package, or has another version than the command."""
        wanted, found = self._stream.bridge.setup["versions"], worker["versions"]
        if "missing" in worker:
            raise MissingPackage(f"a worker cannot import offline_cli: {worker['missing']}", where=self._place, fix=self._fix)
        wrong = [
            f"{name} is {_text(found[name])}, and here {_text(wanted[name])}" for name in wanted if found[name] != wanted[name]
        ]
        if wrong:
            raise MissingPackage(f"other versions on a worker: {'; '.join(wrong)}", where=self._place, fix=self._fix)

    def _again(self, how: str) -> None:
        self._lost.append(how)
        if len(self._lost) == ATTEMPTS:
            raise worker_lost(self.number, self._lost)
        note = f"{how}; part {self.number} is done again ({len(self._lost) + 1} of {ATTEMPTS})"
        self._stream._say(NOTE, note.encode())
        self._begin()


def _text(version: Any) -> str:
    return version if isinstance(version, str) else ".".join(version)


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
