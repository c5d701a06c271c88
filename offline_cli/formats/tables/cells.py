"""Cells of text as numbers, whole columns at a time.

`CellCounts` counts what the cells of a column look like; `numbers_in`, `lists_in` and `times_in` read them as what most of them
are. A cell that is something else has no value, and the caller rejects its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.json_documents import from_json

if TYPE_CHECKING:  # takes 50 MiB and a tenth of a second, which tables of plain numbers save
    import polars as pl

__all__ = [
    "BOOLS",
    "DAY_FIRST_OR_MONTH",
    "CellCounts",
    "are_decimal_commas",
    "booleans_in",
    "categories_in",
    "hint_for_cells",
    "lists_in",
    "numbers_in",
    "times_in",
]

BOOLS: Final[Mapping[str, bool]] = {"true": True, "false": False}
NOTHING: Final = frozenset(("n/a", "na", "#n/a", "null", "none", "nil", "-", "--", "?", "missing"))  # in lower case
ANSWERS: Final[Mapping[str, bool]] = {"yes": True, "no": False, "y": True, "n": False}  # where a flag is wanted
FLAGS: Final[Mapping[str, bool]] = {**BOOLS, "1": True, "0": False, "1.0": True, "0.0": False, **ANSWERS}
NO: Final = list(BOOLS.values()).index(False)  # in FLAGS too
FRACTION: Final = "[.eEnN]"  # in a number that is none of the integers; NaN and Infinity too
FEW: Final = 256  # lists that are parsed one by one in less time than a call of polars takes
SAMPLES: Final = 12  # different texts that are kept for messages
DAY_FIRST_OR_MONTH: Final = re.compile(r"^\s*\d{1,2}([/.-])\d{1,2}\1(\d{2,4})\b([ T]\d{1,2}:\d{2})?(:\d{2})?(\.\d+)?")
DECIMAL_COMMA: Final = re.compile(r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")

TIME_FORMS: Final = (  # of other ISO forms, one after the other, to the plain one
    (r"^(\d{4})(\d{2})(\d{2})[ Tt](\d{2})(\d{2})(\d{2})", "$1-$2-$3 $4:$5:$6"),
    (r"^(\d{4})[/.](\d{2})[/.](\d{2})", "$1-$2-$3"),
    (r"^(\d{4}-\d{2}-\d{2})[ Tt](\d{2}:\d{2})([^:0-9]|$)", "$1 $2:00$3"),
    (r"^(\d{4}-\d{2}-\d{2})t", "$1 "),
    (r"(:\d{2}),(\d)", "$1.$2"),
    (r" ?([Zz]|UTC|GMT)$", "+00:00"),
    (r"(:\d{2}(?:\.\d+)?) ?([+-]\d{2}):?(\d{2})$", "$1$2:$3"),
    (r"(:\d{2}(?:\.\d+)?) ?([+-]\d{2})$", "$1$2:00"),
)
TimeUnit = Literal["ns", "us"]
Bad = NDArray[np.bool_]


@dataclass(slots=True)
class CellCounts:
    """What the cells of one column look like."""

    ints: int = 0
    floats: int = 0
    bools: int = 0
    int_lists: int = 0
    float_lists: int = 0  # anything that begins with "["
    times: int = 0
    texts: int = 0
    samples: list[str] = field(default_factory=list)  # of texts

    def see(self, cells: pa.Array, *, decimal: str = ".", with_times: bool = False) -> None:
        """Count more cells; nulls do not count."""
        if not self._see_at_once(cells.drop_null(), decimal):
            self._see_each(cells, decimal, with_times=with_times)

    def _see_at_once(self, cells: pa.Array, decimal: str) -> bool:
        """Whether all cells are of one plain kind, and counted."""
        if decimal == "." and _cast(cells, pa.float64()) is not None:
            is_whole = not pc.any(pc.match_substring_regex(cells, FRACTION)).as_py() and _cast(cells, pa.int64()) is not None
            self.ints, self.floats = self.ints + is_whole * len(cells), self.floats + (not is_whole) * len(cells)
        elif _index_in(cells, BOOLS) is not None:
            self.bools += len(cells)
        elif pc.all(pc.starts_with(trimmed := pc.utf8_trim_whitespace(cells), "[")).as_py():
            fractions = int(pc.sum(pc.match_substring_regex(trimmed, FRACTION)).as_py() or 0)
            self.float_lists, self.int_lists = self.float_lists + fractions, self.int_lists + len(cells) - fractions
        else:
            return False
        return True

    def _see_each(self, cells: pa.Array, decimal: str, *, with_times: bool) -> None:
        import polars as pl

        rest = _stripped(cells).drop_nulls()
        rest, ints = _without(rest, rest.cast(pl.Int64, strict=False).is_not_null())
        rest, floats = _without(rest, _decimals(rest, decimal).cast(pl.Float64, strict=False).is_not_null())
        rest, lists = _without(rest, rest.str.starts_with("["))
        rest, bools = _without(rest, rest.str.to_lowercase().is_in(list(BOOLS)))
        self.ints, self.floats, self.bools = self.ints + len(ints), self.floats + len(floats), self.bools + len(bools)
        fractions = int(lists.str.contains(FRACTION).sum())
        self.float_lists, self.int_lists = self.float_lists + fractions, self.int_lists + len(lists) - fractions
        if with_times and len(rest):
            rest, times = _without(rest, _times(rest).is_not_null())
            self.times += len(times)
        self.texts += len(rest)
        if len(self.samples) < SAMPLES and len(rest):
            known = dict.fromkeys([*self.samples, *rest.head(10_000).unique(maintain_order=True).to_list()])
            self.samples = list(known)[:SAMPLES]

    @property
    def are_answers(self) -> bool:
        """Whether all texts that were looked at are yes or no."""
        return bool(self.samples) and all(text.lower() in ANSWERS for text in self.samples)

    @property
    def kinds(self) -> dict[str, int]:
        """How many cells are of each kind, of those that there are."""
        counts = {
            "number": self.ints + self.floats,
            "list": self.int_lists + self.float_lists,
            "bool": self.bools,
            "time": self.times,
            "text": self.texts,
        }
        return {kind: count for kind, count in counts.items() if count}

    @property
    def kind(self) -> str:
        """What most cells are; empty where there was none."""
        counts = self.kinds
        return max(counts, key=lambda kind: counts[kind], default="")

    @property
    def dtype(self) -> np.dtype[Any]:
        """That holds all cells of the kind that most are."""
        if self.kind == "bool":
            return np.dtype(np.bool_)
        fractions = self.floats if self.kind == "number" else self.float_lists if self.kind == "list" else 0
        return np.dtype(np.float64 if fractions else np.int64)


# ---- columns of one plain kind, by Arrow alone ----


def _cast(cells: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The numbers; None where a cell is not a number, or has spaces around it."""
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        return None


