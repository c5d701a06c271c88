"""What is known of an option, and the options that a TypedDict declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, ForwardRef, Literal, NotRequired, Required, TypeVar, get_args, get_origin

__all__ = ["Declared", "Form", "Group", "Option", "declared_in", "in_order", "reworded"]

Declaring = TypeVar("Declaring", bound=type)
NoneType = type(None)
WORDS = "__reworded__"

_known: dict[type[Any], Mapping[str, Declared]] = {}


class Group(Enum):
    """Under which heading help and reference pages show an option, in their order."""

    DATA = "Data"
    LEARNING = "Learning"
    PLAYING = "Playing"
    HOW_LONG = "How long"
    CHECKING = "Checking"
    WHERE = "Where"
    STORAGE = "Storage"
    OUTPUT = "Output"


class Form(Enum):
    """How the value of an option is written as text, on a command line."""

    PLAIN = "as its type says"
    FILE = "a path, where Python takes objects as well"
    SIZE = "bytes: 512MiB"
    NAMES = "one text; the option may be repeated"
    NUMBERS = "whole numbers with commas: 256,256"
    PAIRS = "KEY=VALUE; the option may be repeated"
    SETTINGS = "KEY=VALUE, the value as TOML has it; the option may be repeated"
    COMPARISONS = "KEY=VALUE, KEY>=VALUE or KEY<=VALUE; the option may be repeated"
    JSON = "a JSON object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: what it is for, what it may be, and how it is spelled.

    In `help` and `without`, `{other}` stands for another option, spelled as its reader writes it: `--other` or `other`.
    """

    help: str  # sentences for all readers: command line, Python and configuration file; defaults and limits are not in it
    group: Group
    default: Any = None  # None: there is none, or the one that `without` describes
    without: str = ""  # what holds where a default of None is left
    minimum: int | None = None  # of a list, of each item
    maximum: int | None = None
    above: float | None = None
    below: float | None = None
    in_config: bool = False  # whether a configuration file may hold it; functions that take one get None where it is not given
    form: Form = Form.PLAIN
    as_text: str = ""  # what only who writes it as text has to know
    example: str = ""  # of its value
    flag: str | None = None  # None: the name with dashes
    short: str | None = None  # -o
    negative: str | None = None  # --no-explore
    metavar: str | None = None  # what stands for the value; None: its choices
    at_once: bool = False  # a flag that answers and ends the command, whatever else is given
    is_argument: bool = False  # given by its place on the command line


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as one TypedDict declares it."""

    name: str
    type: Any  # as type checkers see it, None included
    option: Option
    required: bool

    @property
    def kind(self) -> Any:
        """The type without None."""
        if isinstance(self.type, ForwardRef) or get_origin(self.type) is None or NoneType not in get_args(self.type):
            return self.type
        some = [part for part in get_args(self.type) if part is not NoneType]
        kind = some[0]
        for part in some[1:]:
            kind |= part
        return kind

    @property
    def takes_none(self) -> bool:
        """Whether None is a value of it."""
        return NoneType in get_args(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be, where that is one of a few words; else ()."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_flag(self) -> bool:
        """Whether it is given on a command line without a value."""
        return self.kind is bool

    @property
    def flag(self) -> str:
        """How a command line spells it: `--num-envs`; of an argument, `SRC`."""
        if self.option.is_argument:
            return str(self.option.metavar)
        return self.option.flag or "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for its value in help; empty of a flag."""
        return "" if self.is_flag else self.option.metavar or "|".join(self.choices)

    def help(self, spell: Callable[[str], str]) -> str:
        """Its help, with other options as `spell` writes their names."""
        return self.option.help.format_map(_Spelled(spell))

    def default(self, spell: Callable[[str], str]) -> str:
        """Its default as text; empty where there is none, and for a flag that is off."""
        if self.option.default is None:
            return self.option.without.format_map(_Spelled(spell))
        return "" if self.option.default is False or self.option.default == () else str(self.option.default)

    def limits(self) -> str:
        """What bounds its value, as text: `at least 1`, `above 0 and below 1`; empty where nothing does, and of sizes."""
        if self.option.form is Form.SIZE:
            return ""
        low = ("at least", self.option.minimum), ("above", self.option.above)
        limits = (*low, ("at most", self.option.maximum), ("below", self.option.below))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)


class _Spelled(dict[str, str]):
    """Every name, as `spell` writes it."""

    def __init__(self, spell: Callable[[str], str]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, name: str) -> str:
        return self._spell(name)


def declared_in(options: type[Any]) -> Mapping[str, Declared]:
    """The options of a TypedDict by name, inherited ones first."""
    if options not in _known:
        _known[options] = MappingProxyType(_declared(options))
    return _known[options]


def in_order(declared: Mapping[str, Declared]) -> dict[str, Declared]:
    """Required ones first, then group by group."""
    groups = list(Group)
    return dict(sorted(declared.items(), key=lambda item: (not item[1].required, groups.index(item[1].option.group))))


def _declared(options: type[Any]) -> dict[str, Declared]:
    reworded: Mapping[str, Mapping[str, Any]] = getattr(options, WORDS, {})
    found = {}
    for name, annotation in options.__annotations__.items():
        type_, option = _parts(annotation)
        found[name] = Declared(name, type_, replace(option, **reworded.get(name, {})), name in options.__required_keys__)
    assert reworded.keys() <= found.keys(), f"{options.__name__} declares none of {reworded.keys() - found.keys()}"
    return found


def _parts(annotation: Any) -> tuple[Any, Option]:
    """Type and declaration of `Annotated[type, Option(...)]`, which may be in or around `Required[...]`."""
    while get_origin(annotation) in (Required, NotRequired):
        (annotation,) = get_args(annotation)
    assert get_origin(annotation) is Annotated, f"{annotation} has no Option"
    type_, option = get_args(annotation)
    assert isinstance(option, Option)
    return type_, option


def reworded(**words: Mapping[str, str] | str) -> Callable[[Declaring], Declaring]:
    """Decorator of a TypedDict that nothing inherits: shared options by name, with a help of their own.

    Instead of a help a mapping may be given: `help`, `metavar`, `without`.
    """

    def reword(options: Declaring) -> Declaring:
        setattr(options, WORDS, {name: {"help": text} if isinstance(text, str) else dict(text) for name, text in words.items()})
        return options

    return reword
