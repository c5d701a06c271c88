"""Maps a function over many items, by worker processes where that pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

from offline_cli.engines.processes import ProcessEngine
from offline_cli.import_path import guard_hint
from offline_cli.scopes import Reading
from offline_cli.storage.timeouts import processors

__all__ = ["helpers", "mapped"]

WORTH: Final = 64 << 20  # bytes of data from which on workers pay, which take about a second to start
T = TypeVar("T")
R = TypeVar("R")


def helpers(workers: int, nbytes: int | None) -> int:
    """How many processes pay for `nbytes` (None: unknown, many) of data, where `workers` are allowed; 0: none."""
    count = min(workers, processors())
    return 0 if count < 2 or guard_hint() or (nbytes is not None and nbytes < WORTH) else count


def mapped(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Reading[R]:
    """`function(item)` of each, in order, by so many processes, 0: this one. Raises as `Engine.streamed` does."""
    if not workers:
        return Reading(lambda _: map(function, items))
    return Reading(lambda scope: scope.enter(ProcessEngine(workers)).streamed(partial(_each, function), items))


def _each(function: Callable[[T], R], item: T) -> Iterator[R]:
    yield function(item)
