"""An engine in this process whose function, items and results are pickled, and of which a few are begun ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from offline_cli.engines.engine import called, in_order, packed
from offline_cli.scopes import Reading


class PickledEngine:
    is_local = False

    def __init__(self) -> None:
        self.items = 0

    def streamed(self, function: Callable[[Any], Iterable[Any]], items: Iterable[Any]) -> Reading[Any]:
        def begun(item: Any) -> bytes:
            self.items += 1
            return called(packed(function, item))

        return Reading(lambda _: in_order(begun, lambda answer: answer, items, ahead=4))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
