"""Texts of Parquet are no bomb where the longest entry of their dictionary proves it; all others are added up as they stand."""

from __future__ import annotations

import io
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import UnsafeData
from offline_cli.parquet import safety
from offline_cli.parquet.safety import refuse_bomb

ROWS = 20_000
LONG = "x" * 5_000


def check(values: Any, *, beside: Any = None, **options: Any) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"item": values} | ({} if beside is None else {"beside": beside})), stream, **options)
    size = len(stream.getvalue())
    refuse_bomb(lambda: nullcontext(stream), pq.read_metadata(stream), lambda: size, where="test")


def test_texts_that_mostly_differ_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "_text_bytes", lambda *_: pytest.fail("they were added up"))
    check(pa.array([f"{row:0400}" for row in range(ROWS)]), beside=pa.array(["the same in all rows"] * ROWS))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([LONG] * ROWS, id="one text"),
        pytest.param(["y", *[LONG] * ROWS], id="a short one, then a long one"),
        pytest.param([None, *[LONG] * ROWS], id="a null, then one text"),
        pytest.param([[LONG]] * ROWS, id="lists"),
        pytest.param(pa.array([[LONG]] * ROWS, pa.list_(pa.string(), 1)), id="lists of one length"),
        pytest.param(pa.array([[("key", LONG)]] * ROWS, pa.map_(pa.string(), pa.string())), id="maps"),
        pytest.param([{"part": LONG}] * ROWS, id="structs"),
    ],
)
def test_a_text_that_repeats_is_refused_wherever_it_stands(values: Any) -> None:
    with pytest.raises(UnsafeData, match="unfold to at least"):
        check(values)


def test_texts_that_repeat_in_many_row_groups_are_added_up() -> None:
    with pytest.raises(UnsafeData, match="unfold to at least"):
        check(pa.array([LONG] * ROWS), row_group_size=2_000)  # 10 MB each


def test_texts_that_repeat_by_their_prefixes_are_added_up() -> None:
    with pytest.raises(UnsafeData, match="unfold to at least"):
        check(pa.array([LONG] * ROWS), use_dictionary=False, column_encoding={"item": "DELTA_BYTE_ARRAY"})


def test_small_files_are_told_by_their_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "_longest_entry", lambda *_: pytest.fail("it was opened"))
    check(pa.array([f"{row:0400}" for row in range(100)]))


def two_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Checks a small column and a large one beside each other, both within bounds; the columns that were opened, in order."""
    real, opened = safety._longest_entry, list[str]()

    def noting(stream: Any, metadata: Any, group: int, path: str) -> int | None:
        opened.append(path)
        return real(stream, metadata, group, path)

    monkeypatch.setattr(safety, "_longest_entry", noting)
    small = pa.array(["the same in all rows"] * ROWS)
    check(small, beside=pa.array([f"{row % 1000:0200}" for row in range(ROWS)]), compression="none")
    return opened


def test_smaller_texts_are_not_opened_once_the_largest_ones_dictionary_shows_that_all_is_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert two_texts(monkeypatch) == ["beside"]


def test_smaller_texts_are_opened_while_the_bound_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "MAX_BYTES", 5 << 20)  # the large one takes 4 MB
    assert two_texts(monkeypatch) == ["beside", "item"]


def test_a_bomb_in_the_second_largest_text_is_refused() -> None:
    large = pa.array([f"{row % 2000:0400}" for row in range(ROWS)])
    with pytest.raises(UnsafeData, match="unfold to at least"):
        check(pa.array(["y", *[LONG] * (ROWS - 1)]), beside=large)


def test_one_long_text_among_many_short_ones_is_no_bomb() -> None:
    check(pa.array([LONG * 50, *[str(row % 100) for row in range(ROWS)]]))


def test_a_dictionary_of_one_entry_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []

    def adding(stream: Any, metadata: Any, group: int, path: str) -> int:
        added.append(path)
        return 0

    monkeypatch.setattr(safety, "_text_bytes", adding)
    check(pa.array([LONG] * ROWS))
    assert added == ["item"]  # the entry may be that of one row which stands outside of a dictionary


class Lying:
    """A footer whose column chunks say that they hold one value."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return 1 if name == "num_values" else getattr(self._real, name)

    def row_group(self, number: int) -> Any:
        return Lying(self._real.row_group(number))

    def column(self, number: int) -> Any:
        return Lying(self._real.column(number))


def test_a_chunk_that_says_less_than_its_rows_is_counted_by_its_rows() -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([0.0]).take(pa.array([0] * (12 << 20)))}), stream, row_group_size=16 << 20)
    size = len(stream.getvalue())
    with pytest.raises(UnsafeData, match="unfold to at least"):
        refuse_bomb(lambda: nullcontext(stream), Lying(pq.read_metadata(stream)), lambda: size, where="test")
