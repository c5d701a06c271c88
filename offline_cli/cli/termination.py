"""How a command ends that a signal has stopped."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from typing import Final, NoReturn

from offline_cli.cli.signals import Terminated
from offline_cli.errors import causes

__all__ = ["SIGNALLED", "end_now", "end_uninterrupted", "interrupt_behind"]

LAST: Final = 2.0  # seconds for what is registered for the end
SIGNALLED: Final = (130, Terminated.exit_code)  # exit codes of what a signal has ended


def end_now(code: int) -> NoReturn:
    """End this process, after what is registered for its end has run.

    An interrupt may come between any two lines, and leave a thread of Arrow's waiting for the interpreter, which Arrow waits
    for at the end: for ever. All that is to be saved has been by now, and what a hung environment registered may hang too.
    """
    last = threading.Timer(LAST, os._exit, (code,))
    last.daemon = True
    last.start()
    atexit._run_exitfuncs()
    os._exit(code)


def end_uninterrupted() -> None:
    """Ignore SIGTERM from now on: this process is about to end by itself, with an exit code of its own."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that `error` is, or came from: a C module interrupted while loading raises ImportError."""
    return next((one for one in causes(error) if isinstance(one, KeyboardInterrupt)), None)
