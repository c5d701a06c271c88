"""Commands from their declarations: the parameters that typer parses, the call with what was given, and the help page.

A page shows arguments, the options that most people need, then the others in groups. Texts are read here: typer loads pydantic
(0.1 s) for each, and is asked only for the words of what is wrong with one.

Other packages add commands as entry points `offline_cli.commands`, each a `Command`, imported when it is called.
`offline-cli --help` lists them by name and package. A command of ours is never replaced.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin

import typer

from offline_cli.cli.failures import refuse_tight
from offline_cli.cli.texts import comparisons, json_object, pairs, settings, storage_options, whole_numbers
from offline_cli.cli.without_pandas import DataCommand
from offline_cli.errors import BadConfig, UsageError
from offline_cli.options.option import Declared, Form, Group, declared_in

__all__ = [
    "FIRST",
    "HELP_NAMES",
    "Command",
    "Shown",
    "names_of_others",
    "other_command",
    "parse",
    "placed",
    "read_plainly",
    "runnable",
]

FIRST: Final = "Most used"
HELP_NAMES: Final = ("-h", "--help")
REPEATED: Final = (Form.NAMES, Form.PAIRS, Form.SETTINGS, Form.COMPARISONS)
WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)

METADATA: Final = (".dist-info", ".egg-info")
GROUP: Final = b"[offline_cli.commands]"

GIVEN: Final = "offline_cli.given"  # where the arguments of a command line are kept for its help
Further = Callable[[Sequence[str]], Mapping[str, list[tuple[str, str]]]]
"""Further sections of a help page, of what else was given with --help: headings, and pairs of spelling and meaning."""

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
    return runnable(found)


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
    address_space: int = 0  # bytes that its libraries take, where they end the process if there are fewer
    further: Further | None = None  # what its help shows besides

    @property
    def declared(self) -> Mapping[str, Declared]:
        """All options by name."""
        return {**declared_in(self.options), **declared_in(self.flags)}

    @property
    def shown(self) -> Shown:
        """The options as help shows them."""
        return Shown(self.declared, self.first)


def runnable(command: Command) -> Any:
    """`command` as typer runs it."""
    shown = command.shown
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in command.examples)
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    alone.command(command.name, cls=page_of(shown, command.further), epilog=epilog)(_callback(command, shown))
    return typer.main.get_command(alone)


def _callback(command: Command, shown: Shown) -> Callable[..., None]:
    """The function whose signature typer reads."""

    def call(ctx: typer.Context, **given: Any) -> None:
        parsed = parse(command, given)
        refuse_tight(command.address_space)
        command.run(ctx, *parsed)

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
    if one.option.form in REPEATED:
        return list[str]
    return one.kind if one.option.form is Form.PLAIN else str


def _parameter(one: Declared, shown: Shown, at_once: Callable[[typer.Context], None] | None) -> Any:
    """Spelling, as typer takes it; the library has the defaults, and `parse` asks for the limits."""
    option, help = one.option, shown.help_of(one)
    default = ... if one.required else False if one.is_flag else None
    if option.is_argument:
        return typer.Argument(default, metavar=option.metavar, help=help, show_default=False)
    spelled = f"{one.flag}/{option.negative}" if option.negative else one.flag
    names = [spelled, *([option.short] if option.short else ())]
    if at_once is not None:
        return typer.Option(False, *names, help=help, show_default=False, is_eager=True, callback=_answering(at_once))
    return typer.Option(default, *names, metavar=one.metavar or None, help=help, show_default=False)


def _answering(show: Callable[[typer.Context], None]) -> Callable[[typer.Context, bool], None]:
    """Shows, and ends the command, where the flag is given."""

    def answer(ctx: typer.Context, wanted: bool) -> None:
        if wanted:
            show(ctx)
            raise typer.Exit

    return answer


def parse(command: Command, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of the flags by name, and those of the options that were given, as Python takes them.

    Raises UsageError and BadConfig for wrong texts, UsageError for values outside the limits that are declared.
    """
    from offline_cli.options.keywords import check_values

    flags = {name: given[name] for name in declared_in(command.flags)}
    options = {}
    for name, one in declared_in(command.options).items():
        value = _value(one, given[name])
        if name == STORAGE:
            value = storage_options(given[name], cache=flags.get(CACHE), cache_size=flags.get(CACHE_SIZE))
        if value is not None and value is not False:
            options[name] = value
    check_values(command.options, options, command=f"offline-cli {command.name}")
    return flags, options


def _value(one: Declared, given: Any) -> Any:
    """The value of one text, or several."""
    if one.option.form is Form.JSON:
        return json_object(given, option=one.flag, example=one.option.example)
    if one.option.form is Form.NUMBERS and given is not None:
        return whole_numbers(given, option=one.flag)
    if one.option.form is Form.PAIRS and given:
        return pairs(given, option=one.flag)
    if one.option.form is Form.SETTINGS and given:
        return settings(given, option=one.flag)
    if one.option.form is Form.COMPARISONS and given:
        return comparisons(given, option=one.flag)
    if one.option.form is Form.NAMES:
        return list(given) if given else None  # typer may say "not given" by an empty list
    return given


# ---- texts as values ----


