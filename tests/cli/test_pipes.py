"""Readers of stdout that go away, and places that cannot be written to, as a shell sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Shell = Callable[..., Any]

# A program with the real boundary around commands that do what a test needs.
PROGRAM = '''
import os, sys
import typer
from offline_cli.cli.app import ErrorBoundary
from offline_cli.cli.streams import write

AsJson = typer.Option(False, "--json")
app = typer.Typer(name="offline-cli", cls=ErrorBoundary, rich_markup_mode=None, pretty_exceptions_enable=False)

@app.callback()
def root() -> None:
    """Only so that commands have names."""

@app.command()
def flood(as_json: bool = AsJson):
    for _ in range(1000):
        write(sys.stdout, "x" * 1000 + "\\n")

@app.command()
def printing():
    for _ in range(1000):
        print("x" * 1000)

@app.command()
def broken_elsewhere():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")

app()
'''


PRINTING = (["-c", PROGRAM, "flood"], ["-m", "offline_cli", "--help"], ["-m", "offline_cli", "convert", "--help"])


@pytest.mark.parametrize("args", [*PRINTING, ["-c", PROGRAM, "printing"]], ids=("result", "help", "command-help", "print"))
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
