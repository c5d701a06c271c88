"""The engine `ray`: remote tasks on a Ray cluster, with the same bounded window as `processes`.

Ray repeats a task whose worker or node dies. If the cluster dies, continue the command with --resume.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from socket import create_connection
from types import TracebackType
from typing import Any, Final, TypeVar

from offline_cli.engines.engine import Engine, called, packed
from offline_cli.errors import ClusterLost, MissingPackage, UsageError
from offline_cli.import_path import path_for_workers
from offline_cli.stop_signals import check

RETRIES: Final = 5  # of a task, by Ray
CONNECTING: Final = 20.0  # seconds to connect to a cluster's head; Ray itself tries for minutes
LOOK: Final = 0.5  # seconds between two checks for a stop signal
T = TypeVar("T")


class RayEngine(Engine):
    """Runs calls as Ray tasks."""

    is_local = False

    def __init__(self, address: str | None, workers: int) -> None:
        """`address`: a cluster's, as Ray takes it; None: start one. Raises UsageError, and MissingPackage without Ray."""
        if address is not None and address.startswith("ray://"):
            fix = "run this command on a node of the cluster, with --engine-address auto or HOST:6379"
            raise UsageError("Ray Client addresses (ray://) are not supported", where=f"--engine-address {address}", fix=fix)
        if importlib.util.find_spec("ray") is None:
            raise MissingPackage("the package ray is missing", where="--engine ray", fix="pip install 'offline-cli[ray]'")
        self._address, self.workers = address, workers
        self._where = "--engine ray" if address is None else f"--engine-address {address}"
        self._ray: Any = None
        self._is_ours = False  # whether this engine has connected, rather than the calling program

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Any:
        from offline_cli import __version__

        if self._ray is None:
            self._connect()
        task = self._ray.remote(_task).options(num_cpus=1, max_retries=RETRIES)
        return task.remote(packed(function, item), __version__, path_for_workers())

    def _ended(self, call: Any) -> bytes:
        """Raises ClusterLost, MissingPackage, and StopRequested after a signal."""
        try:
            check()
            while not self._ray.wait([call], timeout=LOOK)[0]:
                check()
            return bytes(self._ray.get(call))
        except self._ray.exceptions.RayTaskError as error:  # the task failed to start: `called` raises nothing
            reason = str(error).strip().splitlines()[-1]
            fix = "install the same packages on the workers, including offline-cli"
            raise MissingPackage(f"a worker cannot start: {reason}", where="a worker", fix=fix) from error
        except self._ray.exceptions.RayError as error:
            what, fix = f"a Ray task was lost ({type(error).__name__})", "check that the cluster is up (ray status)"
            raise ClusterLost(what, where=self._where, fix=fix) from error

    def _connect(self) -> None:
        """Connect, or start a cluster. Raises ClusterLost if no cluster answers."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning
        self._ray = importlib.import_module("ray")  # by name: its type hints differ between versions
        place: dict[str, Any] = {"address": self._address or "local", "log_to_driver": False, "logging_level": "error"}
        place |= {} if self._address else {"num_cpus": self.workers, "include_dashboard": False}
        before = signal.getsignal(signal.SIGTERM)
        try:
            if self._address is not None and ":" in self._address:
                host, _, port = self._address.rpartition(":")
                create_connection((host.strip("[]"), int(port)), CONNECTING).close()
            if not self._ray.is_initialized():
                self._ray.init(**place)
                self._is_ours = True
        except Exception as error:
            fix = "check the address (ray status), the token (RAY_AUTH_TOKEN), and that Ray and Python have the same versions"
            raise ClusterLost(f"no Ray cluster answers ({error})", where=self._where, fix=fix) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # in place of Ray's

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_ours:
            self._ray.shutdown()  # also ends the tasks, and a cluster that we started
            self._is_ours, self._ray = False, None


def _task(work: bytes, version: str, path: list[str]) -> bytes:
    """Run `called` on a worker, with the command's sys.path entries that exist there."""
    from offline_cli import __version__

    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    if __version__ != version:
        what, fix = f"offline-cli is {__version__} on a worker, and here {version}", f"pip install offline-cli=={version} there"
        return pickle.dumps(([], MissingPackage(what, where="a worker", fix=fix)))
    return called(work)
