"""Remedies in Python's words: keywords for options, wherever an error is read as text."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from offline_cli import OfflineCliError, Recorder, open_dataset, record, write_dataset
from offline_cli.cli.app import COMMANDS, app
from offline_cli.errors import OutputExists
from offline_cli.options import python_words
from offline_cli.options.python_words import in_python


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        ("--overwrite to replace it, or another --out", "overwrite=True to replace it, or another output"),
        ("--no-explore, or leave out --append", "explore=False, or leave out `append`"),
        ("write it again, or --on-error skip to leave it out", 'write it again, or on_error="skip" to leave it out'),
        ("raise --memory-limit, or --workers 2", "raise `memory_limit`, or workers=2"),
        ("choose another --to; --to episodes keeps all", 'choose another `to`; to="episodes" keeps all'),
        ("--mapping FILE, or --from auto", 'mapping=FILE, or from_="auto"'),
        ("--env with the environment, not --env CartPole-v1", '`env` with the environment, not env="CartPole-v1"'),
        ("--show --env ENV", "show=True env=ENV"),
        ("--wrapper 'Clip:low=0,high=1'; correct each --wrapper", 'wrappers=["Clip:low=0,high=1"]; correct each wrapper'),
        ("--storage-option time_limit=120 waits", 'storage_options={"time_limit": 120} waits'),
        ("name it with --cache DIR", 'name it with storage_options={"cache": DIR}'),
        ("""--env-kwargs '{"a": 1}'""", 'env_kwargs={"a": 1}'),
        ("leave --network out: the run says it", "leave `network` out: the run says it"),
        ("fix the piece; --debug shows the line that raised", "fix the piece"),
        ("the same command with --resume continues", "the same call with resume=True continues"),
    ],
)
def test_options_become_keywords_with_their_values(fix: str, told: str) -> None:
    assert in_python(fix) == told


@pytest.mark.parametrize(
    "fix",
    [
        "make a dataset of the others with offline-cli repair D --drop-broken",
        "`offline-cli train-bc ... --out RUN --resume`, with what it was started with",
        "the folder that train --out made",
        "--json shows all keys, --unheard-of too",
        'To start from:\n\nobs = "--overwrite"',
    ],
)
def test_whole_commands_and_what_python_has_not_stay_as_they_are(fix: str) -> None:
    assert in_python(fix) == fix


def test_the_commands_that_are_known_in_remedies_are_all_commands() -> None:
    assert tuple(COMMANDS) == python_words.COMMANDS


def test_an_error_keeps_the_command_lines_words_for_commands_and_tells_pythons_as_text() -> None:
    error = pickle.loads(pickle.dumps(OutputExists("it is here", where="D", fix="--overwrite")))
    assert (error.fix, error.as_dict()["fix"]) == ("--overwrite", "--overwrite")
    assert str(error) == "it is here\n  at:  D\n  try: overwrite=True"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "D"
    record("CartPole-v1", str(folder), policy="random", episodes=2)
    return folder


def _record_again(dataset: Path) -> None:
    with Recorder(gym.make("CartPole-v1"), dataset) as env:
        env.reset()


def _write_again(dataset: Path) -> None:
    with open_dataset(dataset) as known:
        write_dataset(known, dataset)


@pytest.mark.parametrize("again", [_record_again, _write_again])
def test_a_program_that_would_replace_a_dataset_is_told_the_keyword(again: Any, dataset: Path) -> None:
    with pytest.raises(OfflineCliError) as caught:
        again(dataset)
    assert str(caught.value).endswith("try: overwrite=True to replace it, or another output")


def test_the_command_tells_the_option_for_the_same_error(dataset: Path) -> None:
    again = ["record", "CartPole-v1", "--out", str(dataset), "--policy", "random", "--episodes", "2", "--json"]
    done = CliRunner().invoke(app, again)
    assert json.loads(done.stdout)["error"]["fix"] == "--overwrite to replace it, or another --out"
    assert "try: --overwrite to replace it" in done.stderr
