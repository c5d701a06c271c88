"""Conditions on the plain columns of episodes: parsed here by a fixed grammar, and evaluated by Polars.

    condition = conjunct { "or" conjunct }        conjunct = negated { "and" negated }      negated = { "not" } predicate
    predicate = sum [ COMPARISON sum | [ "not" ] "between" sum "and" sum | [ "not" ] "in" "(" constant { "," constant } ")"
                    | "is" [ "not" ] "null" ]
    sum       = product { ( "+" | "-" ) product } product  = factor { ( "*" | "/" | "%" ) factor }
    factor    = { "-" | "+" } factor | NUMBER | TEXT | "true" | "false" | COLUMN | "(" condition ")"

There are names of columns and no functions, so that a command line reaches nothing else. Numbers are float64. As in SQL, null
makes null of whatever it would decide, `false and null` aside; NaN is null, and so is what is divided by zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["PLAIN_KINDS", "Condition"]

NUMBER, TEXT, TRUTH = "a number", "a text", "true or false"
PLAIN_KINDS: Final = {
    Columns.EPS_ID: TEXT,
    Columns.LENGTH: NUMBER,
    Columns.RETURN: NUMBER,
    Columns.TERMINATED: TRUTH,
    Columns.TRUNCATED: TRUTH,
    Columns.AGENT_ID: TEXT,
    Columns.MODULE_ID: TEXT,
}
"""The columns that conditions name, and what their values are."""

TOKEN: Final = re.compile(
    r"""(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<quoted>"(?:[^"]|"")*")"""
    r"""|(?P<text>'(?:[^']|'')*')|(?P<sign>==|!=|<>|<=|>=|[=<>+\-*/%(),])"""
)
WORDS: Final = frozenset({"and", "or", "not", "in", "between", "is", "null", "true", "false"})
SAME: Final = {"=": "==", "<>": "!="}
COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
AT_ONCE: Final = 1 << 16  # rows of which Polars makes its own copy
MAX_DEPTH: Final = 50  # of parentheses and signs
MAX_OPERATORS: Final = 500  # of arithmetic: Polars nests them
FIX: Final = f'for example --where "return > 450 and length < 500"; columns: {", ".join(PLAIN_KINDS)}'


