"""Turns signals into exceptions, so that work is saved and half-written files go; in child processes SIGTERM still kills."""

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
from offline_cli.interrupts import ENDING, none_lost, postponed

__all__ = ["SIGNALLED", "Terminated", "end_now", "end_uninterrupted", "interrupt_behind", "signal_exit_code", "signals_raise"]

_raised: list[type[KeyboardInterrupt]] = []  # by this command's handlers, the first one first
LAST: Final = 2.0  # seconds for what is registered for the end


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP. A KeyboardInterrupt, so that whatever saves its work on Ctrl-C saves it here too."""

    exit_code: Final = 143


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


def signal_exit_code(error: BaseException) -> int:
    """143 where `error` is, or came from, a SIGTERM; else 0: no signal known."""
    return int(getattr(interrupt_behind(error), "exit_code", 0))


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that `error` is, or came from: what fails after one fails because of it, whoever has caught it.

    A C module interrupted while loading raises ImportError, or is half there.
    """
    found = next((one for one in causes(error) if isinstance(one, KeyboardInterrupt)), None)
    return found or next((kind() for kind in _raised), None)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread on SIGINT, and Terminated on SIGTERM and SIGHUP, unless the program around us
    has its own handler, or has the signal ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner and signum != signal.SIGINT:  # a forked worker told to stop must stop, not unwind our stack
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        elif not postponed(signum, frame, loading=True):
            _raised.append(KeyboardInterrupt if signum == signal.SIGINT else Terminated)
            raise _raised[-1]

    on_signal.ends_the_command = True  # type: ignore[attr-defined]  # what engines/watchdog.py asks of handlers
    usual = {number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL for number in ENDING}
    taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    for number in taken:
        signal.signal(number, on_signal)
    try:
        with none_lost({KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}):
            yield
    finally:
        _raised.clear()
        for number, handler in taken.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)
