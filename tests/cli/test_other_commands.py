"""Commands that other packages register: listed by name, imported when they are called, never in place of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from installed_packages import Install
from typer.testing import CliRunner

from offline_cli.cli.app import COMMANDS, app

COUNTING = '''
from typing import Annotated, TypedDict
from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.options.option import Group, Option
class Options(TypedDict, total=False):
    """Keywords of `counted`."""
    times: Annotated[int, Option(help="How often.", group=Group.DATA, default=1, minimum=1, metavar="N")]
class Flags(TypedDict, total=False):
    """Besides."""
    as_json: Annotated[bool, Option(help="One JSON object.", group=Group.OUTPUT, default=False, flag="--json")]
    quiet: Annotated[bool, Option(help="No progress.", group=Group.OUTPUT, default=False)]
class Counted:
    def __init__(self, times):
        self.times = times
    def as_dict(self):
        return {"counted": list(range(self.times))}
def run(ctx, flags, options):
    """Count up."""
    times = options.get("times", 1)
    if times == 13:
        raise RuntimeError("not that often")
    render.show(Counted(times), as_json=flags["as_json"])
def command(name="count"):
    said = {"first": ("times",), "examples": ("offline-cli count",), "keys": ("counted",)}
    return Command(name=name, run=run, flags=Flags, options=Options, **said)
COUNT, NAMED_OTHERWISE = command(), command("tally")
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
    counting(count="counting:COUNT")
    assert called("count", "--times", 3) == (0, {"counted": [0, 1, 2]})


def test_help_lists_it_by_name_and_imports_nothing(install: Install) -> None:
    install("spying", {"commands": {"spied": "spying:x"}}, spying="raise AssertionError('imported')")
    shown = invoke("--help").stdout
    assert "Commands of other packages:" in shown
    assert ["spied", "of", "the", "package", "spying"] in [line.split() for line in shown.splitlines()]
    assert "spying" not in sys.modules


def test_a_name_of_ours_is_ours_whoever_registers_it(install: Install) -> None:
    install("spying", {"commands": dict.fromkeys(COMMANDS, "spying:x")}, spying="raise AssertionError('imported')")
    assert "other packages" not in invoke("--help").stdout
    assert called("inspect", "there-is-nothing")[0] == 5
    assert "spying" not in sys.modules


@pytest.mark.parametrize("code", ["raise RuntimeError('no licence')", "import nowhere_at_all"])
def test_one_that_cannot_be_imported_is_a_missing_package(install: Install, code: str) -> None:
    install("torn-package", {"commands": {"torn": "torn:x"}}, torn=code)
    exit_code, found = called("torn")
    assert (exit_code, "command 'torn' of the package torn-package" in found["error"]["what"]) == (6, True)


def test_one_name_of_two_packages_is_refused(counting: Callable[..., None], install: Install) -> None:
    counting(count="counting:COUNT")
    install("twin", {"commands": {"count": "counting:COUNT"}})
    code, found = called("count")
    assert (code, "is registered by counting-house and by twin" in found["error"]["what"]) == (4, True)
