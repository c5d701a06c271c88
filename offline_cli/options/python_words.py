"""What to try, in Python's words: keywords in place of the options of the command line, by their declarations.

Errors say it once, as a command line has it; `str` of an error is what a Python program shows, and asks here. Whole commands
(`offline-cli repair D --drop-broken`, what is between backticks) stay as they are, and so do options that Python has not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Final, is_typeddict

from offline_cli.options import data_commands, engines, exporting, networks, operations, playing, shared, training
from offline_cli.options.option import Declared, Form, declared_in

__all__ = ["COMMANDS", "in_python"]

MODULES: Final[tuple[ModuleType, ...]] = (shared, data_commands, operations, playing, networks, training, exporting, engines)
COMMANDS: Final = (
    *("record", "convert", "apply", "train", "train-bc", "evaluate", "export", "inspect"),
    *("validate", "repair", "filter", "sample", "split", "merge", "repack", "diff"),
)
KEPT: Final = rf"(?P<kept>`[^`]*`|offline-cli (?:(?!, |; | or |\)).)*|\b(?:{'|'.join(COMMANDS)}) --[a-z-]+)"
VALUE: Final = r"(?!--)(?:'[^']*'|\"[^\"]*\"|[^\s,;)]*[^\s,;):])"
OPTION: Final = rf"(?P<before>leave out |without )?(?<![\w-])(?P<flag>--[a-z][a-z-]*[a-z])(?:[ =](?P<value>{VALUE}))?"
MENTIONED: Final = re.compile(f"{KEPT}|{OPTION}")
FOR_COMMANDS: Final = re.compile(r"; --debug [^;]*")  # a program has the traceback
PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_]*")
NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
NO_PROSE: Final = re.compile(r"[A-Z0-9_:/=*.'\"-]")  # a value that has none of these is told from a word by its option
NAMED: Final = (
    "--to",
    "--from",
    "--keep",
    "--format",
    "--plugin",
    "--engine",
    "--engine-address",
)  # words of any kind follow these
OF_STORAGE: Final = ("--cache", "--cache-size")  # which Python has among the storage options
REPEATED: Final = (Form.NAMES, Form.NUMBERS)
PAIRED: Final = (Form.PAIRS, Form.SETTINGS)


def in_python(fix: str) -> str:
    """`fix` for who calls a function: `overwrite=True` for `--overwrite`, `on_error="skip"` for `--on-error skip`."""
    words, *more = fix.split("\n\n", 1)  # what follows is text to copy, such as a mapping
    told = MENTIONED.sub(_told, FOR_COMMANDS.sub("", words)).replace("the same command", "the same call")
    return "\n\n".join((told, *more))


def _told(found: re.Match[str]) -> str:
    if found["kept"] is not None:
        return found["kept"]
    before, flag, value = found["before"] or "", found["flag"], found["value"]
    rest = found[0].removeprefix(before).removeprefix(flag)
    if flag == "--out":
        return f"{before}output{rest}"  # it is given by its place
    one = _by_flag().get(flag)
    if one is None:
        return found[0]
    if one.is_flag and not before:
        return f"{one.name}={flag != one.option.negative}{rest}"
    if one.is_flag or value is None or not _is_value(flag, value, one):
        return f"{before}{_bare(flag, one)}{rest}"
    literal = _literal(value, one)
    is_ours = flag not in OF_STORAGE
    return f"{before}{one.name}={literal}" if is_ours else f"{before}storage_options={{{json.dumps(one.name)}: {literal}}}"


def _bare(flag: str, one: Declared) -> str:
    """An option of which a sentence says no value."""
    if f"{flag}s" == f"--{one.name}":
        return flag.removeprefix("--")  # one of `wrappers`
    return f"`{one.name}` of `storage_options`" if flag in OF_STORAGE else f"`{one.name}`"


def _is_value(flag: str, value: str, one: Declared) -> bool:
    """Whether the word after an option is its value, and not how the sentence goes on."""
    return flag in NAMED or value in one.choices or bool(NO_PROSE.search(value))


def _literal(value: str, one: Declared) -> str:
    """The text of a value as Python has it."""
    bare = value[1:-1] if value[0] in "'\"" and value[-1] == value[0] and len(value) > 1 else value
    if one.option.form in PAIRED:
        key, _, of_key = bare.partition("=")
        return f"{{{json.dumps(key)}: {_plain(of_key)}}}"
    if one.option.form in REPEATED:
        return f"[{bare if one.option.form is Form.NUMBERS else json.dumps(bare, ensure_ascii=False)}]"
    return bare if one.option.form is Form.JSON else _plain(bare)


def _plain(text: str) -> str:
    is_bare = PLACEHOLDER.fullmatch(text) or NUMBER.fullmatch(text)
    return text if is_bare else json.dumps(text, ensure_ascii=False)


@cache
def _by_flag() -> Mapping[str, Declared]:
    """Every option that a function takes, by the spellings of the command line."""
    found: dict[str, Declared] = {}
    for one in sorted(_declared(), key=lambda one: one.option.form in REPEATED):  # of --policy, the one that takes one policy
        for flag in filter(None, (one.flag, one.option.negative)):
            found.setdefault(flag, one)
    return found


def _declared() -> Iterator[Declared]:
    for module in MODULES:
        for kind in vars(module).values():
            if is_typeddict(kind):
                yield from (one for name, one in declared_in(kind).items() if name not in declared_in(shared.Showing))
