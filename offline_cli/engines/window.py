"""What all engines are: calls of workers in an ordered, bounded window.

An engine calls a function of many items on its workers and gives what they yield in the order of the items, so that nothing
depends on how many workers there are, or which is faster. A function, its items and what it yields can be pickled; calls do
not depend on each other, and a call that is made again yields the same.

No worker is started before the first call. An engine is closed with `with`, on every path; its workers end with it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from offline_cli.errors import BadData, MissingPackage
from offline_cli.scopes import Reading

__all__ = ["Engine", "answer", "called", "in_order", "packed"]

T = TypeVar("T")
R = TypeVar("R")
Call = TypeVar("Call")


class Engine:
    """This process alone, which does all work in turn; subclasses have workers."""

    is_local: ClassVar[bool] = True
    workers: int = 1

    def streamed(self, function: Callable[[T], Iterable[R]], items: Iterable[T]) -> Reading[R]:
        """What `function` yields for each item, in the order of the items; raises in its turn what it raises, and stops.

        Items are taken from the iterable some time before their turn. All that one call yields is held at once. Raises
        StopRequested once a signal has come; BadData where a process of this machine dies, ClusterLost where a cluster does;
        MissingPackage where a worker lacks what it needs.
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


def in_order(begin: Callable[[T], Call], ended: Callable[[Call], bytes], items: Iterable[T], *, ahead: int) -> Iterator[Any]:
    """What `called` gave for each item, in the order of the items; at most `ahead` calls are begun and not given yet.

    `begin` has a worker call the function of an item, `ended` waits for that. An item is taken from the iterable after the
    results of the item `ahead` before it were given. Raises what the function raises, after what it had yielded.
    """
    source, begun = iter(items), deque[Call]()
    while True:
        while len(begun) < ahead:
            try:
                begun.append(begin(next(source)))
            except StopIteration:
                break
        if not begun:
            return
        results, error = pickle.loads(ended(begun.popleft()))  # noqa: S301  from a worker of this command
        yield from results
        if error is not None:
            raise error


def packed(function: Callable[[T], Iterable[Any]], item: T) -> bytes:
    """A call for a worker, as `called` takes it."""
    return pickle.dumps((function, item), protocol=5)


def called(work: bytes) -> bytes:
    """In a worker: what the function yields for the item, and what it raised then, None: nothing."""
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
    return answer(results, error)


def answer(results: list[Any], error: Exception | None) -> bytes:
    """What a worker sends, as `in_order` takes it."""
    return pickle.dumps((results, error), protocol=5)
