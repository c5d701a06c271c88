"""What becomes of each column: the mapping matched with the columns of the files, what they hold, and the SQL of each value.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.packed import looks_packed
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.arrow_types import dtype_of, is_bytes, is_list
from offline_cli.formats.tables.files import TableFiles
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
from offline_cli.formats.tables.texts import NO_LETTER, SAY_ENCODING
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["ColumnPlan", "Facts", "Layout", "Leaf", "Matched", "facts_of", "lay_out", "match", "value_sql"]

FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)
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
    inner = [f"{_cell_sql(files.column(name), decimal, name in times)} AS {files.column(name)}x" for name in texts]
    asked = ["count(*)", *(f"count({files.column(name)})" for name in counted)]
    asked += [f"count(*) FILTER (WHERE {files.column(name)}x = {number})" for name in texts for number in range(len(CELLS))]
    row = iter(files.one(f"SELECT {', '.join(asked)} FROM (SELECT {', '.join(['*', *inner])} FROM {files.relation(counted)})"))
    rows = next(row)
    for name in counted:
        found[name].rows, found[name].nulls = rows, rows - next(row)
    for name in texts:
        facts = found[name]
        facts.cells = {cell: next(row) for cell in CELLS}
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


def _cell_sql(column: str, decimal: str, with_times: bool) -> str:
    """What a cell of text is, as a number of `CELLS`; NULL where it is empty."""
    number = _number_sql(column, decimal)
    fraction = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    time = f" WHEN {time_sql(column, 'us')} IS NOT NULL THEN 5" if with_times else ""
    return (
        f"CASE WHEN {column} IS NULL THEN NULL WHEN {number} IS NOT NULL"
        f" THEN CASE WHEN {fraction} OR NOT abs({number}) < {LARGEST} THEN 1 ELSE 0 END"
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


def _number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
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


def value_sql(files: TableFiles, leaf: Leaf, plan: ColumnPlan, decimal: str) -> tuple[str, list[Any]]:
    """A column's value, NULL where it has none, and the bound values."""
    column = files.column(plan.column)
    if plan.cells == "category":
        return f"NULLIF(list_position(?, CAST({column} AS VARCHAR)), 0) - 1", [list(plan.categories)]
    if not files.holds_text(plan.column):
        is_nanos = pa.types.is_temporal(files.kind_of(plan.column)) and files.unit(plan.column) == "ns"
        if plan.cells == "time":
            return (column if is_nanos else f"CASE WHEN abs({column}) < {LARGEST // 1000} THEN {column} * 1000 END"), []
        return (f"{column} // 1000" if is_nanos else column), []
    text = f"lower(trim({column}))"
    if leaf.role in FLAG_ROLES:  # 0 or 1 in any format of numbers, true or false, yes or no
        is_said = f"WHEN {text} IN ('true', 'yes', 'y', 't') THEN 1.0 WHEN {text} IN ('false', 'no', 'n', 'f') THEN 0.0"
        return f"CASE {is_said} ELSE TRY_CAST({column} AS DOUBLE) END", []
    if plan.cells == "bool":
        return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END", []
    kind = "DOUBLE" if plan.dtype.kind == "f" else "BIGINT"
    if plan.cells == "list":
        return f"CASE WHEN starts_with(ltrim({column}), '[') THEN TRY_CAST({column} AS {kind}{'[]' * plan.depth}) END", []
    if plan.cells in ("time", "microseconds"):
        return time_sql(column, "ns" if plan.cells == "time" else "us"), []
    return _number_sql(column, decimal, kind), []


