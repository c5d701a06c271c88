"""Worker processes started; refuses to call it a bug of ours that the system's fork server is gone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from offline_cli.engines.watchdog import guards
from offline_cli.errors import BadData

__all__ = ["guard_hint", "started"]

INTERRUPTING: Final = (signal.SIGINT, signal.SIGTERM)


def started(process: Any) -> None:
    """Start a process of multiprocessing. Raises BadData where the server that makes it does not answer, or dies over it.

    The server imports what its workers need; one that is killed meanwhile, for memory maybe, ends like a file.
    """
    try:
        with _interrupts_later():
            process.start()
            guards(process.pid)
    except (EOFError, ConnectionError, FileNotFoundError) as err:  # the last: its socket
        said = f"{type(err).__name__}{f': {err}' if str(err) else ''}"
        what = f"the fork server, which starts worker processes, has died or does not answer ({said})"
        fix = "--num-env-runners 0 --vectorize sync needs no other process; the same command again starts a new server"
        fix += guard_hint()
        raise BadData(what, where=str(process.name), fix=fix) from err


def guard_hint() -> str:
    """What to add to a remedy where the program is a script: worker processes import it, and run what it does not guard."""
    main = sys.modules["__main__"]
    script = Path(getattr(main, "__file__", None) or "")
    if main.__spec__ is not None or script.suffix != ".py":
        return ""
    return f'; {script.name} has to start them from below `if __name__ == "__main__":`, because they import it'


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Signals that would break in come after the block: a worker that gets half of what it is to do dies with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in INTERRUPTING}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
