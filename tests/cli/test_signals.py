"""Signals of a command: where they raise, and where that has to wait."""

from __future__ import annotations

import _imp
import _thread
import importlib
import importlib._bootstrap  # type: ignore[import-not-found]
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from offline_cli.cli import signals
from offline_cli.cli.signals import Signals, Terminated

pytestmark = pytest.mark.nightly

SOON = 10.0  # seconds
PAUSE = 0.4  # in place of that of the code: what a test does meanwhile may take long on a busy machine
MODULE = "colorsys"  # small, and imported by nobody here
EVERY = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)]
Import = Callable[..., None]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test that fails has left does not end those after it."""
    monkeypatch.setattr(signals, "PAUSE", PAUSE)
    handlers = {number: signal.getsignal(number) for number, _ in EVERY}
    yield
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1.5 * PAUSE)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    while _imp.lock_held():
        _imp.release_lock()


@pytest.fixture
def signalled_import(monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a module, and has signals come while the import system itself holds the lock of all imports."""

    def run(number: int) -> None:
        left = [number]

        class Signalling:
            def __getattr__(self, name: str) -> Any:
                if name == "acquire_lock" and left:
                    _imp.acquire_lock()
                    return partial(signal.raise_signal, left.pop())  # called in C: the handler runs in the caller's frame
                return getattr(_imp, name)

        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        monkeypatch.setattr(importlib._bootstrap, "_imp", Signalling())
        importlib.import_module(MODULE)
        monkeypatch.setattr(importlib._bootstrap, "_imp", _imp)

    return run


def wait() -> None:
    """For a signal to end it."""
    time.sleep(SOON)


@pytest.mark.parametrize(("number", "error"), EVERY)
def test_a_signal_amid_the_import_system_comes_once_that_is_through(
    number: int, error: type[BaseException], signalled_import: Import
) -> None:
    imported = False
    with pytest.raises(KeyboardInterrupt) as caught, Signals():
        signalled_import(number)
        imported = True
        wait()
    assert (imported, caught.type) == (True, error)
    assert not _imp.lock_held()


def test_afterwards_threads_import(signalled_import: Import) -> None:
    with pytest.raises(KeyboardInterrupt), Signals():
        signalled_import(signal.SIGINT)
        wait()
    sys.modules.pop(MODULE)
    thread = threading.Thread(target=importlib.import_module, args=(MODULE,), daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive()


def test_several_signals_while_one_waits_are_one_interrupt(signalled_import: Import) -> None:
    raised: list[type[KeyboardInterrupt]] = []
    with Signals(raised):
        with pytest.raises(KeyboardInterrupt):
            signalled_import(signal.SIGINT)
            time.sleep(PAUSE / 4)
            signalled_import(signal.SIGINT)
            wait()
        time.sleep(1.5 * PAUSE)
    assert raised == [KeyboardInterrupt]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_handler_of_another_waits_as_that_does(
    second: int, signalled_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalling = map(bool, map(signal.raise_signal, [second]))  # in C: the second handler runs in the frame of the first
    clock = SimpleNamespace(monotonic=chain(signalling, repeat(0.0)).__next__, sleep=time.sleep)
    imported = False
    with pytest.raises(KeyboardInterrupt), Signals():
        monkeypatch.setattr(signals, "time", clock)
        signalled_import(signal.SIGINT)
        imported = True
        wait()
    assert imported
    assert next(signalling, None) is None


def test_two_signals_at_once_are_one_and_a_later_one_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[type[KeyboardInterrupt]] = []
    with Signals(raised):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert raised == [KeyboardInterrupt]
        monkeypatch.setattr(signals, "SAME", 0.0)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_is_not_postponed_for_ever(signalled_import: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE", -1.0)
    with pytest.raises(KeyboardInterrupt), Signals():
        signalled_import(signal.SIGINT)
        pytest.fail("it was postponed")


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_start_a_signal_is_raised_at_once(
    error: Exception, signalled_import: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(_thread, "start_new_thread", full)
    with pytest.raises(KeyboardInterrupt), Signals():
        signalled_import(signal.SIGINT)
        pytest.fail("it was lost")


@pytest.mark.parametrize(("number", "error"), EVERY)
def test_a_postponed_signal_is_raised_at_the_end_of_the_work(
    number: int, error: type[BaseException], signalled_import: Import
) -> None:
    raised: list[type[KeyboardInterrupt]] = []
    with pytest.raises(KeyboardInterrupt) as caught, Signals(raised) as handled:
        signalled_import(number)
        handled.settle()
    assert caught.type is error
    assert raised == [error]


def test_a_postponed_signal_does_not_reach_the_program_around_the_command(signalled_import: Import) -> None:
    came: list[int] = []
    with Signals():
        signalled_import(signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    time.sleep(1.5 * PAUSE)
    signal.signal(signal.SIGTERM, before)
    assert came == []


def test_nothing_is_raised_at_the_end_where_nothing_was_postponed() -> None:
    with Signals() as handled:
        handled.settle()


def test_in_a_forked_child_an_interrupt_is_raised() -> None:
    with Signals():
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
