"""The thread that looks after code that may hang: it breaks out of it when its time is over, and only then."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

import pytest

from offline_cli.engines.overseer import Limits, Overseer, exit_code_of
from offline_cli.engines.watchdog import watched
from offline_cli.waiting import CLOSING, WORKERS, Ending, Overdue, current

pytestmark = pytest.mark.nightly

SHORT = Limits(word=0.05, stop=0.2, close=0.1, stuck=5.0, again=0.05, tick=0.02)


def overseer(**options: object) -> Overseer:
    return Overseer("it", limits=SHORT, is_watched=False, **options)  # type: ignore[arg-type]


def loops() -> None:
    while True:
        pass


def waits() -> None:
    threading.Event().wait()


def sleeps() -> None:
    time.sleep(60)


@pytest.mark.parametrize("hang", [loops, waits, sleeps])
def test_code_that_hangs_is_broken_out_of_after_a_stop(hang: object) -> None:
    began = time.monotonic()
    with overseer() as it, pytest.raises(Overdue) as raised:
        it.stop(signal.SIGTERM)
        current().enter("step")
        hang()  # type: ignore[operator]
    current().leave()
    assert 0.2 <= time.monotonic() - began < 3.0
    assert (raised.value.exit_code, raised.value.timed_out) == (143, False)


def test_without_a_stop_nothing_is_broken_out_of() -> None:
    with overseer():
        current().enter("step")
        time.sleep(0.4)
        current().leave()


@pytest.mark.parametrize("doing", ["", WORKERS])
def test_our_own_code_is_never_broken_out_of(doing: str) -> None:
    with overseer(step_timeout=0.1) as it:
        it.stop(signal.SIGINT)
        it.stop(signal.SIGINT, at_once=True)
        current().enter(doing)
        time.sleep(0.4)
        current().leave()


def test_a_second_signal_breaks_out_at_once() -> None:
    with overseer() as it:
        it.stop(signal.SIGINT)
        current().enter("step")
        with pytest.raises(Overdue) as raised:
            it.stop(signal.SIGTERM, at_once=True)
        current().leave()
    assert raised.value.exit_code == 130


def test_a_step_has_its_limit_and_many_steps_have_none_together() -> None:
    waiting = current()
    with overseer(step_timeout=0.3) as it:
        waiting.enter("step")
        for _ in range(8):
            waiting.calls += 1
            time.sleep(0.1)
        with pytest.raises(Overdue) as raised:
            sleeps()
        waiting.leave()
    assert raised.value.timed_out
    assert waiting.hurried
    assert it.number is None


@pytest.mark.parametrize("doing", ["policy", "making", CLOSING])
def test_a_limit_of_steps_is_for_steps_alone(doing: str) -> None:
    with overseer(step_timeout=0.1):
        current().enter(doing)
        time.sleep(0.4)
        current().leave()


def test_what_is_raised_and_swallowed_is_raised_again() -> None:
    swallowed = 0
    with overseer() as it:
        it.stop(signal.SIGTERM)
        current().enter("step")
        while swallowed < 3:
            try:
                sleeps()
            except Overdue:
                swallowed += 1
        current().leave()


def overdue_in_threads(count: int) -> list[BaseException]:
    """What is raised in `count` threads that step for ever, each under an overseer of its own."""
    raised: list[BaseException] = []

    def play() -> None:
        with overseer(step_timeout=0.1):
            current().enter("step")
            try:
                while True:
                    time.sleep(0.01)
            except Overdue as error:
                raised.append(error)
            current().leave()

    threads = [threading.Thread(target=play) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return raised


def test_a_thread_that_is_not_the_main_one_is_looked_after_too() -> None:
    assert len(overdue_in_threads(1)) == 1


def test_within_another_one_it_does_nothing_of_its_own() -> None:
    with overseer(step_timeout=0.3):
        threads = threading.active_count()
        with overseer(step_timeout=0.01):
            assert threading.active_count() == threads
            current().enter("step")
            time.sleep(0.1)
            current().leave()
        assert current().overseen
    assert not current().overseen


def test_several_threads_are_looked_after_by_one_each() -> None:
    assert len(overdue_in_threads(3)) == 3


PROGRAM = """
import time
from offline_cli.engines.overseer import Limits, Overseer
from offline_cli.waiting import Overdue, current
import threading
def play():
    with Overseer("it", step_timeout=0.1, limits=Limits(stuck=0.2, again=0.05, tick=0.02)) as it:
        current().enter("step")
        try:
            time.sleep(1.5)  # what is raised in another thread than the main one comes up when a call comes back
            print("came back")
        except Overdue:
            print("raised")
        current().leave()
thread = threading.Thread(target=play)
thread.start()
thread.join()
print("went on")
"""


def test_a_program_that_calls_us_is_never_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.split("\n")[1]) == (0, "went on"), ended.stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as that of a command."""
    monkeypatch.setattr(Ending, "is_ours", True)


@pytest.mark.usefixtures("command")
def test_it_leaves_no_thread_no_descriptor_and_no_handler() -> None:
    def state() -> tuple[int, int, object, object]:
        return threading.active_count(), len(os.listdir("/dev/fd")), signal.getsignal(signal.SIGURG), _wakeup()

    before = state()
    for _ in range(3):
        with Overseer("it"):
            assert state() != before
    assert state() == before


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More than select takes are open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("is_watched", [False, True])
def test_code_that_hangs_is_broken_out_of_where_many_files_are_open(is_watched: bool, many_descriptors: None) -> None:
    with Overseer("it", limits=SHORT, step_timeout=0.2, is_watched=is_watched), pytest.raises(Overdue):
        current().enter("step")
        time.sleep(5)
    current().leave()


@pytest.mark.usefixtures("command")
def test_the_watchdog_hears_of_signals_where_many_files_are_open(many_descriptors: None) -> None:
    before = signal.signal(signal.SIGHUP, heard := _Handler())
    try:
        with watched() as watchdog:
            assert watchdog is not None
            os.kill(os.getpid(), signal.SIGHUP)
            assert wait([watchdog.relayed], 5)
            assert os.read(watchdog.relayed, 1) == bytes([signal.SIGHUP])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard.numbers == [signal.SIGHUP]


class _Handler:
    ends_the_command = True

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, frame: object) -> None:
        self.numbers.append(number)


@pytest.mark.usefixtures("command")
def test_where_looking_fails_the_watchdog_kills_nothing_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Stub:
        relayed, other = os.pipe()

        def say(self, word: str, text: object = "") -> None:
            said.append(f"{word} {text}")

    @contextmanager
    def watched() -> Iterator[Stub]:
        yield Stub()

    def fails() -> None:
        raise ValueError("looking")

    monkeypatch.setattr("offline_cli.engines.overseer.watched", watched)
    it = Overseer("it", limits=SHORT, step_timeout=5.0, on_look=fails)
    with it, it.guarding():
        time.sleep(0.2)
        assert said[-2:] == ["guard 0", "patience 0"]
    assert said[-1] == "patience 0"


def _wakeup() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor


def test_the_exit_codes_of_signals() -> None:
    assert [exit_code_of(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == [130, 143, 143]
