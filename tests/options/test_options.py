"""Options of commands and functions: declared once, and checked before anything is read."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pydoc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_cli
from offline_cli.cli.app import COMMANDS as NAMES
from offline_cli.cli.app import command_named
from offline_cli.errors import UsageError
from offline_cli.json_documents import load_schema
from offline_cli.options import declared_in
from offline_cli.options.keywords import schema_of
from offline_cli.options.training import ConfigKeys
from offline_cli.training.config import BCConfig

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = [command_named(name) for name in NAMES]
CALLS = """
from offline_cli import convert, evaluate, record, train_bc

convert("recordings", "dataset", to="columns", limit=10, memory_limit="2GiB")
record("CartPole-v1", "dataset", policy="random", episodes=3).episodes
train_bc(["dataset"], "run", lr=0.1, device="cuda")
convert("recordings", "dataset", on_error="ignore")
convert("recordings", "dataset", limit="10")
record("CartPole-v1", "dataset", episodes=3)
record("CartPole-v1", "dataset", policy="random", epsiodes=3)
"""
MYPY = """
[mypy]
strict = true
follow_imports = skip
ignore_missing_imports = true
[mypy-offline_cli,offline_cli.options.*,offline_cli.converting.convert,offline_cli.recording.record,offline_cli.playing.evaluate,offline_cli.training.train]
follow_imports = silent
"""  # what is behind the signatures takes mypy two minutes


def test_defaults_are_within_choices_and_limits_and_no_two_options_of_a_command_are_spelled_alike() -> None:
    for command in COMMANDS:
        spelled = [name for one in command.declared.values() for name in command.shown.names(one)]
        assert len(set(spelled)) == len(spelled), command.name
        for one in command.declared.values():
            default, option = one.option.default, one.option
            if isinstance(default, int | float) and not isinstance(default, bool):
                assert option.minimum is None or default >= option.minimum, one.name
                assert option.maximum is None or default <= option.maximum, one.name


def test_each_public_function_shows_every_option_of_its_command() -> None:
    for command in COMMANDS:
        function, options = getattr(offline_cli, command.name.replace("-", "_")), declared_in(command.options)
        parameters = inspect.signature(function).parameters
        shown = {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
        assert options.keys() <= shown.keys(), command.name
        required = {name for name in options if shown[name].default is inspect.Parameter.empty}
        assert required == {name for name, one in options.items() if one.required}
        page = pydoc.plain(pydoc.render_doc(function))
        assert [one for one in options if f"    {one}: " not in page] == []


def test_keys_of_the_configuration_are_those_of_the_published_schema() -> None:
    def without_words(properties: dict[str, Any]) -> dict[str, Any]:
        return {name: {word: key[word] for word in key if word != "description"} for name, key in properties.items()}

    published = load_schema(max(file.name for file in (REPOSITORY / "schemas").glob("config.v*.json")))
    assert without_words(schema_of(ConfigKeys)) == without_words(published["properties"])
    assert {field.name for field in fields(BCConfig)} == declared_in(ConfigKeys).keys()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"polcy": "random"}, ["polcy", "policy"]),
        ({"policy": "random", "x": 1, "epsiodes": 2}, ["x", "epsiodes"]),
        ({}, ["policy"]),
    ],
)
def test_unknown_and_missing_keywords_are_type_errors_that_name_them_all(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        offline_cli.record("CartPole-v1", "nowhere", **options)
    assert all(f"'{name}'" in str(caught.value) for name in named)


@pytest.mark.parametrize(
    ("function", "options", "named"),
    [
        ("filter", {"top_fraction": "0.1", "where": 5}, ["--top-fraction", "--where"]),
        ("filter", {"top_fraction": 1.5}, ["--top-fraction"]),
        ("sample", {"episodes": 2.5, "seed": "x"}, ["--episodes", "--seed"]),
        ("write_dataset", {"max_rows_per_file": "3"}, ["--max-rows-per-file"]),
    ],
)
def test_wrong_values_are_named_together_before_a_place_is_looked_at(
    function: str, options: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(offline_cli, function)("no such place", tmp_path / "out", **options)
    assert all(name in caught.value.what for name in named)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_and_tuples_are_values_as_any(tmp_path: Path) -> None:
    options: dict[str, Any] = {"episodes": np.int64(2), "wrappers": ("FlattenObservation",), "explore": np.bool_(False)}
    assert offline_cli.record("CartPole-v1", tmp_path / "D", policy="random", **options).episodes == 2


@pytest.mark.integration
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_right_calls_and_names_each_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    env = {**os.environ, "MYPYPATH": str(REPOSITORY)}
    words = [sys.executable, "-m", "mypy", "calls.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == ["7", "8", "9", "10"], done.stdout
