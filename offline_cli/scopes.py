"""Who closes what a reading holds open: files, pools of threads, processes.

A generator cannot own these: one that is dropped half read ends when the garbage collector runs, in any thread, where joining
another thread or waiting for a lock is a deadlock. So a generator takes what it needs from a scope, in a part of its own:

    with part_of(scope) as held:
        stream = held.enter(location.open())

The part is closed when its block ends, normally or by an error. A generator that is dropped leaves it open, to the scope, whose
owner closes that with `with` on every path. What is entered is a class (`ExitStack`, a file), not a generator made a context
manager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Scope(ExitStack):
    """What is held open, closed last to first; a context manager, and usable again after `close`."""

    def __init__(self, parent: Scope | None = None) -> None:
        super().__init__()
        self._parent = parent
        self._parts: dict[Scope, None] = {}  # those that have not ended, which are closed before all else

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter `resource`, and hold it until the scope is closed."""
        return self.enter_context(resource)

    def part(self) -> Scope:
        """A scope that ends before this one does, or with it."""
        part = Scope(self)
        self._parts[part] = None
        return part

    def moved(self) -> Scope:
        """A new scope that holds all that this one did; to hand on what was opened without an error."""
        other = self.pop_all()
        other._parts, self._parts = self._parts, {}
        return other

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is GeneratorExit:  # dropped: see above
            return
        if self._parent is not None:
            self._parent._parts.pop(self, None)
        parts, self._parts = self._parts, {}
        for part in parts:
            self.push(part)
        super().__exit__(kind, error, trace)


def part_of(scope: Scope | None) -> Scope:
    """A part of `scope`; without one, a scope of its own, which a dropped generator leaves without an owner."""
    return Scope() if scope is None else scope.part()


class Reading(Iterator[T], Generic[T]):
    """Items that are read while iterating, once; a context manager. Its end, an error and `close` close what it holds open."""

    def __init__(self, items: Callable[[Scope], Iterator[T]]) -> None:
        """`items` makes the generator; it holds all that it opens in the scope that it is given."""
        self._scope = Scope()
        self._items = items(self._scope)

    def __next__(self) -> T:
        try:
            return next(self._items)
        except BaseException:
            self._scope.close()
            raise

    def close(self) -> None:
        """Read no further."""
        self._items = iter(())
        self._scope.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not GeneratorExit:
            self.close()
