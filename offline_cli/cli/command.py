"""Commands: functions with annotated parameters, and a decorator for their help.

`-h` shows one sentence, an example and the main options; `--help` shows everything, in panels. Other packages add commands as
entry points `offline_cli.commands`, imported when called. They cannot replace built-in commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, getdoc, signature
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from offline_cli.errors import BadConfig

__all__ = ["About", "Page", "built", "command", "is_short", "names_of_others", "other_command", "reader_may_go"]

Function = TypeVar("Function", bound=Callable[..., Any])
Further = Callable[[Sequence[str]], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class About:
    """Help of a command besides its parameters."""

    most_used: tuple[str, ...] = ()  # main parameters, at most six
    examples: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # guaranteed keys of `--json`
    further: Further | None = None  # more options that depend on the arguments
    elsewhere: Mapping[str, str] = field(
        default_factory=dict
    )  # by option that this command leaves out: the command that has it

    @property
    def epilog(self) -> str:
        """Text below the options."""
        keys = f"\n\nJSON keys: {', '.join(self.keys)}" if self.keys else ""
        return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in self.examples) + keys


def command(
    *,
    most_used: tuple[str, ...],
    examples: tuple[str, ...],
    keys: tuple[str, ...] = (),
    takes: Sequence[Callable[..., None]] = (),
    without: Sequence[str] = (),
    further: Further | None = None,
) -> Callable[[Function], Function]:
    """Decorator for a command: see `About`.

    `takes`: functions whose parameters, except those in `without`, are added to the command, in `ctx.params`; its own take
    precedence.
    """

    def declare(function: Function) -> Function:
        own = signature(function)
        found, elsewhere = dict(own.parameters), dict[str, str]()
        for group in takes:
            theirs = signature(group).parameters
            if hasattr(group, "about"):  # a command
                elsewhere |= {f"--{name.replace('_', '-')}": group.__name__ for name in without if name in theirs}
            others = {name: one for name, one in theirs.items() if name not in without}
            found = {**found, **others, **own.parameters}
        keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in found.values()]

        @wraps(function)
        def call(**given: Any) -> Any:
            return function(**{name: given[name] for name in own.parameters})

        call.__signature__ = own.replace(parameters=keywords)  # type: ignore[attr-defined]
        call.about = About(most_used, examples, keys, further, elsewhere)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return declare


def built(name: str, function: Callable[..., Any]) -> Any:
    """Build a typer command called `name` from `function`."""
    shown: About = getattr(function, "about", About())
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich")
    page = type("Page", (Page,), {"about": shown})
    paragraphs = (getdoc(function) or "").split("\n\n")  # one line each, because rich keeps line breaks
    text = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    app.command(name, cls=page, help=text, epilog=shown.epilog if shown.examples else None)(function)
    return typer.main.get_command(app)


def is_short(ctx: Any) -> bool:
    """Whether help was requested with `-h`, not `--help`."""
    return "--help" not in getattr(ctx.find_root().obj, "args", ("--help",))


@contextmanager
def reader_may_go() -> Iterator[None]:
    """Context manager for writing help to stdout. Raises typer.Exit, with success, if the reader closed the pipe."""
    try:
        yield
    except BrokenPipeError as error:
        raise typer.Exit from error
    except SystemExit as error:  # rich turns BrokenPipeError into it
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        raise typer.Exit from error


class Page(TyperCommand):
    """A command with short and full help."""

    about = About()

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments; handles help."""
        with reader_may_go():
            return super().make_context(*args, **extra)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments and required options, then `[OPTIONS]`."""
        options = [one for one in self.params if one.required and one.param_type_name == "option"]
        needed = [f"{one.opts[0]} {one.metavar or one.name.upper()}" for one in options]
        pieces = [one.strip("{").replace("}", "") for one in super().collect_usage_pieces(ctx) if one != "[OPTIONS]"]
        return [*pieces, *needed, "[OPTIONS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short or full help."""
        if not is_short(ctx):
            super().format_help(ctx, formatter)
            if self.about.further and (shown := self.about.further(ctx.obj.args)):
                formatter.write_dl(shown)
            return
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text((self.help or "").partition("\n\n")[0])
        formatter.write("".join(f"\n  {line}\n" for line in self.about.examples[:1]))
        formatter.write_paragraph()
        params: dict[str, Any] = {one.name: one for one in self.params}
        records = [params[name].get_help_record(ctx) for name in self.about.most_used]
        formatter.write_dl([(names.replace(" / ", ", "), text.partition(". ")[0]) for names, text in records])
        count = sum(one.param_type_name == "option" for one in params.values())
        formatter.write(f"\n--help shows all {count} options, with more examples.\n")


# ---- commands of other packages ----


def names_of_others() -> Mapping[str, str]:
    """Packages of third-party commands, by command name; none is imported."""
    from offline_cli.plugins import COMMANDS, plugins

    return {one.name: one.package for one in plugins(COMMANDS)}


def other_command(name: str) -> Any:
    """The typer command that a package registered as `name`, or None.

    Raises MissingPackage if it cannot be imported, BadConfig if it is no function, or registered by two packages.
    """
    from offline_cli.plugins import COMMANDS, plugin

    registered = plugin(COMMANDS, name)
    if registered is None:
        return None
    found = registered.load()
    if not callable(found):
        what = f"command {name!r} of the package {registered.package} is {found!r}, not a function"
        raise BadConfig(what, where=registered.entry.value, fix="register a function with annotated parameters")
    return built(name, found)
