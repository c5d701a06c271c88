"""Signals that come where Python may not be interrupted."""

from __future__ import annotations

import _imp
import _thread
import importlib
import importlib._bootstrap  # type: ignore[import-not-found]
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from offline_cli import interrupts
from offline_cli.cli.termination import Terminated, signals_raise
from offline_cli.training.stop_signals import StopSignals

SOON = 10.0  # seconds
MODULE = "colorsys"  # small, and imported by nobody here
EVERY = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)]


@pytest.fixture(autouse=True)
def lock_free_at_the_end() -> Iterator[None]:
    yield
    while _imp.lock_held():  # else a test that fails stops all that follow
        _imp.release_lock()


@pytest.fixture
def signalled_import(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Imports a module, and has a signal come while the import system itself holds the lock of all imports."""

    def run(number: int) -> None:
        came = []

        class Signalling:
            def __getattr__(self, name: str) -> Any:
                if name == "acquire_lock" and not came:
                    came.append(number)
                    _imp.acquire_lock()
                    return partial(signal.raise_signal, number)  # called in C: the handler runs in the caller's frame
                return getattr(_imp, name)

        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        monkeypatch.setattr(importlib._bootstrap, "_imp", Signalling())
        importlib.import_module(MODULE)

    return run


class Signalling:
    """Something whose destructor a signal interrupts."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def wait() -> None:
    """For a signal to end it."""
    time.sleep(SOON)


@pytest.mark.parametrize(("number", "error"), EVERY)
def test_a_signal_amid_the_import_system_comes_once_that_is_through(
    number: int, error: type[BaseException], signalled_import: Callable[[int], None]
) -> None:
    imported = False
    with pytest.raises(KeyboardInterrupt) as caught, signals_raise():
        signalled_import(number)
        imported = True
        wait()
    assert (imported, caught.type) == (True, error)
    assert not _imp.lock_held()


def test_afterwards_threads_import(signalled_import: Callable[[int], None]) -> None:
    with pytest.raises(KeyboardInterrupt), signals_raise():
        signalled_import(signal.SIGINT)
        wait()
    sys.modules.pop(MODULE)
    thread = threading.Thread(target=importlib.import_module, args=(MODULE,), daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive()


def test_a_signal_is_not_postponed_for_ever(signalled_import: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt), signals_raise():
        signalled_import(signal.SIGINT)
        pytest.fail("it was postponed")


def test_where_no_thread_can_start_a_signal_is_raised_at_once(
    signalled_import: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", full)
    with pytest.raises(KeyboardInterrupt), signals_raise():
        signalled_import(signal.SIGINT)
        pytest.fail("it was lost")


def test_the_second_signal_of_a_loop_is_postponed_too(signalled_import: Callable[[int], None]) -> None:
    imported = False
    with pytest.raises(KeyboardInterrupt), StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signalled_import(signal.SIGINT)
        imported = True
        wait()
    assert (imported, stop.requested) == (True, signal.SIGTERM)


def test_a_signal_while_a_module_is_loaded_comes_once_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "signalled_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = None
    with pytest.raises(KeyboardInterrupt), signals_raise():
        module = importlib.import_module("signalled_module")
        wait()
    assert module is not None
    assert module.whole


def test_a_module_that_loads_for_long_is_interrupted_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "import signal, time\nsignal.raise_signal(signal.SIGINT)\nfor _ in range(1000):\n    time.sleep(0.01)\n"
    (tmp_path / "slow_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "LOADING", 0.3)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signals_raise():
        importlib.import_module("slow_module")
    assert 0.3 <= time.monotonic() - began < 5


@pytest.mark.parametrize(("number", "error"), EVERY)
def test_a_signal_that_a_destructor_swallows_comes_again(number: int, error: type[BaseException]) -> None:
    gone = False
    with pytest.raises(KeyboardInterrupt) as caught, signals_raise():
        Signalling(number)
        gone = True
        wait()
    assert (gone, caught.type) == (True, error)


def test_other_errors_of_destructors_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with signals_raise():
        Broken()
    assert [one.exc_type for one in told] == [ValueError]
    assert sys.unraisablehook == told.append


def test_in_a_forked_child_an_interrupt_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), signals_raise():
        monkeypatch.setattr("os.getpid", lambda: -1)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was ignored")
