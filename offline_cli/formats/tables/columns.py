"""The columns of files matched with a mapping, and what they hold.

* `match`: before data is read; raises with every column that is missing, and near names.
* `facts_of`: what columns hold. Where numbers are text every cell is read, because the last row may have the first decimal.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.arrow_types import dtype_of, is_list
from offline_cli.formats.tables.csv_files import NO_LETTER, SAY_ENCODING
from offline_cli.formats.tables.files import TableFiles
from offline_cli.formats.tables.mapping import (
    EXTRA,
    FILE_ID,
    FILLED_ROLES,
    FOLDER_ID,
    Part,
    TableMapping,
    nearest,
)
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space

__all__ = ["Facts", "Matched", "facts_of", "match", "texts_of"]

MEANINGS: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS})
INDEXES: Final = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls the numbers of its rows
ROLE_ALONE: Final = re.compile(r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)")  # no more than a role
MOST_TEXTS: Final = 256  # of a column of categories that are proposed
SHOWN: Final = 40  # columns listed in a message
SAMPLES: Final = 12
LARGEST: Final = 9_200_000_000_000_000_000  # of numbers that are read as integers of 64 bits
DAY_FIRST: Final = re.compile(r"^\s*\d{1,2}([/.-])\d{1,2}\1(\d{2,4})\b")
DECIMAL_COMMA: Final = re.compile(r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
NOTHING: Final = frozenset(("n/a", "na", "#n/a", "null", "none", "nil", "-", "--", "?", "missing"))  # in lower case

_log = logging.getLogger(__name__)


# ---- the mapping and the columns of the files ----


@dataclass(frozen=True, slots=True)
class Matched:
    """A mapping whose columns all exist."""

    mapping: TableMapping  # without optional parts that no file has
    spare: tuple[str, ...]  # columns of all files, not named, that may become extra model outputs, where they hold numbers
    dropped: Mapping[str, str]  # columns of any file, not named, that are left out unread, and why


def match(mapping: TableMapping, files: Mapping[str, Collection[str]]) -> Matched:
    """`mapping` for these columns by URL. Raises BadMapping with every column that is missing, or that `unmapped` refuses."""
    every, said = common_columns(files), mapping.said
    parts = [_costs(part, every) for part in mapping.parts]
    absent = [part for part in parts if part.said_as in said.optional and not _has(every, part)]
    used = mapping.with_parts(tuple(part for part in parts if part not in absent))
    problems = [problem for url, columns in files.items() for problem in _missing(used, columns, url if len(files) > 1 else "")]
    for part in absent:
        having = [url for url, columns in files.items() if _has(columns, part)]
        if having:  # leaving it out of all would lose it silently
            what = f"column '{', '.join(part.columns)}' (for {part.said_as}) is in {having[0]} and not in all files"
            problems.append(f"{what}: convert these files apart, or leave it out of the mapping")
    named = set(used.names())
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    rest = [name for name in anywhere if name not in named and not any(name.startswith(f"{one}.") for one in named)]
    if said.unmapped == "error":
        problems += [f"column '{name}' is not mapped, and unmapped = \"error\"" for name in rest]
    elif said.unmapped == EXTRA:
        fix = 'name it under [columns], or say unmapped = "drop"'
        problems += [
            f"column '{name}' is not mapped, but its name has a meaning here: {fix}" for name in rest if name in MEANINGS
        ]
    if problems:
        letters = (
            f"; for the letters that are missing there, {SAY_ENCODING}" if any(NO_LETTER in name for name in every) else ""
        )
        fix = f"the columns are: {listed(every)}{letters}"
        if not every and len(files) > 1:
            fix = "the files have no column in common: convert them apart, each with its own mapping"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files)}", fix=fix)
    for name in sorted(set(used.names(Columns.OBS)).intersection(used.names(Columns.ACTIONS))):
        _log.warning("note: column %r is in obs and in actions: a policy that sees its own action learns to copy it", name)
    spare = [name for name in rest if said.unmapped == EXTRA and name not in INDEXES and name in every]
    why = "the numbers of a data frame's rows" if said.unmapped == EXTRA else f'not named, and unmapped = "{said.unmapped}"'
    dropped = {name: why if name in every else "not in every file" for name in rest if name not in spare}
    return Matched(used, tuple(spare), dropped)


def _costs(part: Part, columns: Collection[str]) -> Part:
    """`rewards = "-cost"` is the column `cost`, as a negative reward."""
    name = part.columns[0]
    if part.role == Columns.REWARDS and name.startswith("-") and name not in columns:
        return replace(part, columns=(name[1:].strip(),), is_cost=True)
    return part


def common_columns(files: Mapping[str, Collection[str]]) -> list[str]:
    """The columns that every file has, in the order of the first one."""
    first, *others = (dict.fromkeys(columns) for columns in files.values())
    return [name for name in first if all(name in other for other in others)]


def expanded(theirs: str, columns: Collection[str]) -> list[str]:
    """The column itself, or the columns of the struct of that name."""
    return [theirs] if theirs in columns else [name for name in columns if name.startswith(f"{theirs}.")]


def _has(columns: Collection[str], part: Part) -> bool:
    return all(theirs in (FILE_ID, FOLDER_ID) or expanded(theirs, columns) for theirs in part.columns)


def _missing(mapping: TableMapping, columns: Collection[str], url: str) -> list[str]:
    lacking: dict[str, list[str]] = {}
    for part in mapping.parts:
        for theirs in part.columns:
            if not _has(columns, replace(part, columns=(theirs,))):
                lacking.setdefault(theirs, []).append(part.said_as)
    place = f" in {url}" if url else ""
    return [
        f"no column '{theirs}'{place} (for {', '.join(dict.fromkeys(ours))}){nearest(theirs, columns)}"
        for theirs, ours in lacking.items()
    ]


def first_url(files: Mapping[str, Any]) -> str:
    """The first of some files, for messages."""
    return f"{next(iter(files))}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"


def listed(columns: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(columns[:SHOWN]) + (f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else "")


def category_space(mapping: TableMapping, role: str) -> Space | None:
    """The space of a column of categories: as many as the mapping names, whether or not each of them is there."""
    parts = mapping.of(role)
    names = mapping.said.categories.get(parts[0].columns[0], ()) if parts else ()
    return spaces.Discrete(len(names)) if names and len(parts) == 1 and not (parts[0].path or parts[0].stacked) else None


def meanings_of(mapping: TableMapping) -> Meanings:
    """What the mapping says of its columns. A single column gives its name, unless that, or a part's own, says as much."""
    said, found = mapping.said, dict[str, tuple[Element, ...]]()
    for part in mapping.parts:
        is_named = part.stacked or not (part.path or ROLE_ALONE.fullmatch(part.columns[0].lower()))
        elements = []
        for name in part.columns:
            texts = said.categories.get(name)
            own = said.names.get(name, name if is_named else None)
            elements.append(Element(own, None if texts is None else tuple(texts), said.units.get(name)))
        if part.role in FILLED_ROLES and part.role != Columns.NEXT_OBS and any(one != Element() for one in elements):
            found[part.said_as] = tuple(elements)
    return Meanings(found)


