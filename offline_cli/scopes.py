"""Ownership of resources that a reading holds open: files, thread pools, processes.

A generator cannot own them: an abandoned generator is finalized by the garbage collector in any thread, where joining a thread
or waiting for a lock can deadlock. So a generator opens its resources in a part of a scope:

    with part_of(scope) as held:
        stream = held.enter(location.open())

The part is closed when its block ends, normally or by an error. An abandoned generator leaves it open; the owner of the scope
closes it, with `with`, on every path. Enter only classes (`ExitStack`, a file), no `@contextmanager` generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Scope(ExitStack):
    """Open resources, closed in reverse order; a context manager, reusable after `close`."""

    def __init__(self, parent: Scope | None = None) -> None:
        super().__init__()
        self._parent = parent
        self._parts: dict[Scope, None] = {}  # open parts, closed first

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter `resource` and hold it until the scope is closed."""
        return self.enter_context(resource)

    def part(self) -> Scope:
        """A nested scope, closed with this one at the latest."""
        part = Scope(self)
        self._parts[part] = None
        return part

    def moved(self) -> Scope:
        """Move everything into a new scope, to pass on resources that were opened without an error."""
        other = self.pop_all()
        other._parts, self._parts = self._parts, {}
        return other

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is GeneratorExit:  # abandoned: see above
            return
        if self._parent is not None:
            self._parent._parts.pop(self, None)
        parts, self._parts = self._parts, {}
        for part in parts:
            self.push(part)
        super().__exit__(kind, error, trace)


def part_of(scope: Scope | None) -> Scope:
    """A part of `scope`; without one, a new scope, which nobody closes if the generator is abandoned."""
    return Scope() if scope is None else scope.part()


class Reading(Iterator[T], Generic[T]):
    """An iterator that closes its resources at its end, on an error, and on `close`; a context manager."""

    def __init__(self, items: Callable[[Scope], Iterator[T]]) -> None:
        """`items` makes the generator, which opens its resources in the given scope."""
        self._scope = Scope()
        self._items = items(self._scope)

    def __next__(self) -> T:
        try:
            return next(self._items)
        except BaseException:
            self._scope.close()
            raise

    def close(self) -> None:
        """Stop reading and close all resources."""
        self._items = iter(())
        self._scope.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not GeneratorExit:
            self.close()