# ---- the layout ----


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one of their columns is read."""

    column: str
    dtype: np.dtype[Any]
    cells: str  # what cells are: number, list, bool, time (of t, for its order), microseconds, category; or image
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
    infos: str | None
    dropped: Mapping[str, str]  # columns left out, and why

    def of(self, role: str) -> tuple[Leaf, ...]:
        """The leaves of one role."""
        return tuple(leaf for leaf in self.leaves if leaf.role == role)

    @property
    def t(self) -> Leaf | None:
        """The order of rows."""
        return next(iter(self.of(Columns.T)), None)

    @property
    def plans(self) -> list[tuple[Leaf, ColumnPlan]]:
        """All columns of values, in the order of `v0`, `v1`, ... of the query."""
        return [(leaf, plan) for leaf in self.leaves for plan in leaf.columns]

    @property
    def columns(self) -> list[str]:
        """Their columns that hold values."""
        return [*dict.fromkeys(plan.column for _, plan in self.plans), *([self.infos] if self.infos is not None else [])]


def lay_out(
    matched: Matched, files: TableFiles, facts: Mapping[str, Facts], known: tuple[Space | None, Space | None]
) -> Layout:
    """The layout of all files. Raises BadMapping with every column that contradicts the mapping."""
    mapping, problems, leaves = matched.mapping, list[str](), list[Leaf]()
    for part in mapping.parts:
        structs = [theirs for theirs in part.columns if theirs not in files.kinds and theirs not in (FILE_ID, FOLDER_ID)]
        if structs and (part.role not in (*TREES, EXTRA) or part.stacked):
            problems.append(f"{part.said_as}: '{structs[0]}' is a struct: name one of its columns")
        elif part.role in (*TREES, EXTRA):
            for inner in _apart(part, structs, files):
                leaves += _leaf(inner, files, facts, mapping, problems)
        elif part.role in SCALARS:
            dtype = np.dtype(np.float64 if part.role == Columns.REWARDS else np.bool_)
            plans = tuple(ColumnPlan(one, dtype, "number") for one in part.columns)
            leaves.append(Leaf(part.name, part.role, part.path, plans, False, dtype, part.is_cost))
        elif part.role == Columns.T:
            leaves += _order(part, facts[part.columns[0]], problems)
    left_out = {name: why for name in matched.spare if (why := _why_no_extra(name, facts[name]))}
    for name in matched.spare:
        if name not in left_out and (plan := _plan(name, facts[name], (), name, files, problems)):
            leaves.append(Leaf(f"{EXTRA}.{name}", EXTRA, (name,), (plan,), False, plan.dtype))
    fills = mapping.said.fill
    for i, leaf in enumerate(leaves):
        if leaf.role in FILLED_ROLES:
            leaves[i] = replace(leaf, columns=tuple(replace(plan, fill=fills.get(plan.column)) for plan in leaf.columns))
    leaves = _with_dtypes(leaves, mapping, known, facts)
    problems += [*_bad_fills(leaves, fills), *_bad_keys(mapping, files.kinds)]
    infos = mapping.infos
    if infos in files.kinds and not (is_text(files.kinds[infos]) or pa.types.is_null(files.kinds[infos])):
        problems.append(f"infos: column '{infos}' holds {files.kinds[infos]}, and neither JSON text nor structs")
    if problems:
        where, fix = (
            f"mapping {mapping.name} for {first_url(files.types)}",
            "name columns of numbers, lists of numbers or JSON lists",
        )
        raise BadMapping.of(problems, where=where, fix=f"{fix}; leave the others out")
    return Layout(tuple(leaves), infos, {**matched.dropped, **left_out})


def _apart(part: Part, structs: Sequence[str], files: TableFiles) -> list[Part]:
    """A part for each column of a struct."""
    if not structs:
        return [part]
    names = expanded(structs[0], files.kinds)
    return [
        replace(part, path=(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")), columns=(name,)) for name in names
    ]


def _leaf(
    part: Part, files: TableFiles, facts: Mapping[str, Facts], mapping: TableMapping, problems: list[str]
) -> Iterator[Leaf]:
    plans = []
    for theirs in part.columns:
        image = mapping.said.images.get(theirs, "")
        if image and is_bytes(files.kinds[theirs]):
            plans.append(ColumnPlan(theirs, np.dtype(np.uint8), "image", vectors=True, image=image))
        elif image:
            held = files.kinds[theirs]
            problems.append(f"{part.said_as}: column '{theirs}' is one of [images], and holds {held}, not bytes of PNG or JPEG")
        elif plan := _plan(theirs, facts[theirs], mapping.said.categories.get(theirs, ()), part.said_as, files, problems):
            plans.append(plan)
    if len(plans) == len(part.columns):
        dtype = np.result_type(*(plan.dtype for plan in plans))
        yield Leaf(part.name, part.role, part.path, tuple(plans), part.stacked, dtype)


def _plan(
    column: str, facts: Facts, categories: Sequence[str], ours: str, files: TableFiles, problems: list[str]
) -> ColumnPlan | None:
    """How the column is read as numbers; None, and a problem, where it holds none."""
    plan = None if facts.odd else plan_of(column, facts, categories)
    if plan is None:
        held = f"{ours}: column '{column}' holds"
        if not (facts.odd or facts.kind):
            problems.append(f"{ours}: column '{column}' has no value in any row")
        elif categories:
            problems.append(f"{held} {facts.odd}, and [categories] number one text a row; write a column for each")
        elif facts.odd:
            hint = f'; if these are PNG or JPEG: [images] {toml_key(column)} = "rgb"' if "binary" in facts.odd else ""
            problems.append(f"{held} {facts.odd}, not numbers{hint or '; this type is not supported'}")
        elif any(map(looks_packed, facts.samples)):
            fix = "are read from Parquet and SampleBatch files only: record with output_compress_columns=[], or as Parquet"
            problems.append(f"{held} RLlib's packed values, which {fix}")
        else:
            shown = ", ".join(repr(text[:40]) for text in facts.samples[:3])
            problems.append(f"{held} text ({shown}), not numbers; {hint_for(facts.samples) or _categories(files, column)}")
    return plan


def _categories(files: TableFiles, column: str) -> str:
    texts = texts_of(files, column)
    if texts is None:
        return f"more than {MOST_TEXTS} different ones are too many for categories: write numbers, or leave it out"
    names = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return f"if the texts are categories, number them in the mapping: [categories] {toml_key(column)} = [{names}]"


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def plan_of(column: str, facts: Facts, categories: Sequence[str] = ()) -> ColumnPlan | None:
    """How the column is read as numbers; None where it holds none."""
    if categories:
        return ColumnPlan(column, np.dtype(np.int64), "category", tuple(categories))
    if facts.kind == "time":
        return ColumnPlan(column, np.dtype(np.int64), "microseconds")
    if facts.kind in ("number", "list", "bool"):
        return ColumnPlan(column, facts.dtype, facts.kind, vectors=facts.kind == "list", depth=facts.depth)
    return None


def _order(part: Part, facts: Facts, problems: list[str]) -> Iterator[Leaf]:
    """Of t: an integer, or a float where it has decimals."""
    column = part.columns[0]
    if facts.kind not in ("number", "time"):
        hint = hint_for(facts.samples)
        held = f"{facts.odd or facts.kind or 'no value'}, not numbers, dates or ISO times{hint and '; '}{hint}"
        problems.append(f"t: column '{column}' holds {held}")
        return
    dtype = np.dtype(np.float64 if facts.dtype.kind == "f" and facts.kind == "number" else np.int64)
    yield Leaf(Columns.T, Columns.T, (), (ColumnPlan(column, dtype, facts.kind),), False, dtype)


def _why_no_extra(name: str, facts: Facts) -> str:
    """Why an unmapped column cannot be an extra model output; "" where all of it is numbers."""
    if facts.odd:
        return f"{facts.odd}, and not numbers"
    if not facts.kind:
        return "no value in any row"
    if facts.samples and (hint := hint_for(facts.samples)):
        return hint
    if len(facts.kinds) > 1:
        return f"cells of several kinds: {', '.join(facts.kinds)}"
    if facts.kind == "text" or (facts.kind == "time" and not facts.is_typed):
        return "text, and not numbers" if facts.kind == "text" else "times as text"
    return "by its name a part of a struct, which the mapping does not name" if "." in name else ""


def _bad_keys(mapping: TableMapping, kinds: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Columns of ids that hold no ids."""
    for theirs in mapping.names(*KEYS):
        kind = kinds.get(theirs, pa.string())
        if is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind):
            yield f"ids: column '{theirs}' holds {kind}, and neither text nor numbers"


