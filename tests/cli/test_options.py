"""Options: what the command line says as keywords of the library, limits, both helps, and what a shell completes."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from annotated_types import Ge, Le
from named_commands import COMMANDS, command_named
from typer.testing import CliRunner

import offline_cli
from offline_cli.cli.app import app
from offline_cli.cli.calling import OF_COMMANDS
from offline_cli.errors import UsageError

Call = Callable[..., Any]
RECORD = ("record", "E", "--out", "d", "-p", "random", "--episodes", "1")


def function_of(name: str) -> Any:
    return getattr(offline_cli, name.replace("-", "_"))


def limits(hint: Any) -> tuple[Any, Any]:
    """The least and the greatest that a keyword may be."""
    parts = [hint, *get_args(hint)] if get_origin(hint) is not Annotated else [hint]
    found = [one for part in parts if get_origin(part) is Annotated for one in part.__metadata__]
    return next((one.ge for one in found if isinstance(one, Ge)), None), next(
        (one.le for one in found if isinstance(one, Le)), None
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_the_function_of_its_name_have_the_same_options_with_the_same_defaults(name: str) -> None:
    keywords = dict(inspect.signature(function_of(name)).parameters)
    params = {one.name: one for one in command_named(name).params if one.name not in OF_COMMANDS}
    if name == "evaluate":  # with --offline it is another function
        keywords = {**inspect.signature(offline_cli.evaluate_offline).parameters, **keywords}
        del params["offline"], keywords["offline"]
    assert params.keys() == keywords.keys() - {"on_progress", "command"} - ({"env_to_module"} if "train" in name else set())
    for key, one in params.items():
        default = keywords[key].default
        assert one.required == (default is inspect.Parameter.empty), key
        assert one.required or one.default == default or (one.default == [] and not default), key


@pytest.mark.parametrize("name", COMMANDS)
def test_limits_are_the_same_on_the_command_line_and_in_python(name: str) -> None:
    function = function_of(name).__wrapped__
    keywords = {
        key: one.annotation for key, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY
    }
    hints = get_type_hints(type("K", (), {"__annotations__": keywords}), function.__globals__, include_extras=True)
    for one in command_named(name).params:
        if one.name in hints and (one.min, one.max) != (None, None):
            assert limits(hints[one.name]) == (one.min, one.max), one.name


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_are_spelled_alike_and_every_one_has_a_help_and_a_panel(name: str) -> None:
    params = command_named(name).params
    spelled = [word for one in params for word in (*one.opts, *one.secondary_opts)]
    assert len(set(spelled)) == len(spelled)
    assert [one.name for one in params if not one.help or (one.param_type_name == "option" and not one.rich_help_panel)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_is_a_sentence_an_example_and_six_options_in_at_most_30_lines(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "-h"]).stdout
    about = command_named(name).about
    assert len(shown.splitlines()) <= 30
    assert about.examples[0] in shown
    assert len(about.most_used) == 6
    assert all(one.opts[0] in shown for one in command_named(name).params if one.name in about.most_used)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_full_help_has_every_option_and_all_examples(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).stdout
    assert [word for one in command_named(name).params for word in one.opts if word[:2] == "--" and word not in shown] == []
    assert all(example in " ".join(shown.split()) for example in command_named(name).about.examples)


def test_the_help_of_a_function_shows_its_keywords() -> None:
    page = pydoc.plain(pydoc.render_doc(offline_cli.convert))
    assert all(f"{keyword}:" in page for keyword in ("mapping", "on_error", "max_rows_per_file"))


def test_help_with_an_algorithm_shows_its_options() -> None:
    assert "--set expectile=" in CliRunner().invoke(app, ["train", "--algorithm", "iql", "--help"]).stdout


# ---- values ----


@pytest.mark.parametrize("text", ["[1]", "gravity"])
def test_arguments_of_an_environment_are_a_json_object(text: str, call_json: Call) -> None:
    code, told = call_json(*RECORD, "--env-kwargs", text)
    assert (code, told["error"]["where"]) == (4, "--env-kwargs")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("train-bc a --out r --lr 0", "--lr"),
        ("train-bc a --out r --lr nan", "--lr"),
        ("train-bc a --out r --val-fraction 1", "--val-fraction"),
        ("train-bc a --out r --batch-size 0", "--batch-size"),
        ("train-bc a --out r --hidden 3,x", "--hidden"),
        ("train a --out r --dropout -0.5", "--dropout"),
        ("train a --out r --updates 5 --epochs 3", "--updates"),
        ("train a --out r --until-return 450", "--until-return"),
        ("train a --out r --patience 3", "--patience"),
        ("convert a --out d --resume --overwrite", "exclusive"),
        ("convert a --out d --workers 0", "--workers"),
        ("convert a --out d --limit ten", "--limit"),
        ("convert a --out d --on-error ignore", "--on-error"),
        ("filter a --out d --top-fraction 1.5", "--top-fraction"),
        ("inspect a --no-such-option", "--no-such-option"),
        ("inspect a --storage-option anon", "--storage-option"),
        ("inspect a --expect episodes", "--expect"),
    ],
)
def test_a_wrong_option_or_value_is_usage_by_its_name(words: str, option: str, call_json: Call) -> None:
    code, told = call_json(*words.split())
    assert (code, told["error"]["code"]) == (2, "usage-error")
    assert option in f"{told['error']['what']} {told['error']['where']}"


@pytest.mark.parametrize(
    ("function", "options", "named"),
    [
        ("filter", {"top_fraction": "much", "where": 5}, ["--top-fraction", "--where"]),
        ("filter", {"top_fraction": 1.5}, ["--top-fraction"]),
        ("sample", {"episodes": 2.5, "seed": "x"}, ["--episodes", "--seed"]),
        ("write_dataset", {"max_rows_per_file": 0}, ["--max-rows-per-file"]),
    ],
)
def test_wrong_values_in_python_are_named_together_before_a_place_is_looked_at(
    function: str, options: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(offline_cli, function)("no such place", tmp_path / "out", **options)
    assert all(name in caught.value.what for name in named)
    assert not list(tmp_path.iterdir())


def test_an_unknown_or_missing_keyword_is_a_type_error() -> None:
    for options in ({"polcy": "random"}, {}):
        with pytest.raises(TypeError, match=r"polcy|policy"):
            offline_cli.record("CartPole-v1", "nowhere", **options)


def test_numbers_of_numpy_and_tuples_are_values_as_any(tmp_path: Path) -> None:
    options: dict[str, Any] = {"episodes": np.int64(2), "wrappers": ("FlattenObservation",), "explore": np.bool_(False)}
    assert offline_cli.record("CartPole-v1", tmp_path / "D", policy="random", **options).episodes == 2


# ---- notes and code of others ----


def test_a_result_carries_its_notes_under_json(recording: Path, tmp_path: Path, call_json: Call) -> None:
    run = tmp_path / "run"
    assert call_json("train-bc", recording, "--out", run, "--updates", "3", "--device", "cpu")[1]["notes"] == []
    (run / "result.json").unlink()  # as of a run that was killed before its end
    told = call_json("evaluate", run, "--env", "CartPole-v1", "--episodes", "1")[1]
    assert any("checkpoint" in note for note in told["notes"])


LEAVING = """
import sys
from offline_cli.formats.reader import Reader

