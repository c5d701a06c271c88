"""Conditions on the plain columns of episodes: what follows WHERE in SQL, which Polars evaluates on these columns alone.

Names of columns, numbers and texts in either kind of quotes; comparisons, arithmetic, `in`, `between`, `is null`, `and`, `or`,
`not`. Any other word or sign (functions, casts, subqueries) is refused by name. As in SQL, null makes null of whatever it would
decide; a return that is NaN is null. Numbers are float64, so that a division by zero is infinite.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from offline_cli.columns import Columns
from offline_cli.datasets.row_format import PLAIN_SCHEMA
from offline_cli.errors import UsageError

PLAIN_COLUMNS: Final = tuple(PLAIN_SCHEMA.names)
"""The columns that conditions name."""
NUMBERS: Final = (Columns.LENGTH, Columns.RETURN)
WORDS: Final = frozenset({"and", "or", "not", "in", "between", "is", "null", "true", "false"})
TOKEN: Final = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<function>"?[^\W\d]\w*"?)\s*\(|(?P<quoted>"(?:[^"]|"")*")|(?P<number>\d[\w.]*)
    |(?P<word>[^\W\d]\w*)|(?P<other>--|/\*|::|[^\s\w.<>=!+*/%(),-])""",
    re.VERBOSE,
)
LONGEST: Final = 2_000  # letters
FIX: Final = f"for example --where \"return > 450 and module_id = 'p0'\"; columns: {', '.join(PLAIN_COLUMNS)}"


@dataclass(frozen=True, slots=True)
class Condition:
    """What decides, for each episode, whether it is chosen."""

    text: str
    columns: frozenset[str]  # those that it names
    expression: pl.Expr

    @classmethod
    def parsed(cls, text: str) -> Condition:
        """The condition that `text` is. Raises UsageError, naming what cannot be taken."""
        if len(text) > LONGEST:
            raise _wrong(f"the condition has more than {LONGEST:,} letters")
        try:
            expression = pl.sql_expr(f"({TOKEN.sub(_allowed, text)})")  # in which no word can be an alias
            columns = frozenset(expression.meta.root_names())
        except (PolarsError, PanicException) as error:
            raise _wrong(str(error).partition("\n")[0]) from error
        condition = cls(text, columns, expression)
        condition.holds(PLAIN_SCHEMA.empty_table())  # raises where it is neither true nor false
        return condition

    def holds(self, table: Any) -> tuple[NDArray[np.bool_], int]:
        """(E,) whether it is true of each row of a pa.Table of plain columns; and of how many it is null, so not true.

        Raises UsageError where it is no condition.
        """
        episodes = pl.DataFrame(pl.from_arrow(table.select(PLAIN_COLUMNS)))
        try:
            numbers = pl.col(NUMBERS).cast(pl.Float64).fill_nan(None)
            holds = episodes.with_columns(numbers).with_columns(self.expression.alias("holds"))["holds"]
        except (PolarsError, PanicException) as error:
            raise _wrong(str(error).partition("\n")[0]) from error
        if holds.dtype != pl.Boolean:
            raise _wrong(f"{self.text!r} is neither true nor false")
        return holds.fill_null(False).to_numpy(), holds.null_count()


def _allowed(token: re.Match[str]) -> str:
    """A token as Polars takes it: columns in small letters, texts in single quotes. Raises UsageError for any other."""
    word, name = token[0], token[0].strip('"')
    if token["text"] or token["number"] or word.lower() in WORDS or (token["function"] or "").lower() in WORDS:
        return word
    if token["function"]:
        function = token["function"].strip('"')
        raise _wrong(f"conditions have no functions, such as {function}", token=function)
    if name.lower() in PLAIN_COLUMNS:
        return f'"{name.lower()}"'
    if token["quoted"]:
        return "'" + name.replace('""', '"').replace("'", "''") + "'"
    what = f"no column of episodes is called {word!r}" if token["word"] else f"conditions have no {word!r}"
    raise _wrong(what, token=word)


def _wrong(what: str, *, token: str = "") -> UsageError:
    return UsageError(f"--where: {what}", where="--where", fix=FIX, details={"token": token} if token else {})
