"""The command line: its commands, and the error boundary that turns exceptions into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from offline_cli import __version__
from offline_cli.cli import data_commands as data
from offline_cli.cli import learning_commands as learning
from offline_cli.cli import operation_commands as operations
from offline_cli.cli import report_commands as reports
from offline_cli.cli.command import built, is_short, names_of_others, other_command, reader_may_go
from offline_cli.cli.failures import UsageProblem, report
from offline_cli.cli.invocation import Invocation
from offline_cli.cli.streams import reader_is_gone, results_alone, settle, write
from offline_cli.stop_signals import signals_noted

__all__ = ["COMMANDS", "EXIT_CODES", "ErrorBoundary", "app", "main"]

EXIT_CODES: Final = """\b
Exit codes:
    0  done
    1  a bug in offline-cli
    2  wrong usage, an option out of its range, or --out exists
    3  data is unreadable, invalid or empty
    4  config, environment or spaces do not fit
    5  storage is missing, denied, unreachable, full, or locked by another writer
    6  a package, a device or memory is missing
    7  a target or limit was not met, or training diverged
  130  interrupted (Ctrl-C), 143 terminated (SIGTERM, SIGHUP)"""

OURS: Final = (
    *(learning.record, data.convert, data.apply, learning.train, learning.train_bc, learning.evaluate, learning.compare),
    learning.export,
    *(data.inspect, data.validate, data.repair, reports.report, reports.curves),
    *(operations.filter, operations.sample, operations.split, operations.merge, operations.repack, operations.diff),
    operations.publish,
)
COMMANDS: Final[Mapping[str, Callable[..., None]]] = {one.__name__.replace("_", "-"): one for one in OURS}
"""Commands in the order of the help; only the called one is built."""


class ErrorBoundary(TyperGroup):
    """Turns every exception of a command, and every usage error, into a message and an exit code."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: dict[str, Any] = {**self.commands, **dict.fromkeys(COMMANDS)}

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
            except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  usage errors, errors while writing help
                code = report(error, invocation)
        settle()
        if standalone_mode:
            sys.exit(code)
        return code

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments before the command; handles `--help` and `--version`."""
        with reader_may_go():
            return super().make_context(*args, **extra)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called `cmd_name`: built-in, or registered by another package."""
        if cmd_name in COMMANDS:
            return built(cmd_name, COMMANDS[cmd_name])
        return super().get_command(ctx, cmd_name) or other_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short or full help; commands of other packages by name only, because help does not import them."""
        others = [(name, f"from the package {one}") for name, one in names_of_others().items() if name not in COMMANDS]
        if not is_short(ctx):
            super().format_help(ctx, formatter)
            formatter.write("".join(f"  {name}  {text}\n" for name, text in others))
            return
        formatter.write_usage(ctx.command_path, "COMMAND ...")
        formatter.write_paragraph()
        formatter.write_text((self.help or "").partition("\n\n")[0])
        with formatter.section("Commands"):
            ours = [(name, (command.__doc__ or "").partition("\n")[0]) for name, command in COMMANDS.items()]
            formatter.write_dl([*ours, *others])
        formatter.write("\nCOMMAND -h shows the main options, --help all; --install-completion installs shell completion.\n")

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit with the exit code if it fails."""
        try:
            with results_alone() if ctx.obj.as_json else nullcontext():
                return super().invoke(ctx)
        except (typer.Exit, UsageProblem):
            raise
        except BrokenPipeError as error:  # pipes and sockets
            raise typer.Exit(0 if reader_is_gone() else report(error, ctx.obj)) from error
        except (KeyboardInterrupt, SystemExit, Exception) as error:  # catch everything
            raise typer.Exit(report(error, ctx.obj)) from error


app = typer.Typer(
    name="offline-cli",
    cls=ErrorBoundary,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit them
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
    if ctx.invoked_subcommand is None:  # a script with an empty command should fail
        write(sys.stderr, ctx.get_help() + "\n")
        raise typer.Exit(2)


def main() -> None:
    """Entry point of the console script."""
    with signals_noted(for_good=True):
        sys.exit(app(standalone_mode=False))