def leave(*args, **given):
    sys.exit(3)

LEAVING = Reader("leaving", "leaves", open=leave)
"""


def test_a_reader_of_the_users_that_exits_is_told_as_his(
    recording: Path, tmp_path: Path, call_json: Call, monkeypatch: Any
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, told = call_json("convert", recording, "--out", tmp_path / "D", "--from", "python:leaving:LEAVING")
    assert (code, "leaving" in json.dumps(told["error"])) == (3, True)


# ---- completion ----


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        ("offline-cli conv", 1, {"convert"}),
        ("offline-cli convert --mapp", 2, {"--mapping"}),
        ("offline-cli convert D --mapping gym", 4, {"gym-legacy"}),
        pytest.param("offline-cli inspect rec", 2, {"recordings/"}, marks=pytest.mark.integration),
        pytest.param("offline-cli evaluate ru", 2, {"run"}, marks=pytest.mark.integration),
        pytest.param("offline-cli train D --algorithm iq", 4, {"iql"}, marks=pytest.mark.integration),
    ],
)
def test_bash_completes_commands_options_sources_runs_and_presets(
    words: str, last: int, found: set[str], tmp_path: Path
) -> None:
    (tmp_path / "recordings").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "policy.json").touch()
    env = {**os.environ, "_OFFLINE_CLI_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
    script = "import sys; sys.argv[0] = 'offline-cli'; from offline_cli.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == found, done.stderr
