"""What becomes of each column: the mapping matched with the columns of the files, and the layout, with the SQL of each value.

* `match`: before data is read; raises with every column that is missing, and near names.
* `facts_of`: what the columns hold. Where numbers are text every cell is read, because the last row may have the first decimal.
* `lay_out`: the leaves of an episode, and what their columns are read as; raises with all columns that contradict the mapping.
* `value_sql`: a column as DuckDB reads it. Names and texts of files never become SQL.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.rllib.packed import looks_packed
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.arrow_messages import wholes
from offline_cli.formats.tables.files import NO_LETTER, SAY_ENCODING, TableFiles, is_list
from offline_cli.formats.tables.images import is_bytes
from offline_cli.formats.tables.mapping import (
    EXTRA,
    FILE_ID,
    FILLED_ROLES,
    FOLDER_ID,
    KEYS,
    MEAN,
    STARTS,
    TREES,
    Part,
    TableMapping,
    nearest,
)
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["ColumnPlan", "Facts", "Layout", "Leaf", "Matched", "facts_of", "flag_sql", "lay_out", "match", "value_sql"]

FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)
MEANINGS: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS})
INDEXES: Final = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls the numbers of its rows
DELIMITERS: Final = (";", "\t", "|", ",")
ROLE_ALONE: Final = re.compile(r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)")  # no more than a role
MOST_TEXTS: Final = 256  # of a column of categories that are proposed
SHOWN: Final = 40  # columns listed in a message
SAMPLES: Final = 12
LARGEST: Final = 9_200_000_000_000_000_000  # of numbers that are read as integers of 64 bits
DAY_FIRST: Final = re.compile(r"^\s*\d{1,2}([/.-])\d{1,2}\1(\d{2,4})\b([ T]\d{1,2}:\d{2})?(:\d{2})?(\.\d+)?")
DECIMAL_COMMA: Final = re.compile(r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
NOTHING: Final = frozenset(("n/a", "na", "#n/a", "null", "none", "nil", "-", "--", "?", "missing"))  # in lower case
APART: Final = "convert them apart, each with its own mapping"

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
    every = common_columns(files)
    parts = [_costs(part, every) for part in mapping.parts]
    absent = [
        part for part in parts if part.said_as in mapping.optional and not all(_is_there(one, every) for one in part.columns)
    ]
    used = replace(mapping, parts=tuple(part for part in parts if part not in absent))
    problems = [problem for url, columns in files.items() for problem in _missing(used, columns, url if len(files) > 1 else "")]
    for part in absent:
        having = [url for url, columns in files.items() if all(_is_there(one, columns) for one in part.columns)]
        if having:  # leaving it out of all would lose it silently
            lacking = next(url for url in files if url not in having)
            problems.append(
                f"column '{', '.join(part.columns)}' (for {part.said_as}) is in {having[0]} and not in {lacking}: convert these"
                " files apart, or leave it out of the mapping"
            )
    named = {theirs for part in used.parts for theirs in part.columns}
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    rest = [name for name in anywhere if not named.intersection(wholes(name))]
    if used.unmapped == "error":
        problems += [f"column '{name}' is not mapped, and unmapped = \"error\"" for name in rest]
    elif used.unmapped == EXTRA:
        fix = 'name it under [columns], or say unmapped = "drop"'
        problems += [
            f"column '{name}' is not mapped, but its name has a meaning here: {fix}" for name in rest if name in MEANINGS
        ]
    if problems:
        fix = f"the files have no column in common: {APART}"
        if every or len(files) == 1:
            letters = (
                f"; for the letters that are missing there, {SAY_ENCODING}" if any(NO_LETTER in name for name in every) else ""
            )
            fix = f"the columns are: {listed(every)}{other_delimiter(every)}{letters}"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files)}", fix=fix)
    both = (
        {name for part in used.parts if part.role == role for name in part.columns} for role in (Columns.OBS, Columns.ACTIONS)
    )
    for name in sorted(set.intersection(*both)):
        _log.warning("note: column %r is in obs and in actions: a policy that sees its own action learns to copy it", name)
    spare = [name for name in rest if used.unmapped == EXTRA and name not in INDEXES and name in every]
    dropped = {}
    for name in rest:
        if name not in spare:
            why = "not in every file" if name not in every else "the numbers of a data frame's rows"
            dropped[name] = why if used.unmapped == EXTRA else f'not named, and unmapped = "{used.unmapped}"'
    return Matched(used, tuple(spare), dropped)


def _costs(part: Part, columns: Collection[str]) -> Part:
    """`rewards = "-cost"` is the column `cost`, as a negative reward."""
    name = part.columns[0]
    if part.role == Columns.REWARDS and name.startswith("-") and name not in columns:
        return replace(part, columns=(name[1:].strip(),), is_cost=True)
    return part


def common_columns(files: Mapping[str, Collection[str]]) -> dict[str, None]:
    """The columns that every file has, in the order of the first one."""
    first, *others = (dict.fromkeys(columns) for columns in files.values())
    return {name: None for name in first if all(name in other for other in others)}


def _is_there(theirs: str, columns: Collection[str]) -> bool:
    return theirs in columns or theirs in (FILE_ID, FOLDER_ID) or any(name.startswith(f"{theirs}.") for name in columns)


def _missing(mapping: TableMapping, columns: Collection[str], url: str) -> list[str]:
    lacking: dict[str, list[str]] = {}
    for part in mapping.parts:
        for theirs in part.columns:
            if not _is_there(theirs, columns):
                lacking.setdefault(theirs, []).append(part.said_as)
    place = f" in {url}" if url else ""
    return [
        f"no column '{theirs}'{place} (for {', '.join(dict.fromkeys(ours))}){nearest(theirs, columns)}"
        for theirs, ours in lacking.items()
    ]


def other_delimiter(columns: Collection[str]) -> str:
    """What to do about a header that was read as one long name."""
    name = next(iter(columns)) if len(columns) == 1 else ""
    found = next((text for text in DELIMITERS if text in name), None)
    return "" if found is None else f"; if that is no name, say [csv] delimiter = {json.dumps(found)} in the mapping"


def first_url(files: Mapping[str, Any]) -> str:
    """The first of some files, for messages."""
    return f"{next(iter(files))}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"


def listed(columns: Collection[str]) -> str:
    """The first of some names."""
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    return ", ".join(list(columns)[:SHOWN]) + more


def category_space(mapping: TableMapping, role: str) -> Space | None:
    """The space of a column of categories: as many as the mapping names, whether or not each of them is there."""
    parts = mapping.of(role)
    names = mapping.categories.get(parts[0].columns[0], ()) if parts else ()
    return spaces.Discrete(len(names)) if names and len(parts) == 1 and not (parts[0].path or parts[0].stacked) else None


def meanings_of(mapping: TableMapping) -> Meanings:
    """What the mapping says of its columns. A single column gives its name, unless that, or a part's own, says as much."""
    names, units = (mapping.document.get(section, {}) for section in ("names", "units"))
    found: dict[str, tuple[Element, ...]] = {}
    for part in mapping.parts:
        is_named = part.stacked or not (part.path or ROLE_ALONE.fullmatch(part.columns[0].lower()))
        elements = tuple(
            Element(names.get(name, name if is_named else None), mapping.categories.get(name), units.get(name))
            for name in part.columns
        )
        if part.role in FILLED_ROLES and part.role != Columns.NEXT_OBS and any(one != Element() for one in elements):
            found[part.said_as] = elements
    return Meanings(found)


