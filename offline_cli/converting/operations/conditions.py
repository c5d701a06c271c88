"""Conditions on the plain columns of episodes: SQL as Polars parses it, of which an allow-list is taken.

Names of columns, and comparisons, arithmetic, `in`, `between`, `is null`, `and`, `or`, `not`: anything else (functions, casts,
subqueries) is refused by name, so that a command line reaches nothing else. Texts take either kind of quotes, and numbers are
float64. As in SQL, null makes null of whatever it would decide, `false and null` aside; a return that is NaN is null, and where
a divisor is zero, the condition is null.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["PLAIN_COLUMNS", "Condition"]

PLAIN_COLUMNS: Final = (
    *(Columns.EPS_ID, Columns.LENGTH, Columns.RETURN, Columns.TERMINATED),
    *(Columns.TRUNCATED, Columns.AGENT_ID, Columns.MODULE_ID),
)
"""The columns that conditions name."""
NUMBERS: Final = (Columns.LENGTH, Columns.RETURN)
FLAGS: Final = (Columns.TERMINATED, Columns.TRUNCATED)
WORD: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z_0-9.]*""")
"""A text or name in quotes, or a bare word."""
ALLOWED: Final = frozenset(
    {"Eq", "NotEq", "Lt", "LtEq", "Gt", "GtEq", "And", "Or", "LogicalAnd", "LogicalOr", "Not", "IsNull", "IsNotNull", "IsIn"}
    | {"Plus", "Minus", "Multiply", "Divide", "TrueDivide", "Modulus", "Add", "Sub", "Mul", "Div", "Rem", "Negate"}
)
"""What Polars calls the nodes that are taken, in any of its versions."""
DIVIDING: Final = frozenset({"Divide", "TrueDivide", "Modulus", "Div", "Rem"})
CALL: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(?!(?:in|and|or|not|between|is)\b)([A-Za-z_]\w*)\s*\(""", re.IGNORECASE
)
"""A function by its name; outside of quotes."""
LONGEST: Final = 10_000  # letters
FIX: Final = f'for example --where "return > 450 and length < 500"; columns: {", ".join(PLAIN_COLUMNS)}'


@dataclass(frozen=True, slots=True)
class Condition:
    """What decides, for each episode, whether it is chosen."""

    text: str
    columns: frozenset[str]  # those that it names
    expression: pl.Expr

    @classmethod
    def parsed(cls, text: str) -> Condition:
        """The condition that `text` is. Raises UsageError, naming what cannot be taken."""
        import polars as pl

        if len(text) > LONGEST:
            raise _wrong(f"the condition has more than {LONGEST:,} letters")
        if called := next((match[1] for match in CALL.finditer(text) if match[1]), None):
            raise _wrong(f"there are no functions in conditions, such as {called}", token=called)
        try:
            expression = pl.sql_expr(WORD.sub(_spelled, text))
            tree = json.loads(expression.meta.serialize(format="json"))
            names = frozenset(expression.meta.root_names())
            if unknown := sorted(names.difference(PLAIN_COLUMNS)):
                raise _wrong(f"no column of episodes is called {', '.join(map(repr, unknown))}", token=unknown[0])
            zeros = [pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json") == 0 for node in _divisors(tree)]
            if zeros:
                expression = pl.when(pl.any_horizontal(zeros)).then(None).otherwise(expression)
            kind = _prepared(pl.DataFrame(schema=SCHEMA)).with_columns(holds=expression).schema["holds"]
        except (pl.exceptions.PolarsError, RecursionError, ValueError) as error:
            raise _wrong(str(error).splitlines()[0] if str(error) else "nested too deeply") from error
        if kind != pl.Boolean:
            raise _wrong(f"{text!r} is neither true nor false")
        return cls(text, names, expression)

    def holds(self, table: Any) -> tuple[NDArray[np.bool_], int]:
        """(E,) whether it is true of each row of a pa.Table of plain columns; and of how many it is null, so not true."""
        import polars as pl

        frame = pl.from_arrow(table.select([name for name in PLAIN_COLUMNS if name in table.column_names]))
        assert isinstance(frame, pl.DataFrame)
        found = _prepared(frame).with_columns(holds=self.expression)["holds"]
        return found.fill_null(False).to_numpy(), found.null_count()


SCHEMA: Final[dict[str, Any]] = {name: float if name in NUMBERS else bool if name in FLAGS else str for name in PLAIN_COLUMNS}


def _prepared(frame: pl.DataFrame) -> pl.DataFrame:
    """Numbers as float64, null for NaN."""
    import polars as pl

    return frame.with_columns(pl.col(name).cast(pl.Float64).fill_nan(None) for name in NUMBERS if name in frame.columns)


def _spelled(match: re.Match[str]) -> str:
    """A column in the spelling of its table, and a text in the quotes that SQL has for texts."""
    word = match[0]
    name = word.strip('"').lower()
    if word[0] == "'" or (word[0] != '"' and name not in PLAIN_COLUMNS):
        return word
    if name in PLAIN_COLUMNS:
        return f'"{name}"'
    text = word[1:-1].replace('""', '"').replace("'", "''")
    return f"'{text}'"


def _divisors(tree: Any) -> Iterator[Any]:
    """What is divided by in a parsed expression. Raises UsageError, naming the first node that is not in the allow-list."""
    kind: str
    node: Any
    kind, node = next(iter(tree.items())) if isinstance(tree, dict) and len(tree) == 1 else (str(tree), {})
    if kind in ("Column", "Literal"):
        return
    if kind == "Cast" and node["dtype"] == {"Literal": "Boolean"}:  # which `not` makes of its operand
        parts, name = [node["expr"]], "Not"
    elif kind == "BinaryExpr":
        parts, name = [node["left"], node["right"]], node["op"]
    elif kind == "Function":
        parts, name = node["input"], _function(node["function"])
    else:
        parts, name = [], kind
    if name not in ALLOWED:
        raise _wrong(f"conditions have no {name}", token=name)
    if name in DIVIDING:
        yield parts[1]
    for part in parts:
        yield from _divisors(part)


def _function(node: Any) -> str:
    """The name of a function, of which Polars says the family first: {"Sql": {"Binary": "Rem"}}, {"Sql": {"IsIn": options}}."""
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        if name in ALLOWED:
            return str(name)
    return str(node)


def _wrong(what: str, *, token: str = "") -> UsageError:
    return UsageError(f"--where: {what}", where="--where", fix=FIX, details={"token": token} if token else {})
