"""The watchdog process: its clocks stand still where a process is stopped, so that nothing healthy is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
PLAYS = """
    import sys, time
    from offline_cli.engines.watchdog import watched

    with watched() as watchdog:
        watchdog.say("guard", 1)
        watchdog.say("patience", 0.6)
        print(watchdog._process.pid, flush=True)
        until = time.process_time() + 60
        while True:
            watchdog.say({word!r}, "a step")
            time.sleep(0.05)
"""
STEPS = """
    import time
    from offline_cli.engines.overseer import Overseer
    from offline_cli.waiting import current

    with Overseer("it", step_timeout=2.4, is_watched=False):  # less than it is stopped for, thrice what it takes
        current().enter("step")
        print("step", flush=True)
        until = time.process_time() + 0.8
        while time.process_time() < until:
            pass
        current().leave()
"""


@pytest.fixture
def begun():  # type: ignore[no-untyped-def]
    """Starts a script; gives its process and the first line that it prints."""
    processes = []

    def begin(body: str) -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-c", textwrap.dedent(body)]
        process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.nightly
def test_without_a_sign_of_life_it_kills(begun) -> None:  # type: ignore[no-untyped-def]
    process, _ = begun(PLAYS.format(word="nothing"))
    assert process.wait(5) == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nothing says elsewhere that a process is stopped")
@pytest.mark.nightly
@pytest.mark.parametrize("both", [False, True], ids=["the parent", "both"])
def test_one_that_is_stopped_and_goes_on_is_not_killed(both: bool, begun) -> None:  # type: ignore[no-untyped-def]
    process, watchdog = begun(PLAYS.format(word="alive"))
    time.sleep(0.2)
    pids = [int(watchdog), process.pid] if both else [process.pid]
    for number, stopped in ((signal.SIGSTOP, pids[::-1]), (signal.SIGCONT, pids)):
        for pid in stopped:
            os.kill(pid, number)
            time.sleep(0.15)
        time.sleep(1.3)
        assert process.poll() is None, process.communicate()[1]


@pytest.mark.nightly
def test_the_time_in_which_a_process_is_stopped_is_none_of_its_step(begun) -> None:  # type: ignore[no-untyped-def]
    process, _ = begun(STEPS)
    time.sleep(0.4)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 0, process.communicate()[1]