# ---- what columns hold ----

CELLS: Final = ("int", "float", "bool", "list", "float_list", "time", "text")  # what cells of text are
OF_KIND: Final = {
    "number": ("int", "float"),
    "list": ("list", "float_list"),
    "bool": ("bool",),
    "time": ("time",),
    "text": ("text",),
}


@dataclass(slots=True)
class Facts:
    """What one column holds, in all files."""

    kind: str = ""  # what most cells are: number, list, bool, time, text; "": no row has a value
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))  # that holds all cells of this kind
    odd: str = ""  # the type, where it holds neither numbers nor text
    is_soft: bool = False  # its numbers have no dtype in the files
    is_typed: bool = False  # cells are no text
    rows: int = 0
    nulls: int = 0
    cells: dict[str, int] = field(default_factory=dict)  # of text
    depth: int = 1  # of lists
    samples: list[str] = field(default_factory=list)  # of texts that are nothing else

    @property
    def kinds(self) -> list[str]:
        """All kinds of cells of text."""
        return [kind for kind, cells in OF_KIND.items() if any(self.cells.get(cell) for cell in cells)]


def facts_of(
    files: TableFiles, columns: Collection[str], *, decimal: str, times: Collection[str], nulls: Collection[str]
) -> dict[str, Facts]:
    """Facts of flat columns; `times`: those in which dates and times as text are recognised; `nulls`: whose nulls count."""
    found = {name: _typed_facts(files, name) for name in columns}
    texts = [name for name in found if files.holds_text(name)]
    counted = list(dict.fromkeys([*texts, *(name for name in nulls if name in found)]))
    if not counted:
        return found
    places = {name: files.column(name) for name in texts}
    inner = ", ".join(["*", *(f"{number_sql(place, decimal)} AS {place}n" for place in places.values())])
    asked = ["count(*)", *(f"count({files.column(name)})" for name in counted)]
    asked += [f"count({place}n), bool_or({_fraction_sql(place, f'{place}n', decimal)})" for place in places.values()]
    row = iter(files.one(f"SELECT {', '.join(asked)} FROM (SELECT {inner} FROM {files.relation(counted)})"))
    rows = next(row)
    for name in counted:
        found[name].rows, found[name].nulls = rows, rows - next(row)
    for name in texts:
        facts, numbers, has_fractions = found[name], next(row), bool(next(row))
        facts.cells = dict.fromkeys(CELLS, 0) | {"int": numbers - has_fractions, "float": int(has_fractions)}
        if numbers < rows - facts.nulls:  # others too, which takes longer to find out
            kinds = ", ".join(f"count(*) FILTER (WHERE x = {number})" for number in range(len(CELLS)))
            cell = _cell_sql(places[name], decimal, name in times)
            counts = files.one(f"SELECT {kinds} FROM (SELECT {cell} AS x FROM {files.relation([name])})")
            facts.cells = dict(zip(CELLS, counts, strict=True))
        count = {kind: sum(facts.cells[cell] for cell in cells) for kind, cells in OF_KIND.items()}
        facts.kind = max(facts.kinds, key=lambda kind: count[kind], default="")
        fractions = facts.cells[{"list": "float_list"}.get(facts.kind, "float")]
        facts.dtype = np.dtype(np.bool_ if facts.kind == "bool" else np.float64 if fractions else np.int64)
        if facts.cells["text"] or facts.kind == "list":
            _see_texts(files, name, facts, decimal, with_times=name in times)
    return found


