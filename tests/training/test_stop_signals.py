"""Signals that ask a loop to stop, before and after it has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from offline_cli.engines.watchdog import ENDING, _ends_us
from offline_cli.training import stop_signals
from offline_cli.training.stop_signals import StopSignals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals do afterwards what they did before."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def assert_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_the_first_signal_after_a_stop_that_another_process_told_of_is_that_stop() -> None:
    with StopSignals() as stop:
        stop.stops_together()
    interrupt()
    assert_interrupts()


def test_a_sigterm_after_a_stop_of_several_processes_by_sigint_is_who_started_them() -> None:
    with StopSignals() as stop:
        interrupt()
        stop.stops_together()
    os.kill(os.getpid(), signal.SIGTERM)
    assert_interrupts()


def test_a_sigterm_that_comes_once_all_know_of_the_stop_is_no_second_signal() -> None:
    with StopSignals() as stop:
        interrupt()
        stop.stops_together()
        os.kill(os.getpid(), signal.SIGTERM)
        assert_interrupts()


def test_a_signal_after_a_stop_that_had_one_of_its_own_interrupts() -> None:
    with StopSignals() as stop:
        interrupt()
        stop.stops_together()
    assert_interrupts()


def test_a_signal_long_after_a_stop_of_another_process_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_signals, "LATE", -1.0)
    with StopSignals() as stop:
        stop.stops_together()
    assert_interrupts()


def test_a_watchdog_that_starts_within_it_or_after_it_ends_the_process_after_its_signals() -> None:
    with StopSignals() as stop:
        assert _ends_us(signal.SIGINT)
        stop.stops_together()
    assert _ends_us(signal.SIGINT)
