"""Workers of the fork server end with their parent's command, even where a signal has reached the server too."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
BEGIN = """
    import multiprocessing, os, signal, sys, time
    from multiprocessing import forkserver
    from offline_cli.engines.fork_server import process_context
    from offline_cli.engines.fork_server import ended, signals_are_its_parents
    from offline_cli.engines.watchdog_process import began, runs

    def waits(mark):
        signals_are_its_parents()
        open(mark, "w").close()
        time.sleep(60)

    def others(mark):
        open(mark, "w").close()
        time.sleep(60)

    def begun(context, target, mark):
        process = context.Process(target=target, args=(mark,))
        process.start()
        until = time.monotonic() + 20
        while not os.path.exists(mark) and time.monotonic() < until:
            time.sleep(0.02)
        return process
"""


@pytest.fixture
def told(tmp_path: Path) -> object:
    """Runs a script in a process of its own, with a fork server of its own; gives what it prints."""

    def run(body: str) -> list[str]:
        script = tmp_path / "script.py"
        guard = "\nif __name__ == '__main__':\n"
        script.write_text(textwrap.dedent(BEGIN) + guard + textwrap.indent(textwrap.dedent(body), "    "))
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_signals_that_reach_the_whole_group_do_not_end_the_fork_server(told) -> None:  # type: ignore[no-untyped-def]
    body = """
    context = process_context("offline_cli.waiting")
    server = forkserver._forkserver._forkserver_pid
    begun(context, waits, "mark").kill()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(server, number)
    time.sleep(0.3)
    print(runs(server, began(server)), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    """
    assert told(body) == ["True", "set()"]


WITHOUT_SERVER = """
    context = process_context("offline_cli.waiting")
    process = begun(context, waits, "mark")
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    time.sleep(0.2)
"""


def test_a_worker_whose_server_has_died_is_ended_all_the_same(told) -> None:  # type: ignore[no-untyped-def]
    body = (
        WITHOUT_SERVER
        + """
    there = runs(process.pid, process.began)
    ended([process], 0.2)
    print(there, runs(process.pid, process.began))
    """
    )
    assert told(body) == ["True", "False"]


def test_one_that_ends_by_itself_meanwhile_is_waited_for(told) -> None:  # type: ignore[no-untyped-def]
    body = (
        WITHOUT_SERVER
        + """
    began_at = time.monotonic()
    import threading
    threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL)).start()
    ended([process], 20.0)
    print(0.3 < time.monotonic() - began_at < 10, runs(process.pid, process.began))
    """
    )
    assert told(body) == ["True", "False"]


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_users_own_process_of_the_same_server_hears_signals(told, number: str) -> None:  # type: ignore[no-untyped-def]
    body = f"""
    begun(process_context("offline_cli.waiting"), waits, "mark").kill()
    other = begun(multiprocessing.get_context("forkserver"), others, "other")
    os.kill(other.pid, signal.{number})
    other.join(3)
    print(other.exitcode == -signal.{number})
    other.kill()
    """
    assert told(body) == ["True"]