def _typed_facts(files: TableFiles, name: str) -> Facts:
    kind = files.kind_of(name)
    if files.holds_text(name) or pa.types.is_null(kind):
        return Facts(is_soft=True)
    kinds = [types[name] for types in files.types.values() if name in types]
    dtypes = [dtype for one in dict.fromkeys(kinds) if not pa.types.is_null(one) and (dtype := dtype_of(one)) is not None]
    if not dtypes or dtype_of(kind) is None:
        return Facts("other", odd=str(kind), is_typed=True)
    depth, inner = 0, kind
    while is_list(inner):
        depth, inner = depth + 1, inner.value_type
    holds = "time" if pa.types.is_temporal(kind) else "list" if depth or isinstance(kind, pa.BaseExtensionType) else "number"
    return Facts(holds, np.result_type(*dtypes), is_soft=files.is_text, is_typed=True, depth=depth)


def _fraction_sql(column: str, number: str, decimal: str) -> str:
    """Whether the number in a text is none of the integers of 64 bits; NULL where there is none."""
    marks = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    return f"CASE WHEN {number} IS NOT NULL THEN {marks} OR NOT abs({number}) < {LARGEST} END"


def _cell_sql(column: str, decimal: str, with_times: bool) -> str:
    """What a cell of text is, as a number of `CELLS`; NULL where it is empty."""
    number = number_sql(column, decimal)
    time = f" WHEN {time_sql(column, 'us')} IS NOT NULL THEN 5" if with_times else ""
    return (
        f"CASE WHEN {column} IS NULL THEN NULL WHEN {number} IS NOT NULL"
        f" THEN CASE WHEN {_fraction_sql(column, number, decimal)} THEN 1 ELSE 0 END"
        f" WHEN lower(trim({column})) IN ('true', 'false') THEN 2"
        f" WHEN starts_with(ltrim({column}), '[') THEN CASE WHEN regexp_matches({column}, '[.eEnN]') THEN 4 ELSE 3 END"
        f"{time} ELSE 6 END"
    )


