"""Ctrl-C, SIGTERM and readers that go away, as a shell sees them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from offline_cli.cli.signals import Signals

pytestmark = pytest.mark.integration

Start = Callable[..., "subprocess.Popen[str]"]
Shell = Callable[..., Any]

# A program with the real boundary around commands that do what a test needs.
PROGRAM = '''
import multiprocessing, os, sys, time
import typer
from offline_cli.cli.app import ErrorBoundary
from offline_cli.cli.streams import write
from offline_cli.errors import Interrupted, MissingPackage, StorageNotFound

AsJson = typer.Option(False, "--json")
app = typer.Typer(name="offline-cli", cls=ErrorBoundary, rich_markup_mode=None, pretty_exceptions_enable=False)

@app.callback()
def root() -> None:
    """Only so that commands have names."""

def sleep_long():
    time.sleep(60)

@app.command("train")
@app.command("train-bc")
@app.command("convert")
def wait(out: str = "", as_json: bool = AsJson):
    write(sys.stdout, "" if as_json else "ready\\n")
    write(sys.stderr, "ready\\n")
    sleep_long()

@app.command()
def half_loaded(kind: str = "bug"):
    write(sys.stderr, "ready\\n")
    try:
        sleep_long()
    except BaseException:  # as some modules do around an import
        pass
    if kind == "bug":
        raise AttributeError("numpy has no matrix")
    raise {"package": MissingPackage, "place": StorageNotFound}[kind]("it is not there", where="here", fix="look")

@app.command()
def save():
    try:
        write(sys.stderr, "ready\\n")
        sleep_long()
    except KeyboardInterrupt as stop:
        raise Interrupted("stopped, update 7 is saved", where="run", fix="--resume") from stop

@app.command()
def flood(as_json: bool = AsJson):
    for _ in range(1000):
        write(sys.stdout, "x" * 1000 + "\\n")

@app.command()
def parent():
    child = multiprocessing.get_context("fork").Process(target=sleep_long)
    child.start()
    time.sleep(0.5)
    child.terminate()
    child.join()
    write(sys.stdout, str(child.exitcode))

@app.command()
def broken_elsewhere():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")

app()
'''


@pytest.fixture
def started(child_env: dict[str, str]) -> Iterator[Start]:
    """Starts the program, and gives it once it says on stderr that it is at work."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *args],
            env=child_env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background jobs ignore it
        )
        processes.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_a_command_with_its_exit_code_and_says_how_to_go_on(
    started: Start, number: int, exit_code: int, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").touch()  # a run that has begun
    process = started("train-bc", "--out", str(tmp_path))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == exit_code
    assert stderr.startswith("error: interrupted\n")
    assert "--resume" in stderr
    assert "Traceback" not in stderr


WRITTEN = {
    "a dataset": (["manifest.json"], "nothing: what was to be written to {} is complete"),
    "all parts of a split": (["train/manifest.json", "val/manifest.json"], "nothing: what was to be written to {} is complete"),
    "one part of two": (["train/manifest.json", "val/manifest.json", "val/_writing.json"], "the same command again"),
    "a dataset that is being written": (["manifest.json", "_writing.json"], "the same command with --resume"),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_an_interrupt_after_the_commit_says_what_is_complete(what: str, started: Start, tmp_path: Path) -> None:
    names, told = WRITTEN[what]
    process = started("convert", "--out", str(tmp_path))
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"try: {told.format(tmp_path)}" in stderr


def test_a_dataset_that_was_there_before_is_not_taken_for_a_committed_one(started: Start, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.utime(tmp_path / "manifest.json", (1.0, 1.0))
    process = started("convert", "--out", str(tmp_path))
    process.send_signal(signal.SIGINT)
    assert "nothing had been written" in process.communicate(timeout=30)[1]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("kind", ["bug", "package", "place"])
def test_what_fails_because_an_interrupt_was_swallowed_is_no_bug(
    kind: str, number: int, exit_code: int, started: Start
) -> None:
    process = started("half-loaded", "--kind", kind)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr.splitlines()[0]) == (exit_code, "error: interrupted")


@pytest.mark.parametrize("command", ["train", "train-bc"])
def test_both_names_of_training_say_how_to_go_on(command: str, started: Start, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    process = started(command, "--out", str(tmp_path))
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, "--resume" in stderr) == (143, True)


@pytest.mark.parametrize("option", [["--out", "{}"], ["--out={}"]])
def test_a_signal_before_anything_was_written_recommends_no_resume(started: Start, option: list[str], tmp_path: Path) -> None:
    process = started("train-bc", *(part.format(tmp_path / "run") for part in option))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" not in stderr
    assert "try: the same command again" in stderr


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_saves_its_work_may_do_so_and_keeps_the_exit_code(started: Start, number: int, exit_code: int) -> None:
    process = started("save")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr.splitlines()[0]) == (exit_code, "error: stopped, update 7 is saved")


def test_a_signal_under_json_gives_one_object(started: Start) -> None:
    process = started("train-bc", "--json")
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=30)
    told = json.loads(stdout)
    assert (told["error"]["code"], told["exit_code"]) == ("interrupted", 143)


