"""Rows of a CSV file keep their numbers, and rows of another length are each reported, wherever the parser's blocks end."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.formats.tables import csv_files
from offline_cli.formats.tables.csv_files import csv_batches
from offline_cli.formats.tables.mapping import CsvForm

NAMES = ["a", "b", "c"]
CELLS = st.text('ab1 ,"\n\té', max_size=6)
LENGTHS = st.one_of(st.just(3), st.just(3), st.sampled_from([1, 2, 4]))
MAPPING = '[columns]\neps_id = "e"\nobs = ["x", "y"]\nactions = "a"\ndones = "d"\n'


@st.composite
def csv_rows(draw: st.DrawFn) -> list[list[str]]:
    runs = draw(st.lists(st.tuples(LENGTHS, st.integers(1, 40)), max_size=6))  # whole blocks of bad rows are likely
    cells = draw(st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=5))
    lengths = [length for length, times in runs for _ in range(times)]
    return [cells[number % len(cells)][:length] for number, length in enumerate(lengths)]


def text_of(rows: Sequence[Sequence[str]], end: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    return text.getvalue()


def read_all(data: bytes, form: CsvForm, batch_bytes: int) -> tuple[dict[int, list[str]], dict[int, tuple[str, list[str]]]]:
    """Good rows and bad ones, by their numbers, in the order in which they come."""
    good: dict[int, list[str]] = {}
    bad: dict[int, tuple[str, list[str]]] = {}
    last = -1
    for batch, numbers, broken in csv_batches(io.BytesIO(data), "f.csv", form, NAMES, None, batch_bytes):
        assert len(broken) <= csv_files.PIECE
        here = [*numbers.tolist(), *(number for number, _, _ in broken)]
        assert not here or min(here) > last
        last = max(here, default=last)
        columns = [batch.column(name).to_pylist() for name in NAMES]
        good |= {number: [cell or "" for cell in row] for number, *row in zip(numbers.tolist(), *columns, strict=True)}
        for number, error, text in broken:
            assert error.where == f"f.csv row {number}"
            bad[number] = error.what, next(csv.reader(io.StringIO(text.decode(), newline="")))
    return good, bad


@settings(deadline=None)
@given(csv_rows(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(["utf-8", "utf-16", "latin-1", "utf-8-sig"]))
def test_every_row_is_read_or_reported_once_under_its_own_number(
    rows: list[list[str]], end: str, with_header: bool, encoding: str
) -> None:
    data = text_of([NAMES, *rows] if with_header else rows, end).encode(encoding)
    form = CsvForm(encoding=encoding, columns=None if with_header else tuple(NAMES))
    wanted = {number: row for number, row in enumerate(rows) if len(row) == 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "LEAST_BLOCK", 192)
        patch.setattr(csv_files, "PIECE", 5)
        patch.setattr(csv_files, "PIECE", 5)
        for batch_bytes in (1, 600, 1 << 20):
            good, bad = read_all(data, form, batch_bytes)
            assert good == wanted
            assert bad == {
                number: (f"a row of {len(row)} cells under 3 columns", row) for number, row in enumerate(rows) if len(row) != 3
            }


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes 100,000 rows, 2.5 MB, of 1,000 episodes; `bad`: rows that are replaced by a text."""

    def write(bad: dict[int, str], name: str = "big.csv") -> Path:
        rows = [f"ride-{n // 100},{n % 100}.25,0.5,{n % 2},{int(n % 100 == 99)}" for n in range(100_000)]
        for number, text in bad.items():
            rows[number] = text
        data = ("e,x,y,a,d\n" + "\n".join(rows) + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
        (tmp_path / "mapping.toml").write_text(MAPPING)
        return tmp_path / name

    return write


SMALL_BLOCKS = ["--memory-limit", "256MiB"]
BAD = {0: "ride-0,1", 30_123: "ride-301", 50_000: '"a\nb",1,2,3,4,5,6', 50_001: "x", 99_999: "ride-999,1"}


@pytest.mark.parametrize("name", ["big.csv", "big.csv.gz"])
def test_short_and_long_rows_in_a_file_of_many_blocks_are_quarantined_with_their_place(
    name: str, table: Callable[..., Path], tmp_path: Path
) -> None:
    out, mapping = tmp_path / "out", str(tmp_path / "mapping.toml")
    said = ["--on-error", "quarantine", "--json", *SMALL_BLOCKS]
    ended = CliRunner().invoke(app, ["convert", str(table(BAD, name)), "--out", str(out), "--mapping", mapping, *said])
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)
    assert result["rows_in"] == 100_000
    rows = pq.read_table(out / "quarantine").to_pylist()
    ragged = {row["where"]: row["raw"].decode() for row in rows if "cells under 5 columns" in row["reason"]}
    assert ragged == {f"{tmp_path / name} row {number}": text for number, text in BAD.items()}
    assert result["episodes"] == 1000 - len({0, 301, 500, 999})  # those that the rows belonged to