def _see_texts(files: TableFiles, name: str, facts: Facts, decimal: str, *, with_times: bool) -> None:
    """Samples of texts that are nothing else, and how deep lists are nested."""
    column = files.column(name)
    depth = f"length(regexp_extract(replace({column}, ' ', ''), '^\\[+'))"
    if facts.kind == "list":
        facts.depth = files.one(f"SELECT max({depth}) FROM {files.relation([name])}")[0] or 1
    sql = f"SELECT {column} FROM {files.relation([name])} WHERE {_cell_sql(column, decimal, with_times)} = 6 LIMIT 10000"
    texts = dict.fromkeys(text for batch in files.query(sql) for text in batch.column(0).to_pylist())
    facts.samples = list(texts)[:SAMPLES]


def texts_of(files: TableFiles, name: str, most_rows: int = 1 << 62) -> list[str] | None:
    """All different texts of a column, sorted; None for more than MOST_TEXTS."""
    inner = f"SELECT CAST({files.column(name)} AS VARCHAR) AS c FROM {files.relation([name])} LIMIT {int(most_rows)}"
    sql = f"SELECT DISTINCT c FROM ({inner}) WHERE c IS NOT NULL LIMIT {MOST_TEXTS + 1}"
    texts = [text for batch in files.query(sql) for text in batch.column(0).to_pylist()]
    return sorted(texts) if len(texts) <= MOST_TEXTS else None


# ---- SQL of a value ----


def number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
    """The number in a text. DuckDB would take `1_000` for one too; with decimal commas a point makes none."""
    odd = f"contains({column}, '_')" + (f" OR contains({column}, '.')" if decimal == "," else "")
    text = f"replace({column}, ',', '.')" if decimal == "," else column
    return f"CASE WHEN NOT ({odd}) THEN TRY_CAST({text} AS {kind}) END"


def time_sql(column: str, unit: str) -> str:
    """Time since 1970 in UTC of an ISO text, as BIGINT; NULL where it is none, or too far for nanoseconds."""
    plain = "'^\\s*(\\d{4})(\\d{2})(\\d{2})[ Tt](\\d{2})(\\d{2})(\\d{2})', '\\1-\\2-\\3 \\4:\\5:\\6'"
    iso = f"regexp_replace({column}, {plain})"
    iso = f"regexp_replace({iso}, '^\\s*(\\d{{4}})[/.](\\d{{2}})[/.](\\d{{2}})', '\\1-\\2-\\3')"
    iso = f"regexp_replace(regexp_replace({iso}, '(:\\d{{2}}),(\\d)', '\\1.\\2'), ' ?([Zz]|UTC|GMT)\\s*$', '+00')"
    micros = f"epoch_us(TRY_CAST({iso} AS TIMESTAMPTZ))"
    known = f"regexp_matches({iso}, '^\\d{{4}}-\\d{{2}}-\\d{{2}}')"
    if unit == "us":
        return f"CASE WHEN {known} THEN {micros} END"
    nanos = f"coalesce(TRY_CAST(rpad(regexp_extract({iso}, '\\.\\d{{6}}(\\d{{1,3}})', 1), 3, '0') AS BIGINT), 0)"
    return f"CASE WHEN {known} AND {column}[:4] BETWEEN '1678' AND '2261' THEN {micros} * 1000 + {nanos} END"


# ---- what to write in place of texts that are nearly numbers, or nearly times ----


def are_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether four of five are numbers such as `0,5`."""
    return bool(texts) and 5 * sum(map(bool, map(DECIMAL_COMMA.match, texts))) >= 4 * len(texts)


def hint_for(samples: Sequence[str]) -> str:
    """What to write for decimal commas, dates that have two meanings, and texts that mean nothing; else empty."""
    if are_decimal_commas(samples):
        return f'{samples[0][:40]!r} looks like a decimal comma: say [csv] decimal = "," in the mapping'
    if date := next(filter(DAY_FIRST.match, samples), ""):
        return f"{date[:40]!r} may begin with a day or a month: write dates as 2024-03-01"
    is_nothing = len(samples) == 1 and samples[0].strip().lower() in NOTHING
    return f"if it means no value: [csv] nulls = [{json.dumps(samples[0])}]" if is_nothing else ""
