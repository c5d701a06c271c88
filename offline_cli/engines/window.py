"""An ordered, bounded window over calls that workers make: what both engines share."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from offline_cli.errors import BadData, MissingPackage

__all__ = ["answer", "called", "in_order", "packed"]

T = TypeVar("T")
Call = TypeVar("Call")


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