# ---- what columns hold ----


@dataclass(slots=True)
class Facts:
    """What one column holds, in all files."""

    dtypes: set[np.dtype[Any]] = field(default_factory=set)  # of typed numbers
    odd: set[str] = field(default_factory=set)  # types that hold neither numbers nor text
    has_times: bool = False  # typed dates and times
    has_lists: bool = False  # typed lists or tensors of numbers
    as_text: bool = False  # in a file without types
    rows: int = 0
    nulls: int = 0
    cells: dict[str, int] = field(
        default_factory=dict
    )  # of text, by what they are: int, float, bool, list, float_list, time, text
    depth: int = 1  # of lists in text
    samples: list[str] = field(default_factory=list)  # of texts

    @property
    def kinds(self) -> dict[str, int]:
        """How many cells of text are of each kind, of those that there are."""
        count = self.cells.get
        found = {
            "number": count("int", 0) + count("float", 0),
            "list": count("list", 0) + count("float_list", 0),
            "bool": count("bool", 0),
            "time": count("time", 0),
            "text": count("text", 0),
        }
        return {kind: times for kind, times in found.items() if times}

    @property
    def kind(self) -> str:
        """What most cells of text are; empty where there is none."""
        return max(self.kinds, key=lambda kind: self.kinds[kind], default="")

    @property
    def dtype(self) -> np.dtype[Any]:
        """That holds all cells of the kind that most are."""
        if self.kind == "bool":
            return np.dtype(np.bool_)
        fractions = self.cells.get({"number": "float", "list": "float_list"}.get(self.kind, ""), 0)
        return np.dtype(np.float64 if fractions else np.int64)

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return not (self.dtypes or self.odd or self.kind)


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Of the numbers in a column of that type; None where it holds none."""
    while isinstance(kind, pa.BaseExtensionType) or is_list(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    types = pa.types
    if types.is_struct(kind):  # a ragged tensor of Ray's
        return dtype_of(kind.field("data").type) if "data" in [kind.field(i).name for i in range(kind.num_fields)] else None
    if types.is_boolean(kind):
        return np.dtype(np.bool_)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(str(kind.to_pandas_dtype().__name__))
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if types.is_temporal(kind) and not types.is_interval(kind) else None


def facts_of(
    files: TableFiles, columns: Collection[str], *, decimal: str, times: Collection[str], nulls: Collection[str]
) -> dict[str, Facts]:
    """Facts of flat columns; `times`: those in which dates and times as text are recognised; `nulls`: whose nulls count."""
    found = {name: Facts(as_text=files.is_text) for name in columns}
    texts = []
    for name, facts in found.items():
        for kind in {types[name] for types in files.types.values() if name in types}:
            if isinstance(kind, pa.UuidType) or (is_text(kind)):
                texts.append(name)
            elif not pa.types.is_null(kind):
                dtype = dtype_of(kind)
                if dtype is None:
                    facts.odd.add(str(kind))
                elif files.is_text and is_text(files.kind_of(name)):
                    texts.append(name)
                else:
                    facts.dtypes.add(dtype)
                    facts.has_times |= bool(pa.types.is_temporal(kind))
                    facts.has_lists |= is_list(kind) or isinstance(kind, pa.BaseExtensionType)
        if is_text(files.kind_of(name)) and files.is_text:
            facts.dtypes.clear()
            facts.has_lists = False
    texts = list(dict.fromkeys(texts))
    counted = list(dict.fromkeys([*texts, *(name for name in nulls if name in found)]))
    if not counted:
        return found
    asked = ["count(*)"]
    for name in counted:
        column = files.column(name)
        asked.append(f"count({column})")
        if name in texts:
            asked += _numbers_sql(column, decimal)
    row = iter(files.one(f"SELECT {', '.join(asked)} FROM {files.relation(counted)}"))
    rows, rest = next(row), []
    for name in counted:
        facts = found[name]
        facts.rows = rows
        known = next(row)
        facts.nulls = rows - known
        if name in texts:
            numbers, has_fractions = next(row), bool(next(row))
            facts.cells = {"int": numbers - has_fractions, "float": int(has_fractions), "text": known - numbers}
            if known > numbers:
                rest.append(name)
    _see_others(files, found, rest, decimal, times)
    return found


def _number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
    """The number in a text. DuckDB would take `1_000` for one too; with decimal commas a point makes none."""
    odd = f"contains({column}, '_')" + (f" OR contains({column}, '.')" if decimal == "," else "")
    text = f"replace({column}, ',', '.')" if decimal == "," else column
    return f"CASE WHEN NOT ({odd}) THEN TRY_CAST({text} AS {kind}) END"


def _numbers_sql(column: str, decimal: str) -> list[str]:
    """How many numbers, and whether any of them is none of the integers."""
    number = _number_sql(column, decimal)
    fraction = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    return [f"count({number})", f"bool_or({number} IS NOT NULL AND ({fraction} OR NOT abs({number}) < {LARGEST}))"]


def _others_sql(column: str, decimal: str) -> list[str]:
    left = f"{_number_sql(column, decimal)} IS NULL"
    is_listed = f"{left} AND starts_with(ltrim({column}), '[')"
    return [
        f"count(*) FILTER (WHERE {left} AND lower(trim({column})) IN ('true', 'false'))",
        f"count(*) FILTER (WHERE {is_listed})",
        f"count(*) FILTER (WHERE {is_listed} AND regexp_matches({column}, '[.eEnN]'))",
        f"max(CASE WHEN {is_listed} THEN length(regexp_extract(replace({column}, ' ', ''), '^\\[+')) END)",
    ]


def _see_others(
    files: TableFiles, found: Mapping[str, Facts], rest: Sequence[str], decimal: str, times: Collection[str]
) -> None:
    """What those cells are that are no numbers."""
    for name in rest:
        facts, others = found[name], ", ".join(_others_sql(files.column(name), decimal))
        bools, lists, float_lists, depth = files.one(f"SELECT {others} FROM {files.relation([name])}")
        facts.cells |= {"bool": bools, "list": lists - float_lists, "float_list": float_lists}
        facts.cells["text"] -= bools + lists
        facts.depth = depth or 1
        if facts.cells["text"]:
            _see_texts(files, name, facts, decimal, with_times=name in times)


def _see_texts(files: TableFiles, name: str, facts: Facts, decimal: str, *, with_times: bool) -> None:
    column = files.column(name)
    is_rest = (
        f"{column} IS NOT NULL AND {_number_sql(column, decimal)} IS NULL"
        f" AND lower(trim({column})) NOT IN ('true', 'false') AND NOT starts_with(ltrim({column}), '[')"
    )
    is_time = f"{time_sql(column, 'us')} IS NOT NULL" if with_times else "false"
    times = files.one(f"SELECT count(*) FILTER (WHERE {is_rest} AND {is_time}) FROM {files.relation([name])}")[0]
    facts.cells["time"], facts.cells["text"] = times, facts.cells["text"] - times
    if facts.cells["text"]:
        sql = f"SELECT {column} FROM {files.relation([name])} WHERE {is_rest} AND NOT ({is_time}) LIMIT 10000"
        texts = dict.fromkeys(text for batch in files.query(sql) for text in batch.column(0).to_pylist())
        facts.samples = list(texts)[:SAMPLES]


def texts_of(files: TableFiles, names: Sequence[str], most_rows: int | None = None) -> dict[str, list[str] | None]:
    """All different texts of columns, sorted; None for more than MOST_TEXTS."""
    found: dict[str, list[str] | None] = {}
    for name in names:
        limit = "" if most_rows is None else f" LIMIT {int(most_rows)}"
        inner = f"SELECT CAST({files.column(name)} AS VARCHAR) AS c FROM {files.relation([name])}{limit}"
        sql = f"SELECT DISTINCT c FROM ({inner}) WHERE c IS NOT NULL LIMIT {MOST_TEXTS + 1}"
        texts = [text for batch in files.query(sql) for text in batch.column(0).to_pylist()]
        found[name] = sorted(texts) if len(texts) <= MOST_TEXTS else None
    return found


# ---- SQL of a value ----


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


def flag_sql(column: str) -> str:
    """A text as a flag: 0 or 1 in any format of numbers, true or false, yes or no."""
    return (
        f"CASE WHEN lower(trim({column})) IN ('true', 'yes', 'y', 't') THEN 1.0"
        f" WHEN lower(trim({column})) IN ('false', 'no', 'n', 'f') THEN 0.0 ELSE TRY_CAST({column} AS DOUBLE) END"
    )


def value_sql(files: TableFiles, leaf: Leaf, plan: ColumnPlan, decimal: str) -> tuple[str, list[Any]]:
    """A column's value, NULL where it has none, and the bound values."""
    column, kind = files.column(plan.column), files.kind_of(plan.column)
    is_time = bool(pa.types.is_temporal(kind))
    if plan.cells == "category":
        return f"NULLIF(list_position(?, CAST({column} AS VARCHAR)), 0) - 1", [list(plan.categories)]
    if not (is_text(kind) or isinstance(kind, pa.UuidType)):
        unit = files.unit(plan.column) if is_time else ""
        if is_time and plan.cells == "time":
            return (column if unit == "ns" else f"CASE WHEN abs({column}) < 9200000000000000 THEN {column} * 1000 END"), []
        return (f"{column} // 1000" if unit == "ns" else column), []
    if leaf.role in FLAG_ROLES:
        return flag_sql(column), []
    if plan.cells == "bool":
        return f"CASE lower(trim({column})) WHEN 'true' THEN true WHEN 'false' THEN false END", []
    if plan.cells == "list":
        inner = "DOUBLE" if plan.dtype.kind == "f" else "BIGINT"
        return f"CASE WHEN starts_with(ltrim({column}), '[') THEN TRY_CAST({column} AS {inner}{'[]' * plan.depth}) END", []
    if plan.cells in ("time", "microseconds"):
        return time_sql(column, "ns" if plan.cells == "time" else "us"), []
    return _number_sql(column, decimal, "DOUBLE" if plan.dtype.kind == "f" else "BIGINT"), []


