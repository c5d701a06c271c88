"""Conditions on the plain columns of episodes: what follows WHERE in SQL, of words and signs of an allow-list; DuckDB decides.

Names of columns, numbers and texts; comparisons, arithmetic, `in`, `between`, `is null`, `and`, `or`, `not`: any other word or
sign (functions, casts, subqueries) is refused by name, so that a command line reaches nothing else. Texts take either kind of
quotes, and numbers are float64. As in SQL, null makes null of whatever it would decide; a division by zero is null, and so is a
return that is NaN.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import UsageError

__all__ = ["PLAIN_COLUMNS", "Condition"]

PLAIN_COLUMNS: Final = (
    *(Columns.EPS_ID, Columns.LENGTH, Columns.RETURN, Columns.TERMINATED),
    *(Columns.TRUNCATED, Columns.AGENT_ID, Columns.MODULE_ID),
)
"""The columns that conditions name."""
NUMBERS: Final = (Columns.LENGTH, Columns.RETURN)
FLAGS: Final = (Columns.TERMINATED, Columns.TRUNCATED)
WORDS: Final = frozenset({"and", "or", "not", "in", "between", "is", "null", "true", "false"})
TOKEN: Final = re.compile(
    r"""(?P<space>\s+) | (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") | (?P<word>[^\W\d]\w*)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    | (?P<sign><=|>=|<>|!=|==|-(?!-)|/(?!\*)|[=<>+*%(),]) | (?P<other>\W{1,2}|.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
CLOSED: Final[dict[str, Any]] = {"enable_external_access": False, "autoinstall_known_extensions": False}
"""Settings of DuckDB by which it reaches nothing else."""
OFF: Final = ("ieee_floating_point_ops", "error_on_division_by_zero")
"""Settings without which a division by zero is null, as far as a version of DuckDB has them."""
LONGEST: Final = 10_000  # letters
DEEPEST: Final = 100  # parentheses
MOST: Final = 1000  # tokens
FIX: Final = f'for example --where "return > 450 and length < 500"; columns: {", ".join(PLAIN_COLUMNS)}'


@dataclass(frozen=True, slots=True)
class Condition:
    """What decides, for each episode, whether it is chosen."""

    text: str
    columns: frozenset[str]  # those that it names
    sql: str

    @classmethod
    def parsed(cls, text: str) -> Condition:
        """The condition that `text` is. Raises UsageError, naming what cannot be taken."""
        if len(text) > LONGEST:
            raise _wrong(f"the condition has more than {LONGEST:,} letters")
        found = [(str(match.lastgroup), match[0]) for match in TOKEN.finditer(text) if match.lastgroup != "space"]
        depth, columns, parts = 0, set[str](), list[str]()
        for (kind, word), (_, after) in zip(found, [*found[1:], ("", "")], strict=False):
            name = word.strip('"').lower()
            if name in PLAIN_COLUMNS and kind in ("word", "quoted") and after != "(":
                columns.add(name)
                parts.append(f'"{name}"')
                continue
            if after == "(" and (kind == "quoted" or (kind == "word" and name not in WORDS)):
                raise _wrong(f"there are no functions in conditions, such as {word}", token=name)
            if kind == "other" or (kind == "word" and name not in WORDS):
                what = f"no column of episodes is called {word!r}, and conditions have no such word"
                raise _wrong(what if kind == "word" else f"conditions have no {word!r}", token=word)
            if kind == "quoted":  # SQL has other quotes for texts
                word = "'" + word[1:-1].replace('""', '"').replace("'", "''") + "'"
            depth += (word == "(") - (word == ")")
            parts.append(word)
            if depth > DEEPEST or depth < 0 or len(parts) > MOST:
                raise _wrong(f"more than {DEEPEST} parentheses in each other, more than {MOST:,} parts, or a ) without its (")
        condition = cls(text, frozenset(columns), " ".join(parts))
        condition.holds(TRIED)
        return condition

    def holds(self, table: Any) -> tuple[NDArray[np.bool_], int]:
        """(E,) whether it is true of each row of a pa.Table of plain columns; and of how many it is null, so not true.

        Raises UsageError where it is no condition.
        """
        import duckdb

        columns = {name: table.column(name) for name in PLAIN_COLUMNS if name in table.column_names}
        for name in NUMBERS:
            numbers = columns[name].cast(pa.float64())
            columns[name] = pc.if_else(pc.is_nan(numbers), None, numbers)
        query = f"SELECT ({self.sql}) AS holds FROM episodes"  # noqa: S608  of words and signs of an allow-list
        with _database().cursor() as cursor:
            cursor.register("episodes", pa.table(columns))
            try:
                found = cursor.sql(query).to_arrow_table().column("holds")
            except duckdb.Error as error:
                raise _wrong(str(error).splitlines()[0]) from error
        if not pa.types.is_boolean(found.type):
            raise _wrong(f"{self.text!r} is neither true nor false")
        return found.fill_null(False).to_numpy(), found.null_count


TRIED: Final = pa.table(
    {name: pa.array([0.0] if name in NUMBERS else [False] if name in FLAGS else [""]) for name in PLAIN_COLUMNS}
)
"""An episode, for which a condition must hold or not."""


@cache
def _database() -> Any:
    """DuckDB in memory, opened once: that takes longer than a condition."""
    import duckdb

    connection = duckdb.connect(config=CLOSED)
    for name in OFF:
        with suppress(duckdb.CatalogException):
            connection.execute(f"SET GLOBAL {name} = false")
    return connection


def _wrong(what: str, *, token: str = "") -> UsageError:
    return UsageError(f"--where: {what}", where="--where", fix=FIX, details={"token": token} if token else {})
