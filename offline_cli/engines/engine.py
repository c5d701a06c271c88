"""Engine: maps a function over items on workers, and yields its results in the order of the items.

So results do not depend on the number or speed of workers. The function, items and results must be picklable, and a repeated
call must yield the same results. Workers start at the first call and end with the engine's `with` block.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from offline_cli.errors import BadData, MissingPackage, UsageError
from offline_cli.scopes import Reading
from offline_cli.stop_signals import StopRequested, check

PROCESSES: Final = "processes"
T = TypeVar("T")
R = TypeVar("R")
Call = TypeVar("Call")


class Engine:
    """Runs all calls in this process; subclasses have workers."""

    is_local: ClassVar[bool] = True
    workers: int = 1

    def streamed(self, function: Callable[[T], Iterable[R]], items: Iterable[T]) -> Reading[R]:
        """Yield the results of `function` for each item, in item order; an exception is raised after the results before it.

        Items are consumed ahead of their turn, and all results of a call are held in memory. After a signal the call whose turn
        it is yields what it has; then raises StopRequested. Raises WorkerDied if a local worker process dies, ClusterLost if a
        cluster does, MissingPackage.
        """
        if self.is_local:
            return Reading(lambda _: (result for item in items for result in function(item)))
        return Reading(lambda _: in_order(partial(self._begin, function), self._ended, items, ahead=2 * self.workers))

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Any:
        """Submit a call to a worker."""
        raise NotImplementedError

    def _ended(self, call: Any) -> bytes:
        """Wait for a call; return the result of `called` in the worker."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the workers."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The name and options of an engine; starts nothing."""

    name: str = "local"  # "local" | "processes" | "ray"
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None: start one on this machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineSpec:
        """From the options `engine`, `engine_address` and `workers`; raises as `engine` does."""
        spec = cls(options["engine"], options["workers"], options["engine_address"])
        spec.engine()
        return spec

    def engine(self) -> Engine:
        """Create the engine, to be entered. Raises UsageError for an address without Ray engine, MissingPackage without Ray."""
        from offline_cli.engines.processes import ProcessEngine
        from offline_cli.engines.ray_engine import RayEngine

        if self.name == "ray":
            return RayEngine(self.address, self.workers)
        if self.address is not None:
            fix = "add --engine ray, or remove --engine-address"
            raise UsageError(f"--engine {self.name} takes no address", where="--engine-address", fix=fix)
        return ProcessEngine(self.workers) if self.name == PROCESSES else Engine()


def in_order(begin: Callable[[T], Call], ended: Callable[[Call], bytes], items: Iterable[T], *, ahead: int) -> Iterator[Any]:
    """Yield the results of all calls in item order, with at most `ahead` calls in flight."""
    source = iter(items)
    begun = deque(map(begin, islice(source, ahead)))
    while begun:
        results, error = pickle.loads(ended(begun.popleft()))  # noqa: S301  from a worker of this command
        yield from results
        if error is not None:
            check()  # the signal of this process, if that is why a worker stopped
            raise error
        begun.extend(map(begin, islice(source, 1)))


def packed(function: Callable[[T], Iterable[Any]], item: T) -> bytes:
    """Pickle a call for `called`."""
    return pickle.dumps((function, item), protocol=5)


def called(work: bytes) -> bytes:
    """In a worker: run a pickled call; return its pickled results and exception (or None) for `in_order`."""
    results: list[Any] = []
    error: BaseException | None = None
    try:
        function, item = pickle.loads(work)  # noqa: S301  from the command that started this worker
        results.extend(function(item))
    except ModuleNotFoundError as missing:
        package = (missing.name or "what it needs").partition(".")[0]
        fix = f"run on the worker: pip install {package}"
        error = MissingPackage(f"a worker has no module {missing.name!r}", where="a worker", fix=fix)
    except SystemExit as left:  # some simulators call exit
        fix = "raise an exception in the reader, environment or policy instead"
        error = BadData(f"your code called exit({left.code!r})", where="a worker", fix=fix)
    except (Exception, StopRequested) as raised:  # noqa: BLE001  raised again by the command, after the results so far
        error = raised
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own; some exceptions pickle but do not unpickle
    except Exception:  # noqa: BLE001  a user's exception may not be picklable
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps((results, error), protocol=5)
