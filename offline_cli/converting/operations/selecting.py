"""`filter` and `sample`: some episodes of any sources, in the order of the sources, as one dataset.

A `Condition` is what follows WHERE in SQL; Polars evaluates it on the plain columns of episodes alone. It has names of columns,
numbers and texts in either kind of quotes; comparisons, arithmetic, `in`, `between`, `is null`, `and`, `or`, `not`. Any other
word or sign (functions, casts, subqueries) is refused by name. As in SQL, null makes null of whatever it would decide; a return
that is NaN is null. Numbers are float64, so that a division by zero is infinite.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Unpack

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from offline_cli.choices import Count, Share, Whole
from offline_cli.columns import Columns
from offline_cli.converting.operations.operation import Operation, OperationOptions, OperationResult, Survey, with_options
from offline_cli.datasets.row_format import PLAIN_SCHEMA
from offline_cli.errors import BadData, NoData, UsageError
from offline_cli.storage.locations import Location, Sources, open_location

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


SHOWN: Final = 5  # ids that a message lists

_log = logging.getLogger(__name__)


@with_options
def filter(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    where: str | None = None,
    top_fraction: Share | None = None,
    ids_file: str | os.PathLike[str] | None = None,
    drop_problems: str | os.PathLike[str] | None = None,
    **options: Unpack[OperationOptions],
) -> OperationResult:
    """Write some of the episodes of `sources` as dataset `out`.

    They are those that each of `where`, `top_fraction`, `ids_file` and `drop_problems` chooses, as far as these are given.
    An episode for which the condition is null, as where it asks for a return that is NaN, is not chosen, and counted as
    `undecided`.

    Raises UsageError for a condition that is none, NoData where no episode is chosen or an id is in no source, and what
    `convert` raises.
    """
    condition, by = None if where is None else Condition.parsed(where), dict[str, Any]()
    if condition is not None:
        by["where"] = where
    if top_fraction is not None:
        by["top_fraction"] = top_fraction
    ids, bad = list[str](), list[str]()
    if ids_file is not None:
        ids = listed_ids(open_location(ids_file, options["storage_options"]))
        by |= {"ids_file": os.fspath(ids_file), "ids_sha256": _digest(ids)}
    if drop_problems is not None:
        bad = problem_ids(open_location(drop_problems, options["storage_options"]))
        by |= {"drop_problems": os.fspath(drop_problems), "problems_sha256": _digest(bad)}
    if not by:
        fix = "give --where, --top-fraction, --ids-file or --drop-problems"
        raise UsageError("nothing says which episodes to keep", where="offline-cli filter", fix=fix)
    operation = Operation.begun("filter", sources, out, options)
    operation.check_target()
    columns = frozenset[str]() if condition is None else condition.columns
    survey = operation.survey(columns if top_fraction is None else {*columns, Columns.RETURN})
    chosen, undecided = (np.ones(len(survey), np.bool_), 0) if condition is None else condition.holds(survey.table)
    if top_fraction is not None:
        chosen = chosen & top(survey.column(Columns.RETURN), top_fraction)
    if ids:
        chosen = chosen & _listed(survey, ids, operation.where)
    if bad:
        chosen = chosen & ~_with_ids(survey, bad)
    if not chosen.any():
        fix = "offline-cli inspect shows between which values returns and lengths are"
        if undecided:
            fix = f"the condition is null for {undecided:,} of them; `is null` and `is not null` ask for that"
        raise NoData(f"none of the {len(survey):,} episodes is chosen; nothing was written", where=operation.where, fix=fix)
    return operation.write_chosen(survey, chosen, by, undecided=undecided, chosen_by=by)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode("utf-8", "surrogatepass")).hexdigest()


def _with_ids(survey: Survey, ids: Sequence[str]) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids."""
    found: NDArray[np.bool_] = pc.is_in(survey.table.column(Columns.EPS_ID), pa.array(ids, pa.string())).to_numpy()
    return found


