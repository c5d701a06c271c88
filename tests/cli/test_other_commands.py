"""Commands that other packages register: listed by name, imported when they are called, never in place of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from installed_packages import Install
from named_commands import COMMANDS
from typer.testing import CliRunner

from offline_cli.cli.app import app

COUNTING = '''
from typing import Annotated
import typer
from offline_cli.cli import options
from offline_cli.cli.calling import call_and_show
from offline_cli.cli.command import command

class Counted:
    def __init__(self, times):
        self.times = times
    def as_dict(self):
        return {"counted": list(range(self.times))}

@command(most_used=("times",), examples=("offline-cli count",), keys=("counted",), takes=(options.common,))
def count(ctx: typer.Context, times: Annotated[int, typer.Option(help="How often.", min=1)] = 1) -> None:
    """Count up."""
    call_and_show(ctx, Counted)

def plain(times: Annotated[int, typer.Option(min=1)] = 1, as_json: Annotated[bool, typer.Option("--json")] = False,
          quiet: Annotated[bool, typer.Option("--quiet")] = False) -> None:
    """Say nothing."""
    print('{"counted": null}')
'''


@pytest.fixture
def counting(install: Install) -> Callable[..., None]:
    """Installs the package `counting-house`, with commands by name of the module `counting`."""
    return lambda **entries: install("counting-house", {"commands": entries}, counting=COUNTING)


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def called(*args: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and the object on stdout."""
    done = invoke(*map(str, args), "--json", "--quiet")
    return done.exit_code, json.loads(done.stdout)


def test_a_command_of_another_package_runs_with_its_options(counting: Callable[..., None]) -> None:
    counting(count="counting:count")
    assert called("count", "--times", 3) == (0, {"counted": [0, 1, 2], "notes": []})
    assert called("count", "--times", 0)[1]["error"]["code"] == "usage-error"


def test_a_plain_function_of_typer_is_a_command(counting: Callable[..., None]) -> None:
    counting(plain="counting:plain")
    assert called("plain") == (0, {"counted": None})


def test_help_lists_it_by_name_and_imports_nothing(install: Install) -> None:
    install("spying", {"commands": {"spied": "spying:x"}}, spying="raise AssertionError('imported')")
    for flag in ("-h", "--help"):
        shown = invoke(flag).stdout
        assert ["spied", "from", "the", "package", "spying"] in [line.split() for line in shown.splitlines()]
    assert "spying" not in sys.modules


def test_a_name_of_ours_is_ours_whoever_registers_it(install: Install) -> None:
    install("spying", {"commands": dict.fromkeys(COMMANDS, "spying:x")}, spying="raise AssertionError('imported')")
    assert "of the package spying" not in invoke("--help").stdout
    assert called("inspect", "there-is-nothing")[0] == 5
    assert "spying" not in sys.modules


@pytest.mark.parametrize("code", ["raise RuntimeError('no licence')", "import nowhere_at_all"])
def test_one_that_cannot_be_imported_is_a_missing_package(install: Install, code: str) -> None:
    install("torn-package", {"commands": {"torn": "torn:x"}}, torn=code)
    exit_code, found = called("torn")
    assert (exit_code, "command 'torn' of the package torn-package" in found["error"]["what"]) == (6, True)


def test_one_name_of_two_packages_is_refused(counting: Callable[..., None], install: Install) -> None:
    counting(count="counting:count")
    install("twin", {"commands": {"count": "counting:count"}})
    code, found = called("count")
    assert (code, "is registered by counting-house and by twin" in found["error"]["what"]) == (4, True)