def test_a_terminal_that_is_closed_is_a_hangup_and_no_failure_to_write(child_env: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "train-bc"],
        env=child_env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    assert b"ready" in os.read(ours, 100)
    time.sleep(0.2)
    os.close(ours)  # which is a SIGHUP; nobody can be told any more
    assert process.wait(30) == 143


def test_a_hangup_that_is_ignored_at_the_start_is_ignored(child_env: dict[str, str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_forked_worker_that_is_terminated_dies_quietly(shell: Shell) -> None:
    done = shell("-c", PROGRAM, "parent")
    assert (done.stdout, done.stderr) == (str(-signal.SIGTERM), "")


def test_the_handler_of_a_program_around_us_is_left_alone() -> None:
    def theirs(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)


def test_afterwards_sigterm_kills_as_before() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


PRINTING = (["-c", PROGRAM, "flood"], ["-m", "offline_cli", "--help"], ["-m", "offline_cli", "convert", "--help"])


@pytest.mark.parametrize("args", PRINTING, ids=("result", "help", "command-help"))
def test_a_reader_of_stdout_that_goes_away_is_no_failure_and_makes_no_noise(args: list[str], child_env: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, *args]
    done = subprocess.run(command, env=child_env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_broken_pipe_that_is_not_stdout_is_not_hidden(shell: Shell) -> None:
    done = shell("-c", PROGRAM, "broken-elsewhere")
    assert done.returncode == 1
    assert "BrokenPipeError" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("args", [*PRINTING, [*PRINTING[0], "--json"]], ids=("result", "help", "command-help", "result-json"))
def test_a_result_that_cannot_be_written_is_a_storage_failure(args: list[str], child_env: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *args], env=child_env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    assert done.stderr.startswith("error: No space left on device\n")
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_was_closed_from_the_start_is_no_failure(closed: str, child_env: dict[str, str]) -> None:
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -m offline_cli --version {closed}"], env=child_env, check=False)
    assert done.returncode == 0


STUCK = """
import sys, threading, time
from offline_cli.cli import app
import offline_cli.checking.inspect as place

def interrupted(*args, **options):
    threading.Thread(target=time.sleep, args=(600,)).start()  # the interpreter waits for it at its end
    raise KeyboardInterrupt

place.inspect = interrupted
sys.argv = ["offline-cli", "inspect", "data"]
app.main()
"""


def test_an_interrupted_command_ends_although_a_thread_of_its_does_not(child_env: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], env=child_env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert "error: interrupted" in done.stderr


@pytest.mark.nightly
def test_a_conversion_of_csv_ends_whenever_it_is_interrupted(child_env: dict[str, str], tmp_path: Path) -> None:
    rows = np.arange(200_000)
    table = pa.table({"eps_id": rows // 100, "t": rows % 100, "obs": rows / 7, "actions": rows % 2, "rewards": rows / 3})
    pyarrow.csv.write_csv(table, tmp_path / "rows.csv")
    command = [sys.executable, "-m", "offline_cli", "convert", str(tmp_path / "rows.csv"), "--overwrite"]
    codes = []
    for attempt in range(20):
        process = subprocess.Popen([*command, "--out", str(tmp_path / "out")], env=child_env, stderr=subprocess.PIPE)
        time.sleep(0.8 + attempt / 20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        codes.append(process.returncode)
        assert process.returncode in (0, 130), said.decode()
    assert 130 in codes
