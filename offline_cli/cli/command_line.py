"""Commands from their declarations: the parameters that typer parses, and the call with what was given.

Other packages add commands as entry points `offline_cli.commands`, each a `Command`, imported when it is called.
`offline-cli --help` lists them by name and package. A command of ours is never replaced.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from offline_cli.cli.grouped_help import Shown, page_of
from offline_cli.cli.texts import json_object, pairs, storage_options
from offline_cli.errors import BadConfig
from offline_cli.options.option import Declared, Form, declared_in

__all__ = ["Command", "add", "names_of_others", "other_command", "parse"]

METADATA: Final = (".dist-info", ".egg-info")
GROUP: Final = b"[offline_cli.commands]"

STORAGE, CACHE, CACHE_SIZE = "storage_options", "cache", "cache_size"


def names_of_others() -> Mapping[str, str]:
    """The packages of commands that are not ours, by name; none is imported."""
    if not any(map(_mentions_commands, sys.path)):
        return {}
    from offline_cli.plugins import COMMANDS, plugins

    return {one.name: one.package for one in plugins(COMMANDS)}


def _mentions_commands(folder: str) -> bool:
    """Whether a package installed there registers one: in 5 ms for 200 packages, where importlib.metadata takes 25 ms."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith(METADATA)]
    except OSError:  # no folder
        return False
    for name in names:
        with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
            if GROUP in file.read():
                return True
    return False


def other_command(name: str) -> Any:
    """The command that a package has registered as `name`, as typer runs it; None: there is none.

    Raises MissingPackage where it cannot be imported, BadConfig for what is no Command of this name, or is of two packages.
    """
    from offline_cli.plugins import COMMANDS, plugin

    registered = plugin(COMMANDS, name)
    if registered is None:
        return None
    found = registered.load()
    if not isinstance(found, Command) or found.name != name:
        said = f"the Command {found.name!r}" if isinstance(found, Command) else repr(found)
        what = f"command {name!r} of the package {registered.package} is {said}"
        fix = f"register an offline_cli.cli.command_line.Command whose name is {name!r}"
        raise BadConfig(what, where=registered.entry.value, fix=fix)
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    add(alone, found)
    return typer.main.get_command(alone)


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what its command line takes, and what runs.

    `options` are the keywords of the library function, `flags` what the command line takes besides. `run` gets the context,
    what was given of both, and calls the library once; its docstring is the command's description.
    """

    name: str
    run: Callable[[typer.Context, Any, Any], None]
    flags: type[Any]
    options: type[Any]
    first: tuple[str, ...]  # names of the options that most people need, which help shows first
    examples: tuple[str, ...]
    keys: tuple[str, ...]  # what `--json` prints at least, kept for good
    at_once: Mapping[str, Callable[[typer.Context], None]] = field(default_factory=dict)  # by flag: what it shows

    @property
    def declared(self) -> Mapping[str, Declared]:
        """All options by name."""
        return {**declared_in(self.options), **declared_in(self.flags)}

    @property
    def shown(self) -> Shown:
        """The options as help shows them."""
        return Shown(self.declared, self.first)


def add(app: typer.Typer, command: Command) -> None:
    """Make `command` one of `app`."""
    shown = command.shown
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in command.examples)
    app.command(command.name, cls=page_of(shown), epilog=epilog)(_callback(command, shown))


def _callback(command: Command, shown: Shown) -> Callable[..., None]:
    """The function whose signature typer reads."""

    def call(ctx: typer.Context, **given: Any) -> None:
        command.run(ctx, *parse(command, given))

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(name, keyword, annotation=_type(one), default=_parameter(one, shown, command.at_once.get(name)))
        for name, one in shown.declared.items()
    ]
    call.__name__, call.__doc__, call.__annotations__ = command.run.__name__, command.run.__doc__, {}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _type(one: Declared) -> Any:
    """What typer parses the text as."""
    if one.option.form in (Form.NAMES, Form.PAIRS):
        return list[str]
    return one.kind if one.option.form is Form.PLAIN else str


def _parameter(one: Declared, shown: Shown, at_once: Callable[[typer.Context], None] | None) -> Any:
    """Spelling and limit, as typer takes them; the library has the defaults, and the limits that typer has no words for."""
    option, help = one.option, shown.help_of(one)
    default = ... if one.required else False if one.is_flag else None
    if option.is_argument:
        return typer.Argument(default, metavar=option.metavar, help=help, show_default=False)
    spelled = f"{one.flag}/{option.negative}" if option.negative else one.flag
    names = [spelled, *([option.short] if option.short else ())]
    if at_once is not None:
        return typer.Option(False, *names, help=help, show_default=False, is_eager=True, callback=_answering(at_once))
    minimum = option.minimum if option.form is Form.PLAIN else None
    return typer.Option(default, *names, metavar=one.metavar or None, min=minimum, help=help, show_default=False)


def _answering(show: Callable[[typer.Context], None]) -> Callable[[typer.Context, bool], None]:
    """Shows, and ends the command, where the flag is given."""

    def answer(ctx: typer.Context, wanted: bool) -> None:
        if wanted:
            show(ctx)
            raise typer.Exit

    return answer


def parse(command: Command, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of the flags by name, and those of the options that were given, as Python takes them.

    Raises UsageError and BadConfig for wrong texts.
    """
    flags = {name: given[name] for name in declared_in(command.flags)}
    options = {}
    for name, one in declared_in(command.options).items():
        value = _value(one, given[name])
        if name == STORAGE:
            value = storage_options(given[name], cache=flags.get(CACHE), cache_size=flags.get(CACHE_SIZE))
        if value is not None and value is not False:
            options[name] = value
    return flags, options


def _value(one: Declared, given: Any) -> Any:
    """The value of one text, or several."""
    if one.option.form is Form.JSON:
        return json_object(given, option=one.flag, example=one.option.example)
    if one.option.form is Form.PAIRS and given:
        return pairs(given, option=one.flag)
    if one.option.form is Form.NAMES:
        return list(given) if given else None  # typer may say "not given" by an empty list
    return given
