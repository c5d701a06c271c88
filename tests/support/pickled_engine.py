"""An engine in this process whose function, items and results are pickled, and come from more workers than there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from offline_cli.engines.messages import FAILED, RESULT, never, outcomes, packed, unpacked
from offline_cli.scopes import Reading


class PickledEngine:
    is_local = False

    def __init__(self) -> None:
        self.items = 0

    def streamed(
        self, function: Callable[[Any], Iterator[Any]], items: Iterable[Any], *, stopped: Callable[[], bool] = never
    ) -> Reading[Any]:
        return Reading(lambda _: self._streamed(packed(function), items, stopped))

    def _streamed(self, function: bytearray, items: Iterable[Any], stopped: Callable[[], bool]) -> Iterator[Any]:
        for item in items:
            self.items += 1
            data = packed(item)
            for kind, payload in outcomes(lambda data=data: (unpacked(function), unpacked(data)), "here"):  # type: ignore[misc]
                if stopped():
                    return
                if kind == FAILED:
                    raise unpacked(payload)
                if kind == RESULT:
                    yield unpacked(payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