@dataclass(frozen=True, slots=True)
class Condition:
    """What decides, for each episode, whether it is chosen."""

    text: str
    columns: frozenset[str]  # those that it names
    expression: pl.Expr

    @classmethod
    def parsed(cls, text: str) -> Condition:
        """The condition that `text` is. Raises UsageError, naming the token that is wrong, and its place."""
        return _Parser(text).condition()

    def holds(self, table: Any) -> tuple[NDArray[np.bool_], int]:
        """(E,) whether it is true of each row of a pa.Table of plain columns; and of how many it is null, so not true."""
        import polars as pl

        known = table.select([name for name in PLAIN_KINDS if name in table.column_names])
        holds, undecided = np.zeros(table.num_rows, np.bool_), 0
        for first in range(0, table.num_rows, AT_ONCE):
            part = slice(first, first + AT_ONCE)
            frame = pl.from_arrow(known.slice(first, AT_ONCE))
            assert isinstance(frame, pl.DataFrame)
            found = frame.with_columns(self.expression.alias("holds"))["holds"]
            holds[part] = found.fill_null(False).to_numpy()
            undecided += found.null_count()
        return holds, undecided


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number | name | quoted | text | sign | end
    text: str
    at: int  # letter, from 1

    @property
    def word(self) -> str:
        """A word or sign of the grammar, as the grammar spells it."""
        if self.kind == "name":
            return self.text.lower()
        return SAME.get(self.text, self.text) if self.kind == "sign" else ""

    def wrong(self, why: str) -> UsageError:
        """The error about this token."""
        what = f"the condition ends too early: {why}" if self.kind == "end" else f"{self.text!r} at letter {self.at}: {why}"
        return UsageError(what, where="--where", fix=FIX, details={"token": self.text, "letter": self.at})


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            why = "the text has no end" if text[at] in "'\"" else "conditions have no such sign"
            raise _Token("sign", text[at], at + 1).wrong(why)
        found.append(_Token(match.lastgroup, match[0], at + 1))
        at = match.end()
    return [*found, _Token("end", "", len(text) + 1)]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a condition."""

    expression: Any  # pl.Expr
    kind: str  # NUMBER | TEXT | TRUTH
    token: _Token  # its first

    @property
    def known(self) -> Any:
        """Its expression, null for NaN."""
        return self.expression.fill_nan(None) if self.kind == NUMBER else self.expression


class _Parser:
    """By recursive descent; each method takes what its name says."""

    def __init__(self, text: str) -> None:
        import polars as pl

        self._pl: Any = pl
        self._text, self._tokens, self._next = text, _tokens(text), 0
        self._depth = self._operators = 0
        self._columns: set[str] = set()

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *words: str) -> _Token | None:
        """The next token, if it is one of these."""
        token = self._token
        if token.word not in words:
            return None
        self._next += 1
        return token

    def _expect(self, word: str, why: str) -> None:
        if self._take(word) is None:
            raise self._token.wrong(f"{word!r} is expected {why}")

    def condition(self) -> Condition:
        """All of it."""
        found = self._any()
        if self._token.kind != "end":
            raise self._token.wrong("nothing that could stand here")
        return Condition(self._text, frozenset(self._columns), self._truth(found).expression)

    def _truth(self, part: _Part) -> _Part:
        if part.kind != TRUTH:
            raise part.token.wrong(f"begins {part.kind}, where something true or false is expected")
        return part

    def _any(self) -> _Part:
        return self._chain("or", self._all, self._pl.any_horizontal)

    def _all(self) -> _Part:
        return self._chain("and", self._negated, self._pl.all_horizontal)

    def _chain(self, word: str, part: Callable[[], _Part], joined: Callable[[list[Any]], Any]) -> _Part:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return _Part(joined([self._truth(one).expression for one in parts]), TRUTH, parts[0].token)

    def _negated(self) -> _Part:
        first, times = self._token, 0
        while self._take("not"):
            times += 1
        part = self._predicate()
        if not times:
            return part
        return _Part(~self._truth(part).expression if times % 2 else self._truth(part).expression, TRUTH, first)

    def _predicate(self) -> _Part:
        left = self._sum()
        sign = self._take(*COMPARISONS)
        if sign is not None:
            right = self._sum()
            return _Part(COMPARISONS[sign.word](*self._alike(left, right, sign)), TRUTH, left.token)
        if self._take("is"):
            negative = self._take("not")
            self._expect("null", "after 'is'")
            known = left.known
            return _Part(known.is_not_null() if negative else known.is_null(), TRUTH, left.token)
        negative = self._take("not")
        if (word := self._take("between")) is not None:
            low = self._sum()
            self._expect("and", "between two bounds")
            high = self._sum()
            value, least = self._alike(left, low, word, ordered=True)
            found = (value >= least) & (value <= self._alike(left, high, word, ordered=True)[1])
        elif self._take("in"):
            found = left.known.is_in(self._constants(left))
        elif negative:
            raise self._token.wrong("'in' or 'between' is expected after 'not'")
        else:
            return left
        return _Part(~found if negative else found, TRUTH, left.token)

    def _alike(self, left: _Part, right: _Part, sign: _Token, *, ordered: bool = False) -> tuple[Any, Any]:
        """Both sides of a comparison. Raises UsageError for sides of two kinds, and for an order of what has none."""
        if left.kind != right.kind:
            raise sign.wrong(f"{left.kind} is compared with {right.kind}")
        if left.kind == TRUTH and (ordered or sign.word not in ("==", "!=")):
            raise sign.wrong("true and false have no order")
        return left.known, right.known

    def _constants(self, like: _Part) -> list[Any]:
        self._expect("(", "after 'in'")
        found = []
        while True:
            signs = 0
            while (sign := self._take("-", "+")) is not None:
                signs += sign.word == "-"
            token = self._token
            self._next += 1
            if token.kind == "number":
                kind, value = NUMBER, float(token.text) * (-1) ** signs
            elif token.kind == "text" and not signs:
                kind, value = TEXT, _unquoted(token)
            elif token.word in ("true", "false") and not signs:
                kind, value = TRUTH, token.word == "true"
            else:
                raise token.wrong("a number, a 'text', true or false is expected in a list")
            if kind != like.kind:
                raise token.wrong(f"{like.kind} is compared with {kind}")
            found.append(value)
            if not self._take(","):
                self._expect(")", "at the end of a list")
                return found

    def _sum(self) -> _Part:
        return self._operation(("+", "-"), self._product)

    def _product(self) -> _Part:
        return self._operation(("*", "/", "%"), self._factor)

    def _operation(self, signs: tuple[str, ...], part: Callable[[], _Part]) -> _Part:
        left = part()
        while (sign := self._take(*signs)) is not None:
            right = part()
            self._operators += 1
            if self._operators > MAX_OPERATORS:
                raise sign.wrong(f"more than {MAX_OPERATORS} operators")
            for one in (left, right):
                if one.kind != NUMBER:
                    raise sign.wrong(f"calculates with {one.kind}")
            left = _Part(self._calculated(sign.word, left.expression, right.expression), NUMBER, left.token)
        return left

    def _calculated(self, sign: str, left: Any, right: Any) -> Any:
        if sign in "/%":
            right = self._pl.when(right != 0).then(right)  # else null
            return left / right if sign == "/" else left % right
        return left + right if sign == "+" else left - right if sign == "-" else left * right

    def _factor(self) -> _Part:
        token = self._token
        self._next += token.kind != "end"
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise token.wrong(f"nested deeper than {MAX_DEPTH}")
        found = self._nested(token) if token.word in ("(", "-", "+") else self._value(token)
        self._depth -= 1
        return found

    def _nested(self, token: _Token) -> _Part:
        if token.word == "(":
            inner = self._any()
            self._expect(")", f"for the '(' at letter {token.at}")
            return _Part(inner.expression, inner.kind, token)
        number = self._factor()
        if number.kind != NUMBER:
            raise token.wrong(f"calculates with {number.kind}")
        return _Part(-number.expression if token.word == "-" else number.expression, NUMBER, token)

    def _value(self, token: _Token) -> _Part:
        pl = self._pl
        if token.kind == "number":
            return _Part(pl.lit(float(token.text), pl.Float64), NUMBER, token)
        if token.kind == "text":
            return _Part(pl.lit(_unquoted(token)), TEXT, token)
        if token.word in ("true", "false"):
            return _Part(pl.lit(token.word == "true"), TRUTH, token)
        if token.kind not in ("name", "quoted") or token.word in WORDS:
            raise token.wrong("a column, a number, a 'text' or '(' is expected here")
        name = token.word or _unquoted(token)
        if name not in PLAIN_KINDS:
            called = self._token.word == "("
            raise token.wrong("there are no functions in conditions" if called else "no column of episodes is called so")
        self._columns.add(name)
        column = pl.col(name)
        return _Part(column.cast(pl.Float64) if PLAIN_KINDS[name] == NUMBER else column, PLAIN_KINDS[name], token)


def _unquoted(token: _Token) -> str:
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)
