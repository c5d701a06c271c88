"""A fork server that has died, or a worker that dies in the middle of a message, is no bug of ours: exit 3."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.errors import BadData
from offline_cli.playing.runner_processes import _Inbox, _Stop
from offline_cli.playing.slots import started

pytestmark = pytest.mark.nightly
RECORD = ("record", "CartPole-v1", "--policy", "random", "-n", "4", "--out")


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server is killed while it makes a worker."""
    server, connect = forkserver._forkserver, forkserver.connect_to_new_process  # type: ignore[attr-defined]

    def connect_and_kill(fds: Any) -> Any:
        server.ensure_running()
        os.kill(server._forkserver_pid, signal.SIGSTOP)  # or it might have answered before it is killed
        found = connect(fds)
        os.kill(server._forkserver_pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect_and_kill)


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("how", [("--num-env-runners", "2"), ("--vectorize", "async", "--num-envs", "2")])
def test_a_fork_server_that_dies_is_exit_3_and_says_how_to_do_without(how: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*RECORD, str(tmp_path / "D"), *how])
    assert done.exit_code == 3, done.stderr
    assert "fork server" in done.stderr
    assert "--vectorize sync" in done.stderr


class _Ended:
    exitcode, name = -9, "runner-0"

    def join(self, seconds: float) -> None:
        """It has ended."""


@pytest.mark.parametrize("sent", [b"", b"\x00", (1000).to_bytes(4, "big") + b"half"])
def test_a_runner_that_is_killed_in_the_middle_of_a_message_is_exit_3(sent: bytes) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), sent)
    theirs.close()
    stop = _Stop(multiprocessing.RawValue("b", 0), lambda: False)
    sight: Any = SimpleNamespace(plan=SimpleNamespace(keeps_what_is_whole=True))
    with pytest.raises(BadData, match="ended with exit code -9"):
        _Inbox(_Ended(), ours, sight).wait(stop)


def test_an_interrupt_waits_until_a_worker_has_all_that_it_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def start() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("started")

    monkeypatch.setattr("offline_cli.playing.slots.guards", lambda pid: done.append("guarded"))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        started(SimpleNamespace(start=start, pid=0))
    assert done == ["started", "guarded"]
    assert signal.getsignal(signal.SIGINT) is handler