def _listed(survey: Survey, ids: Sequence[str], where: str) -> NDArray[np.bool_]:
    """(E,) episodes with one of these ids. Raises NoData where one of them is in no source."""
    if missing := list(set(ids).difference(survey.table.column(Columns.EPS_ID).to_pylist())):
        shown, more = sorted(missing)[:SHOWN], f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        what = f"{len(missing):,} of {len(ids):,} ids are in no source: {', '.join(shown)}{more}"
        raise NoData(what, where=where, fix="take them out of the file, or name the source that they are in")
    return _with_ids(survey, ids)


@with_options
def sample(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    episodes: Count | None = None,
    steps: Count | None = None,
    fraction: Share | None = None,
    seed: Whole = 0,
    **options: Unpack[OperationOptions],
) -> OperationResult:
    """Write episodes of `sources` drawn at random, without replacement, as dataset `out`; they keep their order.

    Exactly one of `episodes`, `steps` and `fraction` says how many; `steps`: the fewest, in the order drawn, that reach so
    many.

    Raises UsageError, NoData where the sources hold fewer, and what `convert` raises.
    """
    amounts = {"episodes": episodes, "steps": steps, "fraction": fraction}
    by = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(by) != 1:
        fix = "offline-cli sample SRC --out D --episodes 100"
        raise UsageError("give exactly one of --episodes, --steps and --fraction", where="offline-cli sample", fix=fix)
    operation = Operation.begun("sample", sources, out, options)
    operation.check_target()
    survey = operation.survey()
    order = drawn(len(survey), seed)
    reached = np.cumsum(survey.column(Columns.LENGTH)[order])
    have, unit = (len(survey), "episodes") if steps is None else (int(reached[-1]), "steps")
    if (wanted := episodes or steps or 0) > have:
        what = f"{wanted:,} {unit} are wanted, and the sources have {have:,}"
        raise NoData(what, where=operation.where, fix="ask for fewer: an episode is drawn once")
    count = episodes if episodes is not None else share_of(len(survey), fraction or 0)
    if steps is not None:
        count = int(np.searchsorted(reached, steps)) + 1
    chosen = np.zeros(len(survey), np.bool_)
    chosen[order[:count]] = True
    by["seed"] = seed
    return operation.write_chosen(survey, chosen, by, chosen_by=by)


# ---- which episodes are taken ----


def top(returns: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """(E,) the `fraction` of the episodes with the highest returns, at least one; the first of equal ones, and none of NaN."""
    order = np.argsort(-returns, kind="stable")[: share_of(len(returns), fraction)]
    found = np.zeros(len(returns), np.bool_)
    found[order] = True
    return found & ~np.isnan(returns)


def share_of(episodes: int, fraction: float) -> int:
    """How many episodes a fraction of them is: the nearest whole number, at least 1."""
    return max(1, int(np.floor(episodes * fraction + 0.5)))


def drawn(episodes: int, seed: int) -> NDArray[np.int64]:
    """(E,) their numbers in random order, the same for a seed."""
    return np.argsort(np.random.default_rng(seed).random(episodes), kind="stable")


def listed_ids(place: Location) -> list[str]:
    """The ids in a file, one a line, each once. Raises BadData for no UTF-8, NoData where there is none, StorageNotFound."""
    try:
        text = place.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(f"not UTF-8 text: {error}", where=place.url, fix="one id a line, in UTF-8") from error
    ids = list(dict.fromkeys(line for line in text.replace("\r\n", "\n").split("\n") if line.strip()))
    if not ids:
        raise NoData("no id is in the file", where=place.url, fix="one id a line")
    return ids


def problem_ids(place: Location) -> list[str]:
    """Ids of the episodes that a result of `validate --json` names for an error or a warning.

    A note on stderr names the problems that name no episode. Raises BadData for another file, StorageNotFound.
    """
    try:
        problems = orjson.loads(place.read_bytes())["problems"]
        named = {
            one["code"]: list(map(str, one["details"].get("episodes", ()))) for one in problems if one["severity"] != "note"
        }
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        fix = "write it again: offline-cli validate SRC --json > FILE"
        raise BadData("this is no result of validate --json", where=place.url, fix=fix) from error
    if vague := [code for code, ids in named.items() if not ids]:
        _log.warning("note: %s: these problems name no episode, and none is left out for them", ", ".join(vague))
    return list(dict.fromkeys(chain.from_iterable(named.values())))