def read_plainly(params: Iterable[Any]) -> None:
    """Have `_Plain` read the texts of these parameters of typer."""
    for param in params:
        if hasattr(param, "get_runtime_param") and not isinstance(param.__dict__.get("get_runtime_param"), _Plain):
            param.get_runtime_param = _Plain(param.type_descriptor.annotation, param.get_runtime_param)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Reads the text of one parameter where it is plainly what its type says; else typer does, or words what is wrong."""

    kind: Any
    theirs: Callable[[], Any]

    def __call__(self) -> _Plain:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of a text, or of several; None where it is not given."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self.kind == list[str]:
            return list(value)
        is_plain = isinstance(value, str) and (
            self.kind is str
            or (self.kind is int and WHOLE.fullmatch(value))
            or (self.kind is float and NUMBER.fullmatch(value))
            or (get_origin(self.kind) is Literal and value in get_args(self.kind))
        )
        if not is_plain:
            return self.theirs().coerce(value, param=param, ctx=ctx)
        return self.kind(value) if self.kind in (int, float) else value


# ---- help ----


class Shown:
    """Options of one command as text."""

    def __init__(self, declared: Mapping[str, Declared], first: Collection[str]) -> None:
        assert declared.keys() >= set(first), f"not among the options: {set(first) - declared.keys()}"
        left = {name for name, one in declared.items() if one.required and not one.option.is_argument} - set(first)
        assert not left, f"required, and not among the first: {left}"
        self.declared = declared
        self._first = first

    @property
    def arguments(self) -> list[Declared]:
        """What is given by its place."""
        return [one for one in self.declared.values() if one.option.is_argument]

    def groups(self) -> Iterator[tuple[str, list[Declared]]]:
        """Headings and their options: those that most people need, then the others; no group is empty."""
        yield FIRST, [self.declared[name] for name in self._first]
        others = [one for name, one in self.declared.items() if name not in self._first and not one.option.is_argument]
        for group in Group:
            members = [one for one in others if one.option.group is group]
            if members:
                yield group.value, members

    def help_of(self, one: Declared) -> str:
        """What it is for, with other options as the command line spells them."""
        repeated = "May be repeated." if one.option.form in REPEATED else ""
        return " ".join(filter(None, (one.help(self.spelled), repeated, one.option.as_text)))

    def default_of(self, one: Declared) -> str:
        """Its default as text; empty where there is none."""
        if one.option.form is Form.NUMBERS:
            return ",".join(map(str, one.option.default))
        return one.default(self.spelled)

    def meaning(self, one: Declared) -> str:
        """Its help and the limits of its value."""
        limits = one.limits()
        return f"{self.help_of(one)} {limits[0].upper()}{limits[1:]}." if limits else self.help_of(one)

    def names(self, one: Declared) -> list[str]:
        """How an option may be spelled."""
        return [name for name in (one.option.short, one.flag, one.option.negative) if name]

    def usage(self) -> list[str]:
        """What follows the name of the command: arguments, required options, the others."""
        needed = [one for name in self._first if (one := self.declared[name]).required]
        return [*map(placed, self.arguments), *(f"{one.flag} {one.metavar}" for one in needed), "[OPTIONS]"]

    def spelled(self, name: str) -> str:
        """An option as the command line spells it."""
        return self.declared[name].flag if name in self.declared else name


def placed(one: Declared) -> str:
    """An argument as usage lines show it: `SRC...`, `[SRC...]`."""
    name = f"{one.option.metavar}..." if one.kind == list[str] else str(one.option.metavar)
    return name if one.required else f"[{name}]"


def page_of(shown: Shown, further: Further | None = None) -> type[DataCommand]:
    """The class of the command with these options."""

    class Page(DataCommand):
        """A command whose help is in groups."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """As typer does."""
            read_plainly(self.get_params(ctx))
            ctx.meta[GIVEN] = tuple(args)
            return super().parse_args(ctx, args)

        def make_parser(self, ctx: Any) -> Any:
            """As typer does, for options that are given once."""
            return _once(super().make_parser(ctx), ctx, shown)

        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            """What the usage line says after the command's name."""
            return shown.usage()

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """Write arguments and options, group by group."""
            if shown.arguments:
                with formatter.section("Arguments"):
                    formatter.write_dl([(placed(one), shown.help_of(one)) for one in shown.arguments])
            sections = {heading: [_record(one, shown) for one in members] for heading, members in shown.groups()}
            sections.setdefault(Group.OUTPUT.value, []).append((", ".join(HELP_NAMES), "Show this message and exit."))
            if further is not None:
                first = {FIRST: sections.pop(FIRST)} | dict(further(ctx.meta.get(GIVEN, ())))
                sections = first | sections
            for heading, records in sections.items():
                with formatter.section(heading):
                    formatter.write_dl(records)

    return Page


def _once(parser: Any, ctx: Any, shown: Shown) -> Any:
    """`parser`, which raises UsageError for two values of an option that has one, where typer's takes the last in silence."""
    theirs = parser.parse_args
    single = {option.dest: option for option in parser._long_opt.values() if option.action == "store"}
    for option in single.values():
        option.action = "append"

    def parse_args(args: list[str]) -> Any:
        values, left, order = theirs(args=args)
        found = {name: values[name] for name in single if name in values}
        values.update({name: given[-1] for name, given in found.items()})
        twice = {shown.declared[name]: given for name, given in found.items() if len(given) > 1}
        if twice and not ctx.resilient_parsing:
            told = "; ".join(f"{one.flag} is given twice: {', '.join(map(repr, given))}" for one, given in twice.items())
            once = "; ".join(". ".join(filter(None, (f"{one.flag} {one.metavar}", one.option.as_text))) for one in twice)
            raise UsageError(told, where=f"offline-cli {ctx.info_name}", fix=f"give it once: {once}")
        return values, left, order

    parser.parse_args = parse_args
    return parser


def _record(one: Declared, shown: Shown) -> tuple[str, str]:
    """Spelling and meaning of an option, with what is known of its value."""
    default = shown.default_of(one)
    known = "; ".join(filter(None, ("required" if one.required else "", default and f"default: {default}", one.limits())))
    spelled = f"{', '.join(shown.names(one))} {one.metavar}".rstrip()
    return spelled, f"{shown.help_of(one)}  [{known}]" if known else shown.help_of(one)
