"""The help page of a command: arguments, the options that most people need, then the others in groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from offline_cli.cli.without_pandas import DataCommand
from offline_cli.options.option import Declared, Form, Group

__all__ = ["FIRST", "Shown", "page_of", "placed"]

FIRST = "Most used"
REPEATED = (Form.NAMES, Form.PAIRS)


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


def page_of(shown: Shown) -> type[DataCommand]:
    """The class of the command with these options."""

    class Page(DataCommand):
        """A command whose help is in groups."""

        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            """What the usage line says after the command's name."""
            return shown.usage()

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """Write arguments and options, group by group."""
            if shown.arguments:
                with formatter.section("Arguments"):
                    formatter.write_dl([(placed(one), shown.help_of(one)) for one in shown.arguments])
            sections = {heading: [_record(one, shown) for one in members] for heading, members in shown.groups()}
            sections.setdefault(Group.OUTPUT.value, []).append(("--help", "Show this message and exit."))
            for heading, records in sections.items():
                with formatter.section(heading):
                    formatter.write_dl(records)

    return Page


def _record(one: Declared, shown: Shown) -> tuple[str, str]:
    """Spelling and meaning of an option, with what is known of its value."""
    default = shown.default_of(one)
    known = "; ".join(filter(None, ("required" if one.required else "", default and f"default: {default}", one.limits())))
    spelled = f"{', '.join(shown.names(one))} {one.metavar}".rstrip()
    return spelled, f"{shown.help_of(one)}  [{known}]" if known else shown.help_of(one)
