"""Turns SIGTERM into an exception, so that work is saved and half-written files go; refuses to act in child processes."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from offline_cli.errors import causes

__all__ = ["SIGNALLED", "Terminated", "end_now", "interrupt_behind", "signal_exit_code", "sigterm_raises"]


class Terminated(KeyboardInterrupt):
    """SIGTERM. A KeyboardInterrupt, so that whatever saves its work on Ctrl-C saves it here too."""

    exit_code: Final = 143


SIGNALLED: Final = (130, Terminated.exit_code)  # exit codes of what a signal has ended


def end_now(code: int) -> NoReturn:
    """End this process, after what is registered for its end has run.

    An interrupt may come between any two lines, and leave a thread of Arrow's waiting for the interpreter, which Arrow waits
    for at the end: for ever. All that is to be saved has been by now.
    """
    atexit._run_exitfuncs()
    os._exit(code)


def signal_exit_code(error: BaseException) -> int:
    """143 where `error` is, or came from, a SIGTERM; else 0: no signal known."""
    return Terminated.exit_code if isinstance(interrupt_behind(error), Terminated) else 0


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that `error` is, or came from: a C module that is interrupted while it loads says ImportError."""
    return next((one for one in causes(error) if isinstance(one, KeyboardInterrupt)), None)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM, unless the program around us has its own handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def on_sigterm(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker that is told to stop must stop, not unwind our stack
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise Terminated

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
