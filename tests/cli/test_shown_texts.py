"""What other people's texts may do to a terminal: nothing. They are shown in one line, in the order they are stored."""

from __future__ import annotations

import json
import logging
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.cli.bars import Bars
from offline_cli.cli.failures import report
from offline_cli.cli.invocation import Invocation
from offline_cli.cli.progress import Lines, working
from offline_cli.cli.render import to_json
from offline_cli.errors import BadConfig, BadData
from offline_cli.formats.tables.proposals import starting_mapping
from offline_cli.printable_text import printable
from offline_cli.progress import Progress

if TYPE_CHECKING:
    from offline_cli.episodes.batch import EpisodeBatch

ACTING = ("Cc", "Cf", "Zl", "Zp", "Cs")  # categories of characters that a terminal obeys instead of showing
FORGED = "e\nerror: all is lost\r\x1b[2J\u202e\u2066\u200e\u200f\u2028\u2029\x85\x9b31m\x7f\u200b\U000e0001"
ACTING_LETTERS = "".join(dict.fromkeys(letter for letter in FORGED if unicodedata.category(letter) in ACTING))
TEXTS = st.text(st.sampled_from("ab \u3000\u05d0\\" + ACTING_LETTERS), max_size=12)


def acting(text: str) -> set[str]:
    """The characters of a command's output, line breaks that are ours among them, that a terminal would obey."""
    return {letter for letter in text if unicodedata.category(letter) in ACTING} - {"\n"}


def told(name: str, error: BaseException) -> str:
    """What stderr says of an error of `offline-cli NAME`."""
    from io import StringIO

    before, sys.stderr = sys.stderr, StringIO()
    try:
        report(error, Invocation((name,)))
        return sys.stderr.getvalue()
    finally:
        sys.stderr = before


@given(TEXTS)
def test_text_made_printable_is_one_line_and_acts_on_nothing(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not acting(shown)
    assert "\n" not in shown


def test_letters_of_any_script_and_spaces_of_any_width_stay_as_they_are() -> None:
    assert printable("épisode 東\u3000京 \u05d0\u05d1 \U0001f916") == "épisode 東\u3000京 \u05d0\u05d1 \U0001f916"


@given(TEXTS, TEXTS, TEXTS)
@example(FORGED, FORGED, FORGED)
def test_an_error_has_three_lines_whatever_its_texts_are(what: str, where: str, fix: str) -> None:
    shown = told("inspect", BadData(f"x{what}", where=f"x{where}", fix=f"x{fix}"))
    assert re.fullmatch(r"error: x.*\n  at:  x.*\n  try: x.*\n", shown)
    assert not acting(shown)


@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_each_listed_mistake_has_one_line_whatever_it_says(mistakes: list[str]) -> None:
    lines = told("convert", BadConfig.of([f"x{one}" for one in mistakes], where="f", fix="g")).split("\n")
    assert [line[:5] for line in lines[1 : 1 + len(mistakes)]] == ["  - x"] * len(mistakes)
    assert lines[1 + len(mistakes)] == "  at:  f"


def test_a_traceback_shows_the_message_of_each_cause_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise ValueError(FORGED)
        except ValueError as cause:
            raise BadData(FORGED, where=FORGED, fix=FORGED) from cause
    except BadData as error:
        error.add_note(FORGED)
        report(error, Invocation(("inspect", "--debug")))
    shown = capsys.readouterr().err
    assert "ValueError: e\\nerror: all is lost" in shown
    assert not acting(shown)
    assert sum(line.startswith("error:") for line in shown.splitlines()) == 1


@given(TEXTS)
@example(FORGED)
def test_json_is_ascii_that_a_terminal_only_shows_and_stays_what_it_was(text: str) -> None:
    line = to_json({text: [text]})
    assert not acting(line)
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {text: [text]}


def test_progress_shows_a_stage_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(sys.stderr) as lines:
        lines(Progress(FORGED, 1, 2, "rows"))
        lines.tell(FORGED)
    with Bars() as bars:
        bars(Progress(FORGED, 1, 2, "rows"))
        bars.tell(FORGED)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "\nerror:" not in shown
    assert not acting(shown) - {"\r"}


def test_notes_and_warnings_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("offline_cli.test_of_notes")
    log.propagate = False  # as where nobody has set up logging
    with working(quiet=True):
        log.warning("note: %s", FORGED)
        sys.stderr.write(warnings.formatwarning(UserWarning("\x1b[33mWARN: " + FORGED + "\x1b[0m"), UserWarning, "f.py", 1))
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 2
    assert not acting(shown)
    assert "UserWarning: WARN: e\\nerror" in shown


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=4, unique=True))
def test_a_mapping_to_start_from_names_every_column_in_toml_that_acts_on_nothing(names: list[str]) -> None:
    import tomllib

    text = starting_mapping([f"x{name}" for name in names])
    assert not acting(text)
    obs = tomllib.loads(text)["columns"]["obs"]
    assert ([obs] if isinstance(obs, str) else obs) == [f"x{name}" for name in names]


@pytest.fixture(scope="module")
def written(recorded: EpisodeBatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes recordings whose ids, infos and extra columns are named by a text."""
    from dataclasses import replace

    from offline_cli.episodes.codec import encode_batch
    from offline_cli.tally import Tally

    def write(text: str) -> Path:
        folder = tmp_path_factory.mktemp("recording")
        few = recorded.select(slice(0, 3))
        ids = tuple(f"{number}{text}" for number in range(2))
        batch = replace(few, ids=(*ids, ids[0]))  # two different episodes of one id
        items = encode_batch(batch, where="test", tally=Tally())
        pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / "part-0.parquet")
        return folder

    return write


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
@example(text=FORGED)
def test_no_command_prints_what_acts_on_a_terminal_whatever_the_ids_are(
    text: str, written: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, out = str(written(text)), tmp_path_factory.mktemp("out")
    for number, args in enumerate(
        (
            ("inspect", source, "--on-error", "skip"),
            ("inspect", source, "--debug"),
            ("validate", source),
            ("convert", source, "--out", str(out / "a"), "--on-error", "skip", "--dry-run"),
            ("convert", source, "--out", str(out / "b"), "--on-error", "quarantine"),
            ("validate", str(out / "b"), "--deep"),
            ("apply", source, "--limit", "2", "--trace", "1"),
            ("train-bc", source, "--out", str(out / "run"), "--dry-run"),
            ("repair", str(out / "b"), "--dry-run"),
            ("inspect", str(out / f"no{text}thing".replace("/", "").replace("\0", ""))),
        )
    ):
        for json_too in ((), ("--json",)):
            done: Any = CliRunner().invoke(app, [*args, *json_too])
            assert not acting(done.stdout + done.stderr), (number, args)
            assert not any(line.startswith("error: all") for line in (done.stdout + done.stderr).splitlines())
