"""Keywords of the public functions: names, defaults, signatures, documentation."""

from __future__ import annotations

import inspect
import pydoc
from typing import Annotated, Any, Required, TypedDict

import pytest

import offline_cli
from offline_cli.cli.app import COMMANDS as NAMES
from offline_cli.cli.app import command_named
from offline_cli.options import Group, Option, declared_in
from offline_cli.options.keywords import takes

FUNCTIONS = {command.name.replace("-", "_"): command for command in map(command_named, NAMES)}


def options_of_play() -> type[Any]:
    """Declared by calls, because annotations of this file are postponed."""
    return TypedDict(  # type: ignore[operator, no-any-return]
        "PlayOptions",
        {
            "episodes": Annotated[int, Option(help="Episodes to play.", group=Group.HOW_LONG, default=3, minimum=1)],
            "seed": Annotated[int | None, Option(help="Seed of {policy}.", group=Group.PLAYING, default=7, in_config=True)],
            "policy": Required[Annotated[str, Option(help="What plays.", group=Group.PLAYING)]],
        },
        total=False,
    )


Options = options_of_play()


@takes(Options)
def play(env: str, *, command: str = "", **options: Any) -> dict[str, Any]:
    """Play.

    Raises nothing.
    """
    return {"env": env, "command": command, **options}


def test_options_that_are_not_given_have_their_defaults() -> None:
    assert play("e", policy="p") == {"env": "e", "command": "", "policy": "p", "episodes": 3, "seed": 7}


def test_options_that_are_given_win() -> None:
    assert play("e", policy="p", episodes=5, command="c")["episodes"] == 5


def test_none_is_the_default_where_the_type_has_no_none_and_a_value_where_it_has() -> None:
    found = play("e", policy="p", episodes=None, seed=None)
    assert (found["episodes"], found["seed"]) == (3, None)


def test_an_unknown_keyword_is_a_type_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError) as caught:
        play("e", policy="p", epsiodes=3)
    assert str(caught.value) == "play() got an unexpected keyword argument 'epsiodes'. Did you mean 'episodes'?"


def test_all_unknown_keywords_are_named_at_once() -> None:
    with pytest.raises(TypeError, match=r"2 unexpected keyword arguments: 'epsiodes' \(did you mean 'episodes'\?\), 'x'"):
        play("e", policy="p", epsiodes=3, x=1)


def test_a_required_option_that_is_missing_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'policy'"):
        play("e")


def test_the_signature_shows_options_as_keywords_the_required_ones_first() -> None:
    assert str(inspect.signature(play)) == (
        "(env: 'str', *, policy: str, seed: int | None = 7, episodes: int = 3, command: 'str' = '') -> 'dict[str, Any]'"
    )


def test_the_documentation_lists_the_options_with_defaults_and_limits() -> None:
    assert inspect.getdoc(play) == (
        "Play.\n\nRaises nothing.\n\nOptions:\n    policy: What plays.\n    seed: Seed of `policy`. Default: 7.\n"
        "    episodes: Episodes to play. At least 1. Default: 3."
    )


def test_a_function_with_a_configuration_file_is_told_which_options_were_given() -> None:
    both = TypedDict(  # type: ignore[operator]
        "both",
        {**Options.__annotations__, "config": Annotated[str | None, Option(help="File.", group=Group.DATA)]},
        total=False,
    )
    told = takes(both)(lambda **options: options)(policy="p")
    assert (told["seed"], told["episodes"], told["config"]) == (None, 3, None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_public_function_shows_every_option_of_its_command(name: str) -> None:
    function, options = getattr(offline_cli, name), declared_in(FUNCTIONS[name].options)
    parameters = inspect.signature(function).parameters
    shown = {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert options.keys() <= shown.keys()
    assert {name for name in options if shown[name].default is inspect.Parameter.empty} == {
        name for name, one in options.items() if one.required
    }
    page = pydoc.plain(pydoc.render_doc(function))
    assert [one for one in options if f"    {one}: " not in page] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_misspelt_keyword_of_a_public_function_is_guessed(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword .* Did you mean 'storage_options'\?"):
        getattr(offline_cli, name)("somewhere", storage_option={})