def _index_in(cells: pa.Array, known: Collection[str]) -> pa.Array | None:
    """Which of `known` each cell is, in any case, null for null; None where one is something else."""
    found = pc.index_in(pc.utf8_lower(cells), value_set=pa.array(list(known), cells.type), skip_nulls=True)
    return found if found.null_count == cells.null_count else None


def _plain_numbers(cells: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """(N,) numbers, 0 for null; None where a cell is no number of this kind: 0x10, which Arrow takes for 16, is none."""
    numbers = _cast(cells, pa.float64())
    if numbers is not None and dtype.kind != "f":
        numbers = _cast(cells, pa.int64())
    return None if numbers is None else np.asarray(numbers.fill_null(0).to_numpy()).astype(dtype, copy=False)


# ---- cell by cell ----


def _without(cells: pl.Series, chosen: pl.Series) -> tuple[pl.Series, pl.Series]:
    return cells.filter(~chosen), cells.filter(chosen)


def _stripped(cells: pa.Array) -> pl.Series:
    import polars as pl

    series = pl.from_arrow(cells)
    assert isinstance(series, pl.Series)
    return series.str.strip_chars()


def _decimals(cells: pl.Series, decimal: str) -> pl.Series:
    """With a point before decimals; where the text differs, a point makes no number: 1.500 may be 1500."""
    if decimal == ".":
        return cells
    return cells.str.replace(".", "?", literal=True).str.replace(decimal, ".", literal=True)


def _values(parsed: pl.Series, cells: pl.Series, dtype: Any) -> tuple[NDArray[Any], Bad]:
    """Values with 0 where there is none, and the rows whose cell is none of them."""
    bad = parsed.is_null() & cells.is_not_null()
    return parsed.fill_null(0).to_numpy().astype(dtype, copy=False), bad.to_numpy().astype(np.bool_)


def numbers_in(cells: pa.Array, dtype: np.dtype[Any], decimal: str) -> tuple[NDArray[Any], Bad]:
    """(N,) numbers, and (N,) true where a cell is no number, or none that `dtype` holds."""
    plain = _plain_numbers(cells, dtype) if decimal == "." else None
    if plain is not None:
        return plain, np.zeros(len(cells), np.bool_)
    import polars as pl

    stripped = _stripped(cells)
    kind = pl.Float64 if dtype.kind == "f" else pl.Int64
    return _values(_decimals(stripped, decimal).cast(kind, strict=False), stripped, dtype)


def booleans_in(cells: pa.Array, *, flags: bool = False) -> tuple[NDArray[np.bool_], Bad]:
    """(N,) booleans of true and false in any case; `flags`: of 1 and 0, yes and no, y and n too."""
    known = FLAGS if flags else BOOLS
    found = _index_in(cells, known)
    if found is not None:
        return np.array(list(known.values()))[found.fill_null(NO).to_numpy()], np.zeros(len(cells), np.bool_)
    import polars as pl

    stripped = _stripped(cells)
    parsed = stripped.str.to_lowercase().replace_strict(
        list(known), list(known.values()), default=None, return_dtype=pl.Boolean
    )
    return _values(parsed.cast(pl.Int8), stripped, np.bool_)


def times_in(cells: pa.Array, unit: TimeUnit = "ns") -> tuple[NDArray[np.int64], Bad]:
    """(N,) since 1970 in UTC, of ISO dates and times with an offset from UTC or, taken for UTC, without."""
    stripped = _stripped(cells)
    return _values(_times(stripped, unit), stripped, np.int64)


def _times(cells: pl.Series, unit: TimeUnit = "ns") -> pl.Series:
    """Null for what is no time."""
    found = _plain_times(cells, unit)
    odd = found.is_null() & cells.is_not_null()
    if not odd.any():
        return found
    again = cells.filter(odd)
    for pattern, text in TIME_FORMS:
        again = again.str.replace(pattern, text)
    return found.scatter(odd.arg_true(), _plain_times(again, unit))


def _plain_times(cells: pl.Series, unit: TimeUnit) -> pl.Series:
    """Of `2024-03-01`, and of that with `12:00:00` after a blank or a T, with fractions, with `Z` or `+01:00`."""
    import polars as pl

    if unit == "ns":  # which count from 1677 to 2262
        cells = pl.select(pl.when(cells.str.slice(0, 4).is_between(pl.lit("1678"), pl.lit("2261"))).then(cells)).to_series()
    plain = cells.str.replace("T", " ", literal=True)
    with_day = pl.select(pl.when(plain.str.len_chars() == 10).then(plain + " 00:00:00").otherwise(plain)).to_series()
    local = with_day.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit=unit, strict=False)
    zoned = with_day.str.replace("Z$", "+00:00").str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit=unit, strict=False)
    return local.cast(pl.Int64).fill_null(zoned.cast(pl.Int64))


