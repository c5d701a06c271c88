"""Declarations of options: complete, once, and without what belongs elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from offline_cli.cli.app import COMMANDS as NAMES
from offline_cli.cli.app import command_named
from offline_cli.cli.command_line import Command
from offline_cli.files.cache import SIZE
from offline_cli.formats.registry import AUTO
from offline_cli.formats.registry import OURS as READERS
from offline_cli.modules.encoders import ACTIVATIONS
from offline_cli.options import Declared, Option, declared_in
from offline_cli.options.networks import MlpKeys
from offline_cli.options.shared import Caching
from offline_cli.options.training import ConfigKeys
from offline_cli.training.memory_store import DEFAULT

PACKAGE = Path(__file__).resolve().parents[2] / "offline_cli"
COMMANDS = [*map(command_named, NAMES)]
FUNCTIONS = {command.name.replace("-", "_"): command for command in COMMANDS}


def every() -> list[tuple[str, Declared]]:
    """Each option of each command, and each key of the configuration."""
    of_commands = [(command.name, one) for command in COMMANDS for one in command.declared.values()]
    return of_commands + [("config.toml", one) for one in declared_in(ConfigKeys).values()]


def facts(one: Declared) -> tuple[Any, ...]:
    """What sets two options of one name apart, but for words."""
    option = one.option
    limits = option.minimum, option.above, option.maximum, option.below
    return str(one.type), one.required, option.default, limits, option.form, option.is_argument


def source(folder: str = "") -> Iterator[tuple[Path, ast.AST]]:
    """Every node of every file of the package that declares no options."""
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        if "options" not in path.relative_to(PACKAGE).parts[:-1]:
            yield from ((path, node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_option_is_both_a_keyword_of_the_function_and_of_the_command_line_alone(command: Command) -> None:
    assert not declared_in(command.flags).keys() & declared_in(command.options).keys()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_two_options_of_a_command_are_spelled_alike(command: Command) -> None:
    spelled = [name for one in command.declared.values() for name in command.shown.names(one)]
    assert len(set(spelled)) == len(spelled)


def test_options_of_one_name_that_differ_in_nothing_but_words_are_one_declaration() -> None:
    by_name: dict[str, list[tuple[str, Declared]]] = {}
    for where, one in every():
        by_name.setdefault(one.name, []).append((where, one))
    twice = [
        f"{name}: {first[0]} and {second[0]}"
        for name, found in by_name.items()
        for first, second in combinations(found, 2)
        if facts(first[1]) == facts(second[1]) and not _same_but_words(first[1].option, second[1].option)
    ]
    assert twice == []


def _same_but_words(first: Option, second: Option) -> bool:
    names = ("default", "minimum", "above", "maximum", "below", "form", "flag", "short", "negative", "in_config")
    return all(getattr(first, name) == getattr(second, name) for name in names)


def test_a_default_is_one_of_the_choices_and_within_the_limits() -> None:
    from offline_cli.options.keywords import _wrong

    for where, one in every():
        default = one.option.default
        assert default is None or not _wrong(one, default), (where, one.name)


def test_help_is_a_sentence_without_the_default_and_the_spelling_of_other_options() -> None:
    for where, one in every():
        words = one.option.help
        is_sentence = words[0].isupper() and words.endswith(".")
        assert is_sentence, (where, one.name)
        assert not re.search(r"(?i)default|(?<![\w-])--\w", words), (where, one.name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_refers_to_options_that_the_command_has(command: Command) -> None:
    declared = command.declared
    texts = [text for one in declared.values() for text in (one.option.help, one.option.without)]
    assert set(re.findall(r"\{(\w+)\}", " ".join(texts))) <= declared.keys()


def test_a_default_of_none_that_is_told_in_words_is_the_one_that_holds() -> None:
    assert declared_in(Caching)["cache_size"].option.without == f"{SIZE >> 30}GiB"
    told = declared_in(ConfigKeys)["memory_limit"].option.without
    assert re.findall(r"\d+GiB", told) == [f"{DEFAULT[device] >> 30}GiB" for device in ("cpu", "cuda")]


def test_formats_that_can_be_asked_for_are_those_that_have_a_reader() -> None:
    for command in COMMANDS:
        if "from_" in command.declared:
            assert str(command.declared["from_"].option.metavar).split("|") == [AUTO, *READERS, "NAME"]


def test_activations_that_can_be_chosen_are_those_that_there_are() -> None:
    assert declared_in(MlpKeys)["activation"].choices == tuple(ACTIVATIONS)


def test_no_function_spells_a_choice_of_words_again() -> None:
    choices = {frozenset(one.choices) for _, one in every() if one.choices}
    found = []
    for path, node in source():
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            words = [part.value if isinstance(part, ast.Constant) else None for part in node.elts]
            if frozenset(words) in choices:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {words}")
    assert found == []


def test_no_function_spells_the_default_of_an_option_again() -> None:
    defaults: dict[str, set[Any]] = {}
    for _, one in every():
        if one.option.default not in (None, False, 0, ()) and not isinstance(one.option.default, dict):
            defaults.setdefault(one.name, set()).add(one.option.default)
    found = []
    for path, node in source():
        for name, value in _defaults(node):
            if name in defaults and isinstance(value, ast.expr):
                try:
                    given = ast.literal_eval(value)
                except ValueError:
                    continue
                if not isinstance(given, dict) and (tuple(given) if isinstance(given, list) else given) in defaults[name]:
                    found.append(f"{path.relative_to(PACKAGE)}:{value.lineno}: {name} = {given!r}")
    assert found == []


def _defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and defaults of the parameters of a function, the fields of a class, or the properties of a schema."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        positional = node.args.posonlyargs + node.args.args
        yield from ((arg.arg, value) for arg, value in zip(reversed(positional), reversed(node.args.defaults), strict=False))
        yield from ((arg.arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Dict):  # parts of a schema: {"lr": {"default": 0.1}}
        for key, part in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(part, ast.Dict):
                said = {getattr(word, "value", None): value for word, value in zip(part.keys, part.values, strict=True)}
                yield str(key.value), said.get("default")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parameters_of_a_function_are_none_of_its_options(name: str) -> None:
    import inspect

    import offline_cli

    declared = declared_in(FUNCTIONS[name].options)
    own = inspect.signature(inspect.unwrap(getattr(offline_cli, name)))
    assert not own.parameters.keys() & declared.keys()
    assert {parameter.name for parameter in own.parameters.values() if parameter.kind is parameter.VAR_KEYWORD} == {"options"}
