"""Where the work on data of one command runs: in this process, in worker processes of this machine, or on a Ray cluster.

An engine calls a function of many items on its workers and gives what they yield in the order of the items, so that nothing
depends on how many workers there are, or which is faster. A function, its items and what it yields can be pickled; calls do
not depend on each other, and a call that is made again yields the same. A worker that dies costs the call that it was making:
it is made again elsewhere, ATTEMPTS times in all, and what was taken of it is not given twice.

Nothing is started before the first call. An engine is closed with `with`, on every path; its workers end with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from offline_cli.engines.ray_engine import RayEngine
from offline_cli.engines.worker_processes import ProcessEngine
from offline_cli.errors import UsageError
from offline_cli.scopes import Reading

__all__ = ["LOCAL", "PROCESSES", "RAY", "Engine", "LocalEngine", "open_engine"]

LOCAL: Final = "local"
PROCESSES: Final = "processes"
RAY: Final = "ray"

T = TypeVar("T")
R = TypeVar("R")


class Engine(AbstractContextManager["Engine"], Protocol):
    """What the packages above know of engines."""

    @property
    def is_local(self) -> bool:
        """Whether this process does all work."""

    def streamed(self, function: Callable[[T], Iterator[R]], items: Iterable[T]) -> Reading[R]:
        """What `function` yields for each item, in the order of the items; raises in its turn what it raises, and stops.

        Items are taken from the iterable some time before their turn. Raises ClusterLost where workers die again and again, or
        none is left; MissingPackage where a worker lacks what it needs. A caller that does not read to the end closes it.
        """


class LocalEngine:
    """This process alone."""

    is_local: Final = True

    def streamed(self, function: Callable[[T], Iterator[R]], items: Iterable[T]) -> Reading[R]:
        """See `Engine`."""
        return Reading(lambda _: (result for item in items for result in function(item)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


def open_engine(name: str, *, workers: int, address: str | None = None) -> Engine:
    """The engine of that name. Raises UsageError for an address that it does not take."""
    if address is not None and name != RAY:
        fix = f"add --engine {RAY}, or leave out --engine-address"
        raise UsageError(f"--engine {name} has no address", where="--engine-address", fix=fix)
    if name == RAY:
        return RayEngine(address, workers)
    if name == PROCESSES and os.name == "posix" and sys.executable:  # elsewhere no process can be given a socket
        return ProcessEngine(workers)
    return LocalEngine()