# ---- the layout ----


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one of their columns is read."""

    column: str
    dtype: np.dtype[Any]
    cells: str  # what cells of text are: number, list, bool, time (of t, for its order), microseconds, category; or image
    categories: tuple[str, ...] = ()
    vectors: bool = False  # some file holds more than one number a value
    image: str = ""  # what bytes of an image are decoded to
    fill: str | float | None = None  # what a missing cell becomes: `zero`, `previous`, `mean`, a number; None: nothing
    depth: int = 1  # of lists in text


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an episode."""

    name: str  # `obs.camera`, `extra.action_logp`, `rewards`
    role: str
    path: tuple[str, ...]
    columns: tuple[ColumnPlan, ...]
    stacked: bool
    dtype: np.dtype[Any]
    is_cost: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """All leaves of a table, and the other columns read of it."""

    leaves: tuple[Leaf, ...]
    keys: tuple[tuple[str, str], ...]  # role and column: eps_id, maybe several times, agent_id, module_id
    infos: str | None
    dropped: Mapping[str, str]  # columns left out, and why
    counted_t: bool  # whether t counts steps: whole numbers that are no times
    split_at_gaps: bool = False

    def of(self, role: str) -> tuple[Leaf, ...]:
        """The leaves of one role."""
        return tuple(leaf for leaf in self.leaves if leaf.role == role)

    def splits_at(self, leaf: Leaf) -> bool:
        """Whether an episode ends at a missing cell of it."""
        return self.split_at_gaps and leaf.role in FILLED_ROLES

    @property
    def columns(self) -> list[str]:
        """Their columns that hold values."""
        found = [plan.column for leaf in self.leaves for plan in leaf.columns]
        return [*dict.fromkeys(found), *([self.infos] if self.infos is not None else [])]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of text that a mapping names for numbers."""

    column: str
    ours: str
    samples: Sequence[str]

    def problem(self, texts: Sequence[str] | None) -> str:
        """What is wrong, and what to write; `texts`: all that are different, None: too many."""
        if any(map(looks_packed, self.samples)):
            return (
                f"{self.ours}: column '{self.column}' holds RLlib's packed values, which are read from Parquet and SampleBatch "
                "files only: record with output_compress_columns=[], or as Parquet"
            )
        shown = ", ".join(repr(text[:40]) for text in self.samples[:3])
        said = f"{self.ours}: column '{self.column}' holds text ({shown}), not numbers; "
        if hint := hint_for_cells(self.column, self.samples):
            return said + hint
        if texts is None:
            return f"{said}more than {MOST_TEXTS} different ones are too many for categories: write numbers, or leave it out"
        names = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        key = (
            self.column if self.column.isidentifier() and self.column.isascii() else json.dumps(self.column, ensure_ascii=False)
        )
        return f"{said}if the texts are categories, number them in the mapping: [categories] {key} = [{names}]"


def lay_out(
    matched: Matched,
    files: TableFiles,
    facts: Mapping[str, Facts],
    known_spaces: tuple[Space | None, Space | None],
    texts: Callable[[Sequence[str]], Mapping[str, Sequence[str] | None]],
) -> Layout:
    """The layout of all files. Raises BadMapping with every column that contradicts the mapping."""
    mapping, problems = matched.mapping, list[str | TextColumn]()
    types = {name: files.kind_of(name) for name in files.names}
    leaves: list[Leaf] = []
    for part in mapping.parts:
        if part.role in (*TREES, EXTRA):
            leaves += _leaves(part, types, facts, mapping, problems)
        elif part.role in SCALARS:
            dtype = np.dtype(np.float64 if part.role == Columns.REWARDS else np.bool_)
            problems += [
                f"{part.said_as}: '{one}' is a struct: name one of its columns" for one in part.columns if one not in types
            ]
            plans = tuple(ColumnPlan(one, dtype, "number") for one in part.columns)
            leaves.append(Leaf(part.name, part.role, part.path, plans, False, dtype, part.is_cost))
        elif part.role == Columns.T:
            leaves += _order(part, facts, problems)
    left_out = {name: why for name in matched.spare if (why := _why_no_extra(name, facts[name]))}
    for name in matched.spare:
        if name not in left_out:
            plan = plan_of(name, facts[name], (), name, problems)
            assert plan is not None, problems  # of numbers, as `_why_no_extra` has seen
            leaves.append(Leaf(f"{EXTRA}.{name}", EXTRA, (name,), (plan,), False, plan.dtype))
    fills = mapping.fill
    leaves = [
        replace(leaf, columns=tuple(replace(plan, fill=fills.get(plan.column)) for plan in leaf.columns))
        if leaf.role in FILLED_ROLES
        else leaf
        for leaf in leaves
    ]
    leaves = _with_dtypes(leaves, mapping.dtypes, known_spaces, facts)
    problems += _bad_fills(leaves, fills)
    keys = tuple((part.role, theirs) for role in KEYS for part in mapping.of(role) for theirs in part.columns)
    for role, theirs in keys:
        kind = types.get(theirs)
        if kind is None and theirs not in (FILE_ID, FOLDER_ID):
            problems.append(f"{role}: '{theirs}' is a struct: name one of its columns")
        elif kind is not None and (is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)):
            problems.append(f"{role}: column '{theirs}' holds {kind}, and neither text nor numbers")
    infos = mapping.infos
    if infos in types and not (is_text(types[infos]) or pa.types.is_null(types[infos])):
        problems.append(f"infos: column '{infos}' holds {types[infos]}, and neither JSON text nor structs")
    if problems:
        known = texts([one.column for one in problems if isinstance(one, TextColumn)])
        raise BadMapping.of(
            [one if isinstance(one, str) else one.problem(known.get(one.column)) for one in problems],
            where=f"mapping {mapping.name} for {next(iter(files.types))}",
            fix="name columns of numbers, lists of numbers or JSON lists; leave the others out",
        )
    t = next((leaf for leaf in leaves if leaf.role == Columns.T), None)
    counted = t is not None and t.dtype.kind in "iu" and t.columns[0].cells != "time"
    return Layout(tuple(leaves), keys, infos, {**matched.dropped, **left_out}, counted, mapping.split_at_gaps)


def expanded(theirs: str, types: Collection[str]) -> list[str]:
    """The column itself, or the columns of the struct of that name."""
    return [theirs] if theirs in types else [name for name in types if name.startswith(f"{theirs}.")]


def _leaves(
    part: Part,
    types: Mapping[str, pa.DataType],
    facts: Mapping[str, Facts],
    mapping: TableMapping,
    problems: list[str | TextColumn],
) -> list[Leaf]:
    """One leaf, or one for each column of a struct."""
    structs = [theirs for theirs in part.columns if theirs not in types]
    if structs and part.stacked:
        problems.append(f"{part.said_as}: '{structs[0]}' is a struct, which cannot be stacked: name its columns")
        return []
    if structs:
        parts = [
            replace(part, path=(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")), columns=(name,))
            for name in expanded(structs[0], types)
        ]
        return [leaf for inner in parts for leaf in _leaves(inner, types, facts, mapping, problems)]
    plans = []
    for theirs in part.columns:
        if theirs in mapping.images and is_bytes(types[theirs]):
            plans.append(ColumnPlan(theirs, np.dtype(np.uint8), "image", vectors=True, image=mapping.images[theirs]))
        elif theirs in mapping.images:
            problems.append(
                f"{part.said_as}: column '{theirs}' is one of [images], and holds {types[theirs]}, not bytes of PNG or JPEG"
            )
        elif plan := plan_of(theirs, facts[theirs], mapping.categories.get(theirs, ()), part.said_as, problems):
            plans.append(plan)
    if len(plans) < len(part.columns):
        return []
    return [Leaf(part.name, part.role, part.path, tuple(plans), part.stacked, np.result_type(*(plan.dtype for plan in plans)))]


def plan_of(
    column: str, facts: Facts, categories: Sequence[str], ours: str, problems: list[str | TextColumn]
) -> ColumnPlan | None:
    """How the column is read as numbers; None, and a problem, where it holds none."""
    if categories and facts.odd:
        problems.append(
            f"{ours}: column '{column}' holds {min(facts.odd)}, and [categories] number one text a row; write a column for each"
        )
    elif categories:
        return ColumnPlan(column, np.dtype(np.int64), "category", tuple(categories))
    elif facts.odd:
        held = {"binary", "large_binary"}.issuperset(facts.odd)
        key = column if column.isidentifier() and column.isascii() else json.dumps(column, ensure_ascii=False)
        hint = f'; if these are PNG or JPEG: [images] {key} = "rgb"' if held else "; this type is not supported"
        problems.append(f"{ours}: column '{column}' holds {min(facts.odd)}, not numbers{hint}")
    elif facts.is_empty:
        problems.append(f"{ours}: column '{column}' has no value in any row")
    elif facts.kind == "time" and (facts.has_times or not facts.dtypes):
        return ColumnPlan(column, np.dtype(np.int64), "microseconds")
    elif facts.kind in ("text", "time") and not facts.dtypes:
        problems.append(TextColumn(column, ours, facts.samples))
    elif facts.kind in ("number", "list", "bool"):
        dtype = np.result_type(*facts.dtypes, facts.dtype)
        return ColumnPlan(column, dtype, facts.kind, vectors=facts.has_lists or facts.kind == "list", depth=facts.depth)
    else:
        return ColumnPlan(column, np.result_type(*facts.dtypes), "number", vectors=facts.has_lists)
    return None


def _order(part: Part, facts: Mapping[str, Facts], problems: list[str | TextColumn]) -> list[Leaf]:
    """Of t: an integer, or a float where it has decimals."""
    column = part.columns[0]
    known = facts.get(column)
    if known is None or known.odd or known.is_empty or known.kind in ("text", "list", "bool"):
        held = "a struct" if known is None else f"{min(known.odd)}" if known.odd else known.kind or "no value"
        hint = "" if known is None or not known.samples else hint_for_cells(column, known.samples)
        problems.append(f"t: column '{column}' holds {held}, not numbers, dates or ISO times{hint and '; '}{hint}")
        return []
    dtypes = [*known.dtypes, *([known.dtype] if known.kind == "number" else [])]
    dtype = np.dtype(np.float64 if any(one.kind == "f" for one in dtypes) else np.int64)
    cells = "time" if known.kind == "time" or known.has_times else "number"
    return [Leaf(Columns.T, Columns.T, (), (ColumnPlan(column, dtype, cells),), False, dtype)]


def _why_no_extra(name: str, facts: Facts) -> str:
    """Why an unmapped column cannot be an extra model output; "" where all of it is numbers."""
    if facts.odd:
        return f"{min(facts.odd)}, and not numbers"
    if facts.is_empty:
        return "no value in any row"
    if facts.cells.get("text") and (hint := hint_for_cells(name, facts.samples)):
        return hint
    if len(facts.kinds) > 1:
        return f"cells of several kinds: {', '.join(facts.kinds)}"
    if facts.cells.get("text") or facts.cells.get("time"):
        return "text, and not numbers" if facts.cells.get("text") else "times as text"
    return "by its name a part of a struct, which the mapping does not name" if "." in name else ""


def _bad_fills(leaves: Sequence[Leaf], fills: Mapping[str, str | float]) -> Iterator[str]:
    """Fills that the columns cannot hold."""
    plans = [(leaf, plan) for leaf in leaves for plan in leaf.columns if plan.fill is not None]
    used = {plan.column for _, plan in plans}
    yield from (
        f"fill: '{column}' is a struct, or holds no numbers: name its columns" for column in fills if column not in used
    )
    for leaf, plan in plans:
        what = f"fill: column '{plan.column}' of {leaf.name} holds {leaf.dtype}"
        if plan.fill == MEAN and leaf.dtype.kind != "f":
            yield f"{what}, and no mean of them: a number, previous, or floats by [dtypes]"
        elif not isinstance(plan.fill, str) and not _holds(plan, leaf.dtype, float(plan.fill or 0)):
            yield f"{what}, and not {plan.fill}"


def _holds(plan: ColumnPlan, dtype: np.dtype[Any], value: float) -> bool:
    if plan.categories:
        return value.is_integer() and 0 <= value < len(plan.categories)
    if dtype.kind == "f":
        return True
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return value.is_integer() and low <= value <= high


def _with_dtypes(
    leaves: Sequence[Leaf],
    said: Mapping[str, str],
    known_spaces: tuple[Space | None, Space | None],
    facts: Mapping[str, Facts],
) -> list[Leaf]:
    """The dtype that the mapping says; else that of the space, for decimals written as text; else of the values.

    `new_obs` has that of `obs`; an extra output of whole numbers with a null is one of floats, so that it can hold NaN.
    """
    twins = {(leaf.role, leaf.path): leaf for leaf in leaves}
    found = []
    for leaf in leaves:
        name = Columns.OBS if leaf.role == Columns.NEXT_OBS else leaf.role
        if name == Columns.OBS:
            twin = twins.get((Columns.OBS if leaf.role == Columns.NEXT_OBS else Columns.NEXT_OBS, leaf.path))
            leaf = replace(leaf, dtype=np.result_type(leaf.dtype, twin.dtype)) if twin is not None else leaf
        space = known_spaces[0] if name == Columns.OBS else known_spaces[1] if name == Columns.ACTIONS else None
        is_soft = all(
            plan.column in facts and (facts[plan.column].as_text or not facts[plan.column].dtypes) for plan in leaf.columns
        )
        if name in said and name in (Columns.OBS, Columns.ACTIONS):
            leaf = replace(leaf, dtype=np.dtype(said[name]))
        elif space is not None and leaf.dtype.kind == "f" and is_soft:
            inner = leaf_spaces(space).get(".".join(leaf.path))
            dtype = np.dtype(inner.dtype) if isinstance(inner, spaces.Box) else leaf.dtype
            leaf = replace(leaf, dtype=dtype if dtype.kind == "f" else leaf.dtype)
        elif leaf.role == EXTRA and leaf.dtype.kind in "iu" and any(_may_be_nan(plan, facts) for plan in leaf.columns):
            leaf = replace(leaf, dtype=np.dtype(np.float64))
        found.append(leaf)
    return found


def _may_be_nan(plan: ColumnPlan, facts: Mapping[str, Facts]) -> bool:
    return plan.fill is None and plan.column in facts and facts[plan.column].nulls > 0


# ---- what to write in place of texts that are nearly numbers, or nearly times ----


def are_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether four of five are numbers such as `0,5`."""
    return bool(texts) and 5 * sum(map(bool, map(DECIMAL_COMMA.match, texts))) >= 4 * len(texts)


def hint_for_cells(column: str, samples: Sequence[str]) -> str:
    """What to write for decimal commas, and for dates that have two meanings; empty where `samples` are neither."""
    if are_decimal_commas(samples):
        return f'{samples[0][:40]!r} looks like a decimal comma: say [csv] decimal = "," in the mapping'
    found = next(filter(None, map(DAY_FIRST.match, samples)), None)
    if found is None:
        nothing = next((text for text in samples if text.strip().lower() in NOTHING), None) if len(samples) == 1 else None
        return "" if nothing is None else f"if it means no value: [csv] nulls = [{json.dumps(nothing)}]"
    sign, year, minutes, seconds, fraction = found.groups()
    rest = ("%y" if len(year) == 2 else "%Y") + (f"{minutes[0]}%H:%M" if minutes else "") + ":%S" * bool(seconds)
    rest += ".%f" * bool(fraction)
    day, month = f"%d{sign}%m{sign}{rest}", f"%m{sign}%d{sign}{rest}"
    line = f"in pandas: pd.to_datetime(df[{column!r}], format={day!r})"
    return f"{found.string[:40]!r} may begin with a day or a month: write dates as 2024-03-01 ({line}, or {month!r})"
