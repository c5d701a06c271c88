"""Progress on stderr."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from offline_cli.cli.progress import LINE_SECONDS, Lines, working
from offline_cli.progress import Progress


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def report(done: int, stage: str = "training", total: int | None = 1000) -> Progress:
    return Progress(stage, done, total, "updates", {"loss": 0.25, "return": 450.0})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_a_line_has_count_rate_figures_and_time_left(clock: Clock, stream: io.StringIO) -> None:
    lines = Lines(stream, clock)
    lines(report(0))
    clock.now += LINE_SECONDS
    lines(report(200))
    assert stream.getvalue() == "training: 200/1,000 updates, 40 updates/s, loss 0.25, return 450, 20 s left\n"


def test_many_reports_within_a_second_make_no_line(clock: Clock, stream: io.StringIO) -> None:
    lines = Lines(stream, clock)
    for done in range(1000):
        clock.now += 0.001
        lines(report(done))
    assert stream.getvalue() == ""


def test_a_long_stage_has_a_line_every_few_seconds(clock: Clock, stream: io.StringIO) -> None:
    lines = Lines(stream, clock)
    for done in range(481):
        lines(report(done))
        clock.now += 0.125
    assert len(stream.getvalue().splitlines()) == 60 // LINE_SECONDS


def test_the_last_line_says_how_far_the_work_came_even_when_it_failed(clock: Clock, stream: io.StringIO) -> None:
    def work() -> None:
        with Lines(stream, clock) as lines:
            lines(report(7))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert stream.getvalue().startswith("training: 7/1,000")


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working(quiet=True) as display:
        display.on_progress(report(7))
    assert capsys.readouterr() == ("", "")


def test_what_the_work_prints_does_not_reach_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with working(quiet=True):
        print("a greeting by some library")
    assert capsys.readouterr() == ("", "a greeting by some library\n")


def shown_on_a_terminal(columns: int) -> tuple[str, bytes]:
    """What a terminal of that width, and stdout, get of three stages."""
    script = (
        "import time\nfrom offline_cli.cli.progress import working\nfrom offline_cli.progress import Progress\n"
        "with working(quiet=False) as display:\n    listener = display.on_progress\n"
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