def categories_in(cells: pa.Array, categories: Sequence[str]) -> tuple[NDArray[np.int64], Bad]:
    """(N,) number of each text among `categories`."""
    found = pc.index_in(cells, value_set=pa.array(categories, cells.type))
    bad = np.asarray(pc.and_(pc.is_null(found), pc.is_valid(cells)).to_numpy(zero_copy_only=False))
    return np.asarray(found.fill_null(0).to_numpy(), np.int64), bad


def lists_in(cells: pa.Array, dtype: np.dtype[Any]) -> tuple[pa.Array, Bad]:
    """(N,) lists of JSON texts, null where a cell is none, and (N,) true there; cells that are null are null and not bad."""
    if len(cells) <= FEW:
        texts = pc.utf8_trim_whitespace(cells).to_pylist()
        return _one_by_one(texts, _nested(pa.large_list, pa.float64() if dtype.kind == "f" else pa.int64(), texts))
    import polars as pl

    stripped = _stripped(cells)
    inner = _nested(pl.List, pl.Float64 if dtype.kind == "f" else pl.Int64, stripped.head(1000).to_list())
    try:
        parsed = stripped.str.json_decode(inner)
    except pl.exceptions.PolarsError:
        return _one_by_one(stripped.to_list(), pl.Series([], dtype=inner).to_arrow().type)
    return parsed.to_arrow(), (parsed.is_null() & stripped.is_not_null()).to_numpy().astype(np.bool_)


