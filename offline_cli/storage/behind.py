"""One call at a time in a thread, while the caller prepares the next; refuses to hold more than one that is not done.

What a call raises is raised by the next `begin`, or by `finish`. A writer that gives up waits for no storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from offline_cli.storage.patience import ended_by

__all__ = ["Behind"]


class Behind:
    """Calls made in a thread, one after the other; ended by exactly one of `finish` and `give_up`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool: ThreadPoolExecutor | None = None  # from the first call on
        self._coming: Future[None] | None = None

    def begin(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the thread make the call, once the one before it is done. Raises what that raised."""
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="offline-cli-writing")
        self._coming = self._pool.submit(self._make, call, *arguments)

    def finish(self) -> None:
        """Wait for the last call, and make no more. Raises what it raised."""
        self.wait()
        self._end()

    def give_up(self) -> None:
        """Wait until no call is being made: waits for a storage end at once, and what the call raises concerns nobody."""
        self._stop.set()
        self._end()

    def wait(self) -> None:
        """Wait for the last call. Raises what it raised."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.result()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _make(self, call: Callable[..., None], *arguments: Any) -> None:
        with ended_by(self._stop):
            call(*arguments)
