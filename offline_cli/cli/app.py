"""The command line: its commands, and the boundary where every error becomes a message; loads nothing heavy.

Every command parses, calls one library function and shows its result. What the function raises becomes one message and one
exit code here, from the shell and from a test runner alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from offline_cli import __version__
from offline_cli.cli.command_line import HELP_NAMES, Command, names_of_others, other_command, read_plainly, runnable
from offline_cli.cli.failures import UsageProblem, report
from offline_cli.cli.invocation import Invocation
from offline_cli.cli.streams import discard, results_alone, settle, stdout_is_closed, write
from offline_cli.stop_signals import signals_noted

__all__ = ["COMMANDS", "EXIT_CODES", "ErrorBoundary", "app", "command_named", "main"]

EXIT_CODES = """\b
Exit codes:
    0  done
    1  a bug in offline-cli
    2  wrong usage, an option out of its range, or --out exists
    3  data that cannot be read, that is invalid, or none
    4  config, environment or spaces that do not fit
    5  storage: missing, denied, unreachable, full, or written by somebody else
    6  this machine lacks a package, a device or memory
    7  a target or gate was not met
  130  interrupted (Ctrl-C), 143 terminated (SIGTERM, SIGHUP)"""

DATA: Final = "offline_cli.cli.data_commands"
LEARNING: Final = "offline_cli.cli.learning_commands"
OPERATIONS: Final = "offline_cli.cli.operation_commands"
COMMANDS: Final[Mapping[str, str]] = {
    "record": LEARNING,
    "convert": DATA,
    "apply": DATA,
    "train": LEARNING,
    "train-bc": LEARNING,
    "evaluate": LEARNING,
    "export": LEARNING,
    "inspect": DATA,
    "validate": DATA,
    "repair": DATA,
    "filter": OPERATIONS,
    "sample": OPERATIONS,
    "split": OPERATIONS,
    "merge": OPERATIONS,
    "repack": OPERATIONS,
    "diff": OPERATIONS,
}
"""Ours in the order of help, and the modules that have them, each imported when one of its commands is asked for."""


def command_named(name: str) -> Command:
    """One of COMMANDS. Raises KeyError for any other name."""
    found: Command = next(command for command in import_module(COMMANDS[name]).COMMANDS if command.name == name)
    return found


class ErrorBoundary(TyperGroup):
    """Turns every exception of a command, and every usage error, into a message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command line and exit; with `standalone_mode=False` return the exit code instead."""
        invocation = Invocation(tuple(sys.argv[1:] if args is None else args))
        extra.setdefault("obj", invocation)
        with signals_noted():
            try:
                outcome = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
                code = outcome if isinstance(outcome, int) else 0
            except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  a wrong command line, help that cannot be written
                code = report(error, invocation)
        settle()
        if standalone_mode:
            sys.exit(code)
        return code

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments before the command; `-h`, `--help` and `--version` print here."""
        return _with_quiet_pipe(lambda: super(ErrorBoundary, self).make_context(info_name, args, parent, **extra))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does."""
        read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name: ours first, then one that another package has registered."""
        return super().get_command(ctx, cmd_name) or other_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Ours with what they do; those of other packages by name, because nothing of these is imported to show help."""
        super().format_commands(ctx, formatter)
        others = [
            (name, f"of the package {package}") for name, package in names_of_others().items() if name not in self.commands
        ]
        if others:
            with formatter.section("Commands of other packages"):
                formatter.write_dl(others)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit with its exit code where it failed."""
        try:
            ctx.obj.refuse_memory()
            with results_alone() if ctx.obj.as_json else nullcontext():
                return _with_quiet_pipe(lambda: super(ErrorBoundary, self).invoke(ctx))
        except (typer.Exit, UsageProblem):
            raise
        except (KeyboardInterrupt, Exception) as error:  # the boundary: nothing passes, whatever its class
            raise typer.Exit(report(error, ctx.obj)) from error


class _OurCommands(Mapping[str, Any]):
    """COMMANDS as typer runs them, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _runnable(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _runnable(name: str) -> Any:
    return runnable(command_named(name))


class _OfflineCli(ErrorBoundary):
    """`offline-cli`: ours, and those that other packages register."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": _OurCommands()})


def _with_quiet_pipe(call: Callable[[], Any]) -> Any:
    """What `call` returns. A reader of stdout that has gone ends it early, and that is not a failure."""
    try:
        return call()
    except BrokenPipeError as error:
        if not stdout_is_closed():
            raise
        discard(sys.stdout)
        raise typer.Exit(0) from error


app = typer.Typer(
    name="offline-cli",
    cls=_OfflineCli,
    rich_markup_mode=None,  # rich would double the time that --help takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP_NAMES)},  # commands inherit them
    epilog=EXIT_CODES,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write(sys.stdout, f"offline-cli {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Record, convert and learn from offline reinforcement-learning data.

    The result of a command goes to stdout, progress and messages to stderr.
    """
    if ctx.invoked_subcommand is None:  # a script whose command came out empty should fail
        write(sys.stderr, ctx.get_help() + "\n")
        raise typer.Exit(2)


def main() -> None:
    """Entry point of the console script."""
    with signals_noted(for_good=True):
        sys.exit(app(standalone_mode=False))
