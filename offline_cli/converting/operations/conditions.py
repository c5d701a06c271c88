"""Conditions on the plain columns of episodes: an SQL expression, as after WHERE, that Polars evaluates on these columns alone.

As in SQL, null makes null of whatever it would decide; a return that is NaN is null. Numbers are float64, so that a division by
zero is infinite.
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
        if re.search(r"\bselect\b", text, re.IGNORECASE):
            raise _wrong("conditions have no subqueries (SELECT)")
        try:
            expression = pl.sql_expr(text)
            columns = frozenset(expression.meta.root_names())
        except (PolarsError, PanicException) as error:
            raise _wrong(str(error).partition("\n")[0]) from error
        if unknown := sorted(columns.difference(PLAIN_COLUMNS)):
            raise _wrong(f"no column of episodes is called {unknown[0]!r}", token=unknown[0])
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


def _wrong(what: str, *, token: str = "") -> UsageError:
    return UsageError(f"--where: {what}", where="--where", fix=FIX, details={"token": token} if token else {})