def _nested(listed: Callable[[Any], Any], inner: Any, texts: Sequence[str | None]) -> Any:
    """The type of lists of lists of `inner`, as deep as the first text is."""
    squeezed = next((text for text in texts if text), "[").replace(" ", "")
    for _ in range(max(1, len(squeezed) - len(squeezed.lstrip("[")))):
        inner = listed(inner)
    return inner


def _one_by_one(cells: Sequence[str | None], parsed_type: pa.DataType) -> tuple[pa.Array, Bad]:
    """The slow way, for few cells and for columns with a cell that is not a list."""
    values: list[Any] = [_list_or_none(text, parsed_type) for text in cells]
    bad = np.array([value is None and text is not None for value, text in zip(values, cells, strict=True)], np.bool_)
    return pa.array(values, parsed_type), bad


def _list_or_none(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        value = from_json(text)  # unlike stricter parsers it knows NaN, which Python writes
        pa.array([value], kind)
    except (ValueError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    return value if isinstance(value, list) else None


# ---- what to write in place of texts that are nearly numbers, or nearly times ----


def are_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether four of five are numbers such as `0,5`."""
    return bool(texts) and 5 * sum(map(bool, map(DECIMAL_COMMA.match, texts))) >= 4 * len(texts)


def hint_for_nothing(cell: str) -> str:
    """What to write for a cell of a CSV file that may say that there is no value; empty where it does not."""
    return f"if it means no value: [csv] nulls = [{json.dumps(cell)}]" if cell.strip().lower() in NOTHING else ""


def hint_for_cells(column: str, samples: Sequence[str], *, some: bool = False) -> str:
    """What to write for decimal commas, and for dates that have two meanings; empty where `samples` are neither.

    `some`: other rows of the column are dates with one meaning.
    """
    if are_decimal_commas(samples):
        return f'{samples[0][:40]!r} looks like a decimal comma: say [csv] decimal = "," in the mapping'
    found = next(filter(None, map(DAY_FIRST_OR_MONTH.match, samples)), None)
    if found is None:
        return ""
    sign, year, minutes, seconds, fraction = found.groups()
    rest = ("%y" if len(year) == 2 else "%Y") + (f"{minutes[0]}%H:%M" if minutes else "") + ":%S" * bool(seconds)
    rest += ("%.f" if some else ".%f") * bool(fraction)
    day, month = f"%d{sign}%m{sign}{rest}", f"%m{sign}%d{sign}{rest}"
    line = f"in pandas: pd.to_datetime(df[{column!r}], format={day!r})"
    if some:
        parsed = f"pl.col({column!r}).str.to_datetime({day!r}, strict=False).dt.to_string('%F %T%.f')"
        line = f"in polars: df.with_columns(pl.coalesce({parsed}, {column!r}))"
    what = f"{found.string[:40]!r} may begin with a day or a month: write dates as 2024-03-01"
    return f"{what} ({line}, or {month!r}; in a spreadsheet: the cell format YYYY-MM-DD{' HH:MM:SS' * bool(minutes)})"
