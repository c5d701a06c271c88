"""What other people's texts may do to a terminal: nothing. They are shown in one line, in the order they are stored."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.cli.failures import report
from offline_cli.cli.invocation import Invocation
from offline_cli.cli.render import to_json
from offline_cli.errors import BadData
from offline_cli.printable_text import printable

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


@given(TEXTS, TEXTS, TEXTS)
@example(FORGED, FORGED, FORGED)
def test_an_error_has_three_lines_whatever_its_texts_are(what: str, where: str, fix: str) -> None:
    shown = told("inspect", BadData(f"x{what}", where=f"x{where}", fix=f"x{fix}"))
    assert re.fullmatch(r"error: x.*\n  at:  x.*\n  try: x.*\n", shown)
    assert not acting(shown)


@given(TEXTS)
@example(FORGED)
def test_json_is_ascii_that_a_terminal_only_shows_and_stays_what_it_was(text: str) -> None:
    line = to_json({text: [text]})
    assert not acting(line)
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {text: [text]}


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


def test_no_command_prints_what_acts_on_a_terminal_whatever_the_ids_are(
    written: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = FORGED
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