def _bad_fills(leaves: Sequence[Leaf], fills: Mapping[str, str | float]) -> Iterator[str]:
    """Fills that the columns cannot hold."""
    plans = [(leaf, plan) for leaf in leaves for plan in leaf.columns if plan.fill is not None]
    for column in fills:
        if column not in {plan.column for _, plan in plans}:
            yield f"fill: '{column}' is a struct, or holds no numbers: name its columns"
    for leaf, plan in plans:
        what = f"fill: column '{plan.column}' of {leaf.name} holds {leaf.dtype}"
        if plan.fill == MEAN and leaf.dtype.kind != "f":
            yield f"{what}, and no mean of them: a number, previous, or floats by [dtypes]"
        elif isinstance(plan.fill, float) and leaf.dtype.kind != "f":
            ends = (0, 1) if leaf.dtype.kind == "b" else (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
            low, high = (0, len(plan.categories) - 1) if plan.categories else ends
            if not (plan.fill.is_integer() and low <= plan.fill <= high):
                yield f"{what}, and not {plan.fill}"


def _with_dtypes(
    leaves: Sequence[Leaf], mapping: TableMapping, known: tuple[Space | None, Space | None], facts: Mapping[str, Facts]
) -> list[Leaf]:
    """The dtype that the mapping says; else that of the space, for decimals written as text; else of the values.

    `new_obs` has that of `obs`; an extra output of whole numbers with a null is one of floats, so that it can hold NaN.
    """
    twins = {(leaf.role, leaf.path): leaf for leaf in leaves}
    of_role = {Columns.OBS: (mapping.said.dtypes.obs, known[0]), Columns.ACTIONS: (mapping.said.dtypes.actions, known[1])}
    found = []
    for leaf in leaves:
        role, dtype = Columns.OBS if leaf.role == Columns.NEXT_OBS else leaf.role, leaf.dtype
        if role == Columns.OBS:
            other = Columns.OBS if leaf.role == Columns.NEXT_OBS else Columns.NEXT_OBS
            dtype = np.result_type(dtype, twins.get((other, leaf.path), leaf).dtype)
        said, space = of_role.get(role, (None, None))
        is_soft = all(plan.column in facts and facts[plan.column].is_soft for plan in leaf.columns)
        if said is not None:
            dtype = np.dtype(said)
        elif space is not None and dtype.kind == "f" and is_soft:
            inner = leaf_spaces(space).get(".".join(leaf.path))
            dtype = np.dtype(inner.dtype) if isinstance(inner, spaces.Box) and np.dtype(inner.dtype).kind == "f" else dtype
        elif (
            role == EXTRA
            and dtype.kind in "iu"
            and any(plan.fill is None and facts[plan.column].nulls for plan in leaf.columns)
        ):
            dtype = np.dtype(np.float64)
        found.append(replace(leaf, dtype=dtype))
    return found


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
