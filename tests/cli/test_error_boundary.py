"""Whatever a command raises becomes one message and one exit code."""

from __future__ import annotations

import errno
import json
import signal
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from offline_cli.cli.app import ErrorBoundary
from offline_cli.errors import BadConfig, BadData, Interrupted, OfflineCliError, TargetNotMet
from offline_cli.stop_signals import StopRequested

RAISED: dict[str, BaseException] = {
    "data": BadData("row 3 is cut", where="a.parquet", fix="copy it again"),
    "config": BadConfig.of(["no lr", "no env"], where="config.toml", fix="name both"),
    "gate": TargetNotMet("mean 3 is below 5", where="run", fix="train longer", details={"return_mean": float("nan")}),
    "saved": Interrupted("stopped at update 7", where="run", fix="--resume", details={"exit_code": 143}),
    "ctrl-c": KeyboardInterrupt(),
    "sigterm": StopRequested(signal.SIGTERM),
    "bug": ZeroDivisionError("division by zero"),
    "memory": MemoryError(),
    "package": ModuleNotFoundError("No module named 'h5py'", name="h5py"),
    "disk": OSError(errno.ENOSPC, "No space left on device", "/data/shard"),
    "path": FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere"),
    "escape": BadData("episode \x1b[2J is cut", where="a.parquet", fix="copy it again"),
}


def boundary_around(error: BaseException) -> typer.Typer:
    """An app whose one command, `fail`, raises `error`."""
    app = typer.Typer(name="offline-cli", cls=ErrorBoundary, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None:
        """Only so that commands have names."""

    @app.command()
    def fail(
        as_json: Annotated[bool, typer.Option("--json")] = False,
        debug: Annotated[bool, typer.Option("--debug")] = False,
        number: Annotated[int, typer.Option("--number", min=1)] = 1,
    ) -> None:
        raise error

    return app


def run(name: str, *args: str) -> Any:
    return CliRunner().invoke(boundary_around(RAISED[name]), ["fail", *args])


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("data", 3),
        ("config", 4),
        ("gate", 7),
        ("ctrl-c", 130),
        ("sigterm", 143),
        ("bug", 1),
        ("memory", 6),
        ("package", 6),
        ("disk", 5),
        ("path", 5),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(name: str, exit_code: int) -> None:
    assert run(name).exit_code == exit_code


@pytest.mark.parametrize("name", RAISED)
def test_with_json_a_failure_is_one_valid_object_on_stdout(name: str) -> None:
    done = run(name, "--json")
    told = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert told["exit_code"] == done.exit_code
    assert {"code", "what", "where", "fix"} <= told["error"].keys()


def test_nan_in_the_details_becomes_null() -> None:
    assert json.loads(run("gate", "--json").stdout)["error"]["return_mean"] is None


def test_a_missing_package_of_an_extra_names_the_line_that_installs_it() -> None:
    assert "try: pip install 'offline-cli[hdf5]'" in run("package").stderr


def test_a_bug_names_its_place_and_asks_for_a_report() -> None:
    stderr = run("bug").stderr
    assert "ZeroDivisionError: division by zero" in stderr
    assert "--debug" in stderr
    assert "line" in stderr


@pytest.mark.parametrize(
    "args", [["fail", "--nonsense"], ["fail", "--number", "0"], ["fail", "--number", "many"], ["fial"], ["fail", "surplus"]]
)
def test_a_wrong_command_line_is_exit_2_in_words_and_in_json(args: list[str]) -> None:
    app = boundary_around(OfflineCliError("never raised", where="", fix=""))
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    as_json = CliRunner().invoke(app, [*args, "--json"])
    assert json.loads(as_json.stdout)["error"]["code"] == "usage-error"
    assert as_json.exit_code == 2
