"""A command is one function with annotated parameters; the decorator says what its help shows beside them.

`-h` is one sentence, an example and the options that most people need; `--help` is everything, in panels. Other packages add
commands as entry points `offline_cli.commands`: such functions, each imported when it is called. None replaces one of ours.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from offline_cli.errors import BadConfig, UsageError

__all__ = ["About", "Page", "add", "command", "is_short", "names_of_others", "other_command"]

Function = TypeVar("Function", bound=Callable[..., Any])

GROUP: Final = b"[offline_cli.commands]"
MOST_USED: Final = 6
PANELS: Final = (None, "Data", "Learning", "Playing", "How long", "Checking", "Where", "Storage", "Output")


@dataclass(frozen=True, slots=True)
class About:
    """What the help of a command shows beside its parameters."""

    most_used: tuple[str, ...] = ()  # the parameters that most people need, at most six
    examples: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # what `--json` prints at least, kept for good
    without: tuple[str, ...] = ()  # parameters of the function that this command lacks
    sentence: str = ""  # in place of the first one of the function's docstring
    further: Callable[[Sequence[str]], list[tuple[str, str]]] | None = None  # options of what else was given with --help

    @property
    def epilog(self) -> str:
        """What stands below the options."""
        keys = f"\n\nJSON keys: {', '.join(self.keys)}" if self.keys else ""
        return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in self.examples) + keys


def command(
    *,
    most_used: tuple[str, ...],
    examples: tuple[str, ...],
    keys: tuple[str, ...] = (),
    takes: Sequence[Callable[..., None]] = (),
    further: Callable[[Sequence[str]], list[tuple[str, str]]] | None = None,
) -> Callable[[Function], Function]:
    """Decorator of a function that is a command: see `About`.

    `takes`: functions whose parameters the command has besides, in `ctx.params`; its own of the same name replace them.
    """
    assert len(most_used) <= MOST_USED

    def declare(function: Function) -> Function:
        own = signature(function)
        grouped = {name: one for group in takes for name, one in signature(group).parameters.items()}
        whole = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in {**grouped, **own.parameters}.values()]

        @wraps(function)
        def call(**given: Any) -> Any:
            return function(**{name: given[name] for name in own.parameters})

        call.__signature__ = own.replace(parameters=sorted(whole, key=lambda one: one.name not in own.parameters))  # type: ignore[attr-defined]
        call.about = About(most_used, examples, keys, further=further)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return declare


def add(app: typer.Typer, name: str, function: Callable[..., Any], about: About | None = None) -> None:
    """Add a function to `app` as the command `name`."""
    shown: About = about or getattr(function, "about", None) or About()
    page = type("Page", (Page,), {"about": shown})
    app.command(name, cls=page, epilog=shown.epilog if shown.examples else None)(function)


def is_short(ctx: Any) -> bool:
    """Whether `-h` asked for help, and not `--help`."""
    return "--help" not in getattr(ctx.find_root().obj, "args", ("--help",))


class Page(TyperCommand):
    """A command with both helps, whose options are given once."""

    about = About()
    params: list[Any]

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        left = [one for one in self.params if one.name not in self.about.without]
        self.params = sorted(
            left,
            key=lambda one: (
                one.param_type_name != "argument",
                PANELS.index(one.rich_help_panel) if one.rich_help_panel in PANELS else 0,
            ),
        )
        if self.about.sentence:
            self.help = f"{self.about.sentence}\n\n{(self.help or '').partition(chr(10) * 2)[2]}"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments and required options, then `[OPTIONS]`."""
        arguments = [one for one in self.params if one.param_type_name == "argument"]
        placed = [f"{one.metavar or one.name.upper()}{'...' if one.nargs == -1 else ''}" for one in arguments]
        shown = [name if one.required else f"[{name}]" for one, name in zip(arguments, placed, strict=True)]
        needed = [one for one in self.params if one.required and one not in arguments]
        return [*shown, *(f"{one.opts[0]} {one.display_type_rich(ctx)}" for one in needed), "[OPTIONS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short help, or all of it."""
        if is_short(ctx):
            self._write_short(ctx, formatter)
            return
        super().format_help(ctx, formatter)
        shown = self.about.further(ctx.obj.args) if self.about.further and ctx.obj else []
        if shown:
            formatter.write_dl(shown)

    def _write_short(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)))
        formatter.write_paragraph()
        formatter.write_text((self.help or "").partition("\n\n")[0].replace("\n", " "))
        if self.about.examples:
            formatter.write(f"\n  {self.about.examples[0]}\n")
        formatter.write_paragraph()
        by_name = {one.name: one for one in self.params}
        records = [by_name[name].get_help_record(ctx) for name in self.about.most_used]
        formatter.write_dl([(names.replace(" / ", ", "), text.partition(". ")[0]) for names, text in records])
        count = sum(one.param_type_name == "option" for one in self.params)
        formatter.write(f"\n--help shows all {count} options, with more examples.\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, but that it refuses two values of an option that takes one, of which typer takes the last."""
        words = [word.partition("=")[0] for word in args[: args.index("--") if "--" in args else None]]
        rest: list[str] = super().parse_args(ctx, args)
        single = [one for one in self.params if one.param_type_name == "option" and not one.multiple and not one.is_flag]
        twice = [name for one in single for name in one.opts if name.startswith("--") and words.count(name) > 1]
        if twice and not ctx.resilient_parsing:
            raise UsageError(f"given twice: {', '.join(twice)}", where=ctx.command_path, fix="give it once")
        return rest


# ---- commands of other packages ----


def names_of_others() -> Mapping[str, str]:
    """The packages of commands that are not ours, by name; none is imported."""
    if not any(map(_mentions_commands, sys.path)):
        return {}
    from offline_cli.plugins import COMMANDS, plugins

    return {one.name: one.package for one in plugins(COMMANDS)}


def _mentions_commands(folder: str) -> bool:
    """Whether a package installed there registers one: in 5 ms for 200 packages, where importlib.metadata takes 25 ms."""
    for file in glob.iglob(os.path.join(glob.escape(folder or "."), "*-info", "entry_points.txt")):
        with suppress(OSError), open(file, "rb") as opened:
            if GROUP in opened.read():
                return True
    return False


def other_command(name: str) -> Any:
    """The command that a package has registered as `name`, as typer runs it; None: there is none.

    Raises MissingPackage where it cannot be imported, BadConfig for what is no function, or is of two packages.
    """
    from offline_cli.plugins import COMMANDS, plugin

    registered = plugin(COMMANDS, name)
    if registered is None:
        return None
    found = registered.load()
    if not callable(found):
        what = f"command {name!r} of the package {registered.package} is {found!r}, not a function"
        raise BadConfig(what, where=registered.entry.value, fix="register a function with annotated parameters")
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    add(alone, name, found)
    return typer.main.get_command(alone)
