"""Progress on stderr."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import warnings

import pytest

from offline_cli.cli.progress import working
from offline_cli.progress import Progress


def report(done: int, stage: str = "training") -> Progress:
    return Progress(stage, done, 1000, "updates", {"loss": 0.25, "return": 450.0})


def test_each_stage_has_a_line_that_says_how_far_it_came_even_when_the_work_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), working(quiet=False) as (on_progress, _):
        for done in range(3):
            on_progress(report(done, "reading"))
        on_progress(report(7))
        raise RuntimeError
    line = "training: 7/1,000 updates, loss 0.25, return 450"
    assert capsys.readouterr().err.splitlines() == [line.replace("training: 7", "reading: 2"), line]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working(quiet=True) as (on_progress, _):
        on_progress(report(7))
    assert capsys.readouterr() == ("", "")


def test_what_the_work_prints_does_not_reach_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with working(quiet=True):
        print("a greeting by some library")
    assert capsys.readouterr() == ("", "a greeting by some library\n")


def test_a_warning_is_one_line_without_its_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # a program's own would show it
    with working(quiet=True) as (_, notes):
        warnings.warn("this is odd", stacklevel=1)
    line = capsys.readouterr().err
    assert (line.endswith("UserWarning: this is odd\n"), line.count("\n"), notes) == (True, 1, [])


def shown_on_a_terminal(columns: int) -> tuple[str, bytes]:
    """What a terminal of that width, and stdout, get of three stages."""
    script = (
        "import time\nfrom offline_cli.cli.progress import working\nfrom offline_cli.progress import Progress\n"
        "with working(quiet=False) as (listener, notes):\n"
        "    listener(Progress('reading', 46184, None, 'steps'))\n"
        "    listener(Progress('evaluating', 3, 100, 'episodes'))\n"
        "    listener(Progress('training', 0, 1000, 'updates'))\n"
        "    time.sleep(0.3)\n"
        "    listener(Progress('training', 500, 1000, 'updates', {'loss': 0.25, 'samples/s': 114653.0, 'return': 491.23}))\n"
        "    print('[a message]')\n"
        "    time.sleep(0.3)\n"
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=theirs, env=env) as child:
        os.close(theirs)
        shown = b"".join(iter(lambda: read_terminal(ours), b"")).decode()
        os.close(ours)
        stdout, _ = child.communicate()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown), stdout


def read_terminal(ours: int) -> bytes:
    """What a terminal has got meanwhile; nothing once its last writer has gone, which Linux tells as an error."""
    try:
        return os.read(ours, 100_000)
    except OSError:
        return b""


@pytest.mark.integration
def test_a_terminal_gets_a_bar_that_goes_when_the_work_ends() -> None:
    shown, stdout = shown_on_a_terminal(120)
    assert "training" in shown
    assert "500 updates" in shown
    assert "loss 0.25" in shown
    assert "[a message]" in shown
    assert stdout == b""
