"""Where the work on data of one command runs: in this process, in worker processes of this machine, or on a Ray cluster.

An engine calls a function of many items on its workers and gives what they yield in the order of the items, so that nothing
depends on how many workers there are, or which is faster. A function, its items and what it yields can be pickled; calls do
not depend on each other, and a call that is made again yields the same.

No worker is started before the first call. An engine is closed with `with`, on every path; its workers end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from offline_cli.engines.processes import ProcessEngine
from offline_cli.engines.ray_engine import RayEngine
from offline_cli.errors import UsageError
from offline_cli.scopes import Reading

__all__ = ["PROCESSES", "Engine", "EngineSpec", "LocalEngine"]

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

    def streamed(self, function: Callable[[T], Iterable[R]], items: Iterable[T]) -> Reading[R]:
        """What `function` yields for each item, in the order of the items; raises in its turn what it raises, and stops.

        Items are taken from the iterable some time before their turn. All that one call yields is held at once. Raises
        StopRequested once a signal has come; BadData where a process of this machine dies, ClusterLost where a cluster does;
        MissingPackage where a worker lacks what it needs.
        """


class LocalEngine:
    """This process alone."""

    is_local: Final = True

    def streamed(self, function: Callable[[T], Iterable[R]], items: Iterable[T]) -> Reading[R]:
        """See `Engine`."""
        return Reading(lambda _: (result for item in items for result in function(item)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as a caller names it; nothing is started for it."""

    name: str = LOCAL
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None: one is started on this machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineSpec:
        """From the options `engine`, `engine_address` and `workers`.

        Raises UsageError for an address that no engine takes, MissingPackage without Ray.
        """
        spec = cls(options["engine"], options["workers"], options["engine_address"])
        if spec.address is not None and spec.name != RAY:
            fix = f"add --engine {RAY}, or leave out --engine-address"
            raise UsageError(f"--engine {spec.name} has no address", where="--engine-address", fix=fix)
        spec.engine()  # raises now what it would raise after reading has begun
        return spec

    def engine(self) -> Engine:
        """The engine, to be entered. Raises UsageError for an address of Ray Client, MissingPackage."""
        if self.name == RAY:
            return RayEngine(self.address, self.workers)
        return ProcessEngine(self.workers) if self.name == PROCESSES else LocalEngine()
