"""Conditions of `filter --where`: what they mean, and what they refuse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_cli.converting.operations.selecting import PLAIN_COLUMNS, Condition
from offline_cli.datasets.row_format import PLAIN_SCHEMA
from offline_cli.errors import UsageError

NAN = float("nan")
ROWS: list[tuple[Any, ...]] = [
    ("a", 10, 1.5, True, False, None, None),
    ("b", 20, NAN, False, True, "agent_0", "it's"),
    ("c", 0, -3.0, False, False, "agent_1", "p0"),
]


def table() -> Any:
    return pa.table([pa.array(column) for column in zip(*ROWS, strict=True)], schema=PLAIN_SCHEMA)


def chosen(text: str) -> tuple[str, int]:
    """The ids of the episodes for which it is true, and for how many it is null."""
    holds, undecided = Condition.parsed(text).holds(table())
    return "".join(row[0] for row, is_true in zip(ROWS, holds, strict=True) if is_true), undecided


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("length > 5", ("ab", 0)),
        ("terminated or truncated", ("ab", 0)),
        ("not terminated and not truncated or length = 20", ("bc", 0)),
        ("not (terminated or truncated)", ("c", 0)),
        ("LENGTH BETWEEN 10 AND 20", ("ab", 0)),
        ("length in (10, 0)", ("ac", 0)),
        ("eps_id in ('a', \"c\") and length <> 0", ("a", 0)),
        ("module_id = 'it''s'", ("b", 1)),
        ('module_id = "it\'s"', ("b", 1)),
        ('"return" > 0', ("a", 1)),
        ("module_id is null", ("a", 0)),
        ("agent_id is not null", ("bc", 0)),
        ("terminated != truncated", ("ab", 0)),
        ("length + 2 * 3 = 16", ("a", 0)),
        ("(length + 2) * 3 = 36", ("a", 0)),
        ("length % 3 = 1", ("a", 0)),
        ("length / 4 = 2.5", ("a", 0)),
        ("length * 9223372036854775807 < 0", ("", 0)),
        # null, as in SQL
        ("return > 0", ("a", 1)),
        ("not (return > 0)", ("c", 1)),
        ("return > 0 or length = 20", ("ab", 0)),
        ("return is null", ("b", 0)),
        ("return in (1.5, 2)", ("a", 1)),
        ("100 / length > 1", ("abc", 0)),
    ],
)
def test_it_means_what_sql_means(text: str, want: tuple[str, int]) -> None:
    assert chosen(text) == want


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("reward > 5", "reward"),
        ("return > 5 and retrun < 8", "retrun"),
        ("item = 'x'", "item"),
        ("sum(return) > 5", "sum"),
        ("cast(length as int) = 3", "cast"),
        ("eps_id like 'a%'", "like"),
        ("case when terminated then 1 else 0 end = 1", "case"),
        ("length::int > 3", "::"),
        ("length(eps_id) > 3", "length"),
        ('"length"(eps_id) > 3', "length"),
    ],
)
def test_what_is_not_in_the_allow_list_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        Condition.parsed(text)
    assert caught.value.exit_code == 2
    assert caught.value.details["token"] == named
    assert all(name in caught.value.fix for name in PLAIN_COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        *("", "length >", "length > and 5", "length", "(length > 5", "eps_id > 5", "length in (1, 'a')"),
        *("return > 0 terminated", "terminated truncated", "length > 1 'x'"),
        *("length > 5; drop table x", "length in (select 1)", "length > 5 -- comment\n or x", "exists (select 1)"),
        *("(" * 5000 + "terminated" + ")" * 5000, "-" * 5000 + "1 > 0", "1" + "+1" * 6000 + " > 0"),
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Condition.parsed(text)


@given(st.text(alphabet=st.sampled_from("()<>=!+-*/%,'\" .0159eabcdeflnrtu_"), max_size=40) | st.text(max_size=20))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = Condition.parsed(text)
    except UsageError:
        return
    holds, undecided = condition.holds(table())
    assert len(holds) == 3
    assert holds.sum() + undecided <= 3
