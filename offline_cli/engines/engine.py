"""Engine: calls a function of many items on workers, and gives what it yields in the order of the items.

So nothing depends on how many workers there are, or which is faster. The function, its items and what it yields can be pickled;
a call that is made again yields the same. No worker starts before the first call; all end when the engine's `with` block ends.
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

PROCESSES: Final = "processes"
T = TypeVar("T")
R = TypeVar("R")
Call = TypeVar("Call")


class Engine:
    """This process alone, which does all work in turn; subclasses have workers."""

    is_local: ClassVar[bool] = True
    workers: int = 1

    def streamed(self, function: Callable[[T], Iterable[R]], items: Iterable[T]) -> Reading[R]:
        """What `function` yields for each item, in the order of the items; raises in its turn what it raises, and stops.

        Items are taken some time before their turn, and all that one call yields is held at once. Raises StopRequested once a
        signal has come, BadData where a process of this machine dies, ClusterLost where a cluster does, MissingPackage.
        """
        if self.is_local:
            return Reading(lambda _: (result for item in items for result in function(item)))
        return Reading(lambda _: in_order(partial(self._begin, function), self._ended, items, ahead=2 * self.workers))

    def _begin(self, function: Callable[[T], Iterable[Any]], item: T) -> Any:
        """Have a worker make a call."""
        raise NotImplementedError

    def _ended(self, call: Any) -> bytes:
        """What `called` gave in the worker, once it has ended."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the workers."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as a caller names it; nothing is started for it."""

    name: str = "local"  # "local" | "processes" | "ray"
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None: one is started on this machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineSpec:
        """From the options `engine`, `engine_address` and `workers`; raises now what `engine` raises."""
        spec = cls(options["engine"], options["workers"], options["engine_address"])
        spec.engine()
        return spec

    def engine(self) -> Engine:
        """The engine, to be entered. Raises UsageError for an address that it does not take, MissingPackage without Ray."""
        from offline_cli.engines.processes import ProcessEngine
        from offline_cli.engines.ray_engine import RayEngine

        if self.name == "ray":
            return RayEngine(self.address, self.workers)
        if self.address is not None:
            fix = "add --engine ray, or leave out --engine-address"
            raise UsageError(f"--engine {self.name} has no address", where="--engine-address", fix=fix)
        return ProcessEngine(self.workers) if self.name == PROCESSES else Engine()


def in_order(begin: Callable[[T], Call], ended: Callable[[Call], bytes], items: Iterable[T], *, ahead: int) -> Iterator[Any]:
    """What `called` gave for each item, in order; at most `ahead` calls are begun and not given yet."""
    source = iter(items)
    begun = deque(map(begin, islice(source, ahead)))
    while begun:
        results, error = pickle.loads(ended(begun.popleft()))  # noqa: S301  from a worker of this command
        yield from results
        if error is not None:
            raise error
        begun.extend(map(begin, islice(source, 1)))


def packed(function: Callable[[T], Iterable[Any]], item: T) -> bytes:
    """A call for a worker, as `called` takes it."""
    return pickle.dumps((function, item), protocol=5)


def called(work: bytes) -> bytes:
    """In a worker: what the function yields for the item, and what it raised then, None: nothing; as `in_order` takes them."""
    results: list[Any] = []
    error: Exception | None = None
    try:
        function, item = pickle.loads(work)  # noqa: S301  from the command that started this worker
        results.extend(function(item))
    except ModuleNotFoundError as missing:
        package = (missing.name or "what it needs").partition(".")[0]
        fix = f"install it there: pip install {package}"
        error = MissingPackage(f"a worker has no module {missing.name!r}", where="a worker", fix=fix)
    except SystemExit as left:  # some simulators call exit
        fix = "let the reader, environment or policy raise an error instead"
        error = BadData(f"code of yours called exit({left.code!r})", where="a worker", fix=fix)
    except Exception as raised:  # noqa: BLE001  raised again by the command
        error = raised
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own; an exception may be pickled and not unpickled
    except Exception:  # noqa: BLE001  an exception of a user's may not travel
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps((results, error), protocol=5)
