"""The columns of files: matched with a mapping, what they hold, and the leaves of an episode that they become, each by SQL.

* `match`: before data is read; raises with every column that is missing, and near names.
* `columns_of`: what columns hold. Where numbers are text every cell is read, because the last row may have the first decimal.
* `lay_out`: the leaves; raises with every column that contradicts the mapping.

Names and texts of files never become SQL.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import json
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
from offline_cli.formats.rllib.packed import looks_packed
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
from offline_cli.formats.tables.text_files import NO_LETTER, SAY_ENCODING
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["Column", "Layout", "Leaf", "category_space", "columns_of", "common_columns", "expanded", "lay_out", "match"]
__all__ += ["meanings_of", "texts_of", "value_sql"]

MEANINGS: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS})
INDEXES: Final = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls the numbers of its rows
ROLE_ALONE: Final = re.compile(r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)")  # no more than a role
FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)
KINDS: Final = ("number", "number", "bool", "list", "list", "time", "text")  # of cells of text: see `_cell_sql`
FRACTIONS: Final = (1, 4)  # those of them that no integers hold
TEXT: Final = 6
MOST_TEXTS: Final = 256  # of a column of categories that are proposed
SHOWN: Final = 40  # columns listed in a message
SAMPLES: Final = 12
DAY_FIRST: Final = re.compile(r"^\s*\d{1,2}([/.-])\d{1,2}\1(\d{2,4})\b")
DECIMAL_COMMA: Final = re.compile(r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
LARGEST: Final = 9_200_000_000_000_000_000  # of numbers that are read as integers of 64 bits


@dataclass(frozen=True, slots=True)
class Column:
    """One of their columns: what its cells hold in all files, and how they are read."""

    name: str
    cells: str = ""  # what most are: number, list, bool, time, text, other; "": no row has a value; said: category, image
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))  # that holds all of them
    held: str = ""  # the type, where it holds neither numbers nor text
    is_soft: bool = False  # its numbers have no dtype in the files
    rows: int = 0
    nulls: int = 0
    kinds: tuple[str, ...] = ()  # of all cells of text
    samples: tuple[str, ...] = ()  # of texts that are nothing else
    depth: int = 1  # of lists
    categories: tuple[str, ...] = ()
    image: str = ""  # what bytes of an image are decoded to
    fill: str | float | None = None  # what a missing cell becomes: `zero`, `previous`, `mean`, a number; None: nothing

    @property
    def holds_arrays(self) -> bool:
        """Whether a value is more than one number."""
        return self.cells in ("list", "image")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an episode."""

    part: Part
    columns: tuple[Column, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """`obs.camera`, `extra.action_logp`, `rewards`."""
        return self.part.name

    @property
    def role(self) -> str:
        """`obs`, `extra`, `rewards`."""
        return self.part.role


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
    def columns(self) -> list[tuple[Leaf, Column]]:
        """All columns of values, in the order of `v0`, `v1`, ... of a query."""
        return [(leaf, column) for leaf in self.leaves for column in leaf.columns]


# ---- the mapping and the columns of the files ----


def match(mapping: TableMapping, files: Mapping[str, Collection[str]]) -> tuple[TableMapping, tuple[str, ...], dict[str, str]]:
    """The mapping without optional parts that no file has; columns that may become extra model outputs, if they hold numbers;
    columns that are left out unread, and why.

    `files`: their columns by URL. Raises BadMapping with every column that is missing, or that `unmapped` refuses.
    """
    every, said = common_columns(files), mapping.said
    parts = [_costs(part, every) for part in mapping.parts]
    absent = [part for part in parts if part.said_as in said.optional and not _has(every, part)]
    used = replace(mapping, parts=tuple(part for part in parts if part not in absent))
    problems = [problem for url, columns in files.items() for problem in _missing(used, columns, url if len(files) > 1 else "")]
    for part in absent:
        having = [url for url, columns in files.items() if _has(columns, part)]
        if having:  # leaving it out of all would lose it silently
            what = f"column '{', '.join(part.columns)}' (for {part.said_as}) is in {having[0]} and not in all files"
            problems.append(f"{what}: convert these files apart, or leave it out of the mapping")
    named = set(used.names())
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    rest = [name for name in anywhere if name not in named and not any(name.startswith(f"{one}.") for one in named)]
    for name in rest:
        if said.unmapped == "error":
            problems.append(f"column '{name}' is not mapped, and unmapped = \"error\"")
        elif said.unmapped == EXTRA and name in MEANINGS:
            fix = 'name it under [columns], or say unmapped = "drop"'
            problems.append(f"column '{name}' is not mapped, but its name has a meaning here: {fix}")
    if problems:
        fix = f"the columns are: {listed(every)}"
        if any(NO_LETTER in name for name in every):
            fix += f"; for the letters that are missing there, {SAY_ENCODING}"
        if not every and len(files) > 1:
            fix = "the files have no column in common: convert them apart, each with its own mapping"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files)}", fix=fix)
    spare = tuple(name for name in rest if said.unmapped == EXTRA and name not in INDEXES and name in every)
    why = "the numbers of a data frame's rows" if said.unmapped == EXTRA else f'not named, and unmapped = "{said.unmapped}"'
    return used, spare, {name: why if name in every else "not in every file" for name in rest if name not in spare}


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


def columns_of(
    files: TableFiles, names: Collection[str], *, decimal: str, times: Collection[str], nulls: Collection[str] = ()
) -> dict[str, Column]:
    """Flat columns by name; `times`: those in which dates and times as text are recognised; `nulls`: whose nulls count."""
    found = {name: _typed(files, name) for name in names}
    texts = [name for name in found if files.holds_text(name)]
    counted = [name for name in found if name in nulls and name not in texts]
    if texts or counted:
        asked = ", ".join(["count(*)", *(f"count({files.column(name)})" for name in counted)])
        rows, *present = files.one(f"SELECT {asked} FROM {files.relation(counted)}")
        for name, count in zip(counted, present, strict=True):
            found[name] = replace(found[name], rows=rows, nulls=rows - count)
    if texts:  # as rows of one column: SQL that names thousands of columns takes DuckDB half a minute to plan
        columns = {files.column(name): name for name in texts}
        timed = [f"'{place}'" for place, name in columns.items() if name in times]
        cell = _cell_sql("x", decimal, f"name IN ({', '.join(timed)})" if timed else "")
        each = f"UNPIVOT (SELECT {', '.join(columns)} FROM {files.relation(texts)}) ON COLUMNS(*) INTO NAME name VALUE x"
        seen = dict.fromkeys(columns, (0, 0))
        for batch in files.query(f"SELECT name, count(*), bit_or(1 << ({cell})) FROM ({each}) GROUP BY name"):
            seen |= {name: counts for name, *counts in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)}
        for place, (count, mask) in seen.items():
            name = columns[place]
            found[name] = replace(found[name], rows=rows, nulls=rows - count)
            held = [kind for kind in range(len(KINDS)) if mask >> kind & 1]
            if held:
                found[name] = _of_text(files, found[name], _cell_sql(place, decimal, "true" if name in times else ""), held)
    return found


def _typed(files: TableFiles, name: str) -> Column:
    """What the types of a column say."""
    kind = files.kind_of(name)
    if files.holds_text(name) or pa.types.is_null(kind):
        return Column(name, is_soft=True)
    dtypes = [dtype for one in files.types[name] if not pa.types.is_null(one) and (dtype := dtype_of(one)) is not None]
    if not dtypes or dtype_of(kind) is None:
        return Column(name, "other", held=str(kind))
    depth, inner = 0, kind
    while is_list(inner):
        depth, inner = depth + 1, inner.value_type
    cells = "time" if pa.types.is_temporal(kind) else "list" if depth or isinstance(kind, pa.BaseExtensionType) else "number"
    return Column(name, cells, np.result_type(*dtypes), is_soft=files.is_text, depth=depth)


def _of_text(files: TableFiles, column: Column, cell: str, held: Sequence[int]) -> Column:
    """What most cells of a column of text are; `held`: the kinds that occur."""
    kinds, place = tuple(dict.fromkeys(KINDS[kind] for kind in held)), files.column(column.name)
    cells, depth, texts = kinds[0], 1, list[str]()
    if len(kinds) > 1:
        same = [[kind for kind in held if KINDS[kind] == one] for one in kinds]
        asked = ", ".join(f"count(*) FILTER (WHERE list_contains({one}, x))" for one in same)
        counts = files.one(f"SELECT {asked} FROM (SELECT {cell} AS x FROM {files.relation([column.name])})")
        cells = kinds[int(np.argmax(counts))]
    if cells == "list":
        brackets = f"length(regexp_extract(replace({place}, ' ', ''), '^\\[+'))"
        depth = files.one(f"SELECT max({brackets}) FROM {files.relation([column.name])}")[0] or 1
    if TEXT in held:
        sql = f"SELECT {place} FROM {files.relation([column.name])} WHERE {cell} = {TEXT} LIMIT 1000"
        texts = [text for batch in files.query(sql) for text in batch.column(0).to_pylist()]
    has_fractions = any(kind in held for kind in FRACTIONS if KINDS[kind] == cells)
    dtype = np.dtype(np.bool_ if cells == "bool" else np.float64 if has_fractions else np.int64)
    samples = tuple(dict.fromkeys(texts))[:SAMPLES]
    return replace(column, cells=cells, dtype=dtype, kinds=kinds, samples=samples, depth=depth)


def texts_of(files: TableFiles, name: str, most_rows: int = 1 << 62) -> list[str] | None:
    """All different texts of a column, sorted; None for more than MOST_TEXTS."""
    inner = f"SELECT CAST({files.column(name)} AS VARCHAR) AS c FROM {files.relation([name])} LIMIT {int(most_rows)}"
    sql = f"SELECT DISTINCT c FROM ({inner}) WHERE c IS NOT NULL LIMIT {MOST_TEXTS + 1}"
    texts = [text for batch in files.query(sql) for text in batch.column(0).to_pylist()]
    return sorted(texts) if len(texts) <= MOST_TEXTS else None


# ---- SQL of a value ----


def _cell_sql(column: str, decimal: str, with_times: str) -> str:
    """What a cell of text is, as an index of `KINDS`; NULL where it is empty. `with_times`: where it may be a time, as SQL."""
    number = _number_sql(column, decimal)
    marks = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    time = f" WHEN {with_times} AND {_time_sql(column, 'us')} IS NOT NULL THEN 5" if with_times else ""
    return (
        f"CASE WHEN {column} IS NULL THEN NULL WHEN {number} IS NOT NULL"
        f" THEN CASE WHEN {marks} OR NOT abs({number}) < {LARGEST} THEN 1 ELSE 0 END"
        f" WHEN lower(trim({column})) IN ('true', 'false') THEN 2"
        f" WHEN starts_with(ltrim({column}), '[') THEN CASE WHEN regexp_matches({column}, '[.eEnN]') THEN 4 ELSE 3 END"
        f"{time} ELSE {TEXT} END"
    )


def _number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
    """The number in a text. DuckDB would take `1_000` for one too; with decimal commas a point makes none."""
    odd = f"contains({column}, '_')" + (f" OR contains({column}, '.')" if decimal == "," else "")
    text = f"replace({column}, ',', '.')" if decimal == "," else column
    return f"CASE WHEN NOT ({odd}) THEN TRY_CAST({text} AS {kind}) END"


def _time_sql(column: str, unit: str) -> str:
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


def value_sql(files: TableFiles, role: str, column: Column, decimal: str) -> tuple[str, list[Any]]:
    """A column's value, NULL where it has none, and the bound values. Times are nanoseconds as `t`, else microseconds."""
    place, cells = files.column(column.name), column.cells
    if cells == "category":
        return f"NULLIF(list_position(?, CAST({place} AS VARCHAR)), 0) - 1", [list(column.categories)]
    if not files.holds_text(column.name):
        is_nanos = pa.types.is_temporal(files.kind_of(column.name)) and files.units[column.name] == "ns"
        if cells == "time" and role == Columns.T:
            return (place if is_nanos else f"CASE WHEN abs({place}) < {LARGEST // 1000} THEN {place} * 1000 END"), []
        return (f"{place} // 1000" if is_nanos else place), []
    text = f"lower(trim({place}))"
    if role in FLAG_ROLES:  # 0 or 1 in any format of numbers, true or false, yes or no
        is_said = f"WHEN {text} IN ('true', 'yes', 'y', 't') THEN 1.0 WHEN {text} IN ('false', 'no', 'n', 'f') THEN 0.0"
        return f"CASE {is_said} ELSE TRY_CAST({place} AS DOUBLE) END", []
    if cells == "bool":
        return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END", []
    kind = "DOUBLE" if column.dtype.kind == "f" else "BIGINT"
    if cells == "list":
        return f"CASE WHEN starts_with(ltrim({place}), '[') THEN TRY_CAST({place} AS {kind}{'[]' * column.depth}) END", []
    return (_time_sql(place, "ns" if role == Columns.T else "us") if cells == "time" else _number_sql(place, decimal, kind)), []


# ---- leaves ----


def lay_out(
    matched: tuple[TableMapping, Sequence[str], Mapping[str, str]],
    files: TableFiles,
    columns: Mapping[str, Column],
    known: tuple[Space | None, Space | None],
) -> Layout:
    """The layout of all files, of what `match` gave. Raises BadMapping with every column that contradicts the mapping."""
    mapping, spare, dropped = matched
    problems, leaves, fills = list[str](), list[Leaf](), mapping.said.fill
    left_out = {name: why for name in spare if (why := _why_no_extra(columns[name]))}
    others = [Part(EXTRA, (name,), (name,)) for name in spare if name not in left_out]
    for part in (*mapping.parts, *others):
        structs = [theirs for theirs in part.columns if theirs not in files.kinds and theirs not in (FILE_ID, FOLDER_ID)]
        if structs and (part.role not in (*TREES, EXTRA) or part.stacked):
            problems.append(f"{part.said_as}: '{structs[0]}' is a struct: name one of its columns")
        elif part.role in (*TREES, EXTRA):
            for inner in _apart(part, structs, files):
                found = [_values(name, inner, columns[name], mapping, files, problems) for name in inner.columns]
                if all(one.cells != "other" for one in found):
                    leaves.append(Leaf(inner, tuple(found), np.result_type(*(one.dtype for one in found))))
        elif part.role in SCALARS:
            dtype = np.dtype(np.float64 if part.role == Columns.REWARDS else np.bool_)
            leaves.append(Leaf(part, tuple(Column(name, "number", dtype) for name in part.columns), dtype))
        elif part.role == Columns.T:
            order = columns[part.columns[0]]
            if order.cells not in ("number", "time"):
                held = order.held or order.cells or "no value"
                hint = "; ".join(filter(None, ["not numbers, dates or ISO times", _hint(order)]))
                problems.append(f"t: column '{order.name}' holds {held}, {hint}")
            dtype = np.dtype(np.float64 if order.dtype.kind == "f" and order.cells == "number" else np.int64)
            leaves.append(Leaf(part, (replace(order, dtype=dtype),), dtype))
    for i, leaf in enumerate(leaves):
        if leaf.role in FILLED_ROLES:
            leaves[i] = replace(leaf, columns=tuple(replace(one, fill=fills.get(one.name)) for one in leaf.columns))
    twins = {(leaf.role, leaf.part.path): leaf for leaf in leaves}
    leaves = [replace(leaf, dtype=_dtype(leaf, twins, mapping, known)) for leaf in leaves]
    problems += [*_bad_fills(leaves, fills), *_bad_keys(mapping, files.kinds)]
    if problems:
        fix = "name columns of numbers, lists of numbers or JSON lists; leave the others out"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files.columns)}", fix=fix)
    return Layout(tuple(leaves), mapping.infos, {**dropped, **left_out})


def _apart(part: Part, structs: Sequence[str], files: TableFiles) -> list[Part]:
    """A part for each column of a struct."""
    if not structs:
        return [part]
    names = expanded(structs[0], files.kinds)
    paths = [(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")) for name in names]
    return [replace(part, path=path, columns=(name,)) for name, path in zip(names, paths, strict=True)]


def _values(name: str, part: Part, column: Column, mapping: TableMapping, files: TableFiles, problems: list[str]) -> Column:
    """How the column is read as numbers; as `other`, and with a problem, where it holds none."""
    categories, image = mapping.said.categories.get(name, ()), mapping.said.images.get(name, "")
    held, kind = f"{part.said_as}: column '{name}' holds", files.kinds[name]
    if image and is_bytes(kind):
        return replace(column, cells="image", dtype=np.dtype(np.uint8), image=image)
    if categories and not column.held:
        return replace(column, cells="category", dtype=np.dtype(np.int64), categories=tuple(categories))
    if column.cells == "time":
        return replace(column, dtype=np.dtype(np.int64))
    if column.cells in ("number", "list", "bool") and not image:
        return column
    if image:
        problems.append(f"{part.said_as}: column '{name}' is one of [images], and holds {kind}, not bytes of PNG or JPEG")
    elif not column.cells:
        problems.append(f"{part.said_as}: column '{name}' has no value in any row")
    elif categories:
        problems.append(f"{held} {column.held}, and [categories] number one text a row; write a column for each")
    elif column.held:
        hint = f'; if these are PNG or JPEG: [images] {toml_key(name)} = "rgb"' if "binary" in column.held else ""
        problems.append(f"{held} {column.held}, not numbers{hint or '; this type is not supported'}")
    elif any(map(looks_packed, column.samples)):
        fix = "are read from Parquet and SampleBatch files only: record with output_compress_columns=[], or as Parquet"
        problems.append(f"{held} RLlib's packed values, which {fix}")
    else:
        said, texts = _hint(column), texts_of(files, name)
        names = "more than 256 different ones, too many" if texts is None else json.dumps(texts, ensure_ascii=False)
        said = said or f"if the texts are categories, number them in the mapping: [categories] {toml_key(name)} = {names}"
        shown = ", ".join(repr(text[:40]) for text in column.samples[:3])
        problems.append(f"{held} text ({shown}), not numbers; {said}")
    return replace(column, cells="other")


def _hint(column: Column) -> str:
    """What to write in place of decimal commas, and of dates that have two meanings; else empty."""
    if are_decimal_commas(column.samples):
        return f'{column.samples[0][:40]!r} looks like a decimal comma: say [csv] decimal = "," in the mapping'
    date = next(filter(DAY_FIRST.match, column.samples), "")
    return f"{date[:40]!r} may begin with a day or a month: write dates as 2024-03-01" if date else ""


def are_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether four of five are numbers such as `0,5`."""
    return bool(texts) and 5 * sum(map(bool, map(DECIMAL_COMMA.match, texts))) >= 4 * len(texts)


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def _why_no_extra(column: Column) -> str:
    """Why an unmapped column cannot be an extra model output; "" where all of it is numbers."""
    if column.held or not column.cells:
        return f"{column.held}, and not numbers" if column.held else "no value in any row"
    if len(column.kinds) > 1:
        return f"cells of several kinds: {', '.join(column.kinds)}"
    if column.cells == "text" or (column.cells == "time" and column.kinds):
        return _hint(column) or "text, and not numbers" if column.cells == "text" else "times as text"
    return "by its name a part of a struct, which the mapping does not name" if "." in column.name else ""


def _bad_keys(mapping: TableMapping, kinds: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Columns of ids and infos that hold none."""
    for theirs in mapping.names(*KEYS):
        kind = kinds.get(theirs, pa.string())
        if is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind):
            yield f"ids: column '{theirs}' holds {kind}, and neither text nor numbers"
    infos = kinds.get(mapping.infos or "", pa.null())
    if not (is_text(infos) or pa.types.is_null(infos)):
        yield f"infos: column '{mapping.infos}' holds {infos}, and neither JSON text nor structs"


def _bad_fills(leaves: Sequence[Leaf], fills: Mapping[str, str | float]) -> Iterator[str]:
    """Fills that the columns cannot hold."""
    filled = [(leaf, column) for leaf in leaves for column in leaf.columns if column.fill is not None]
    for name in fills:
        if name not in {column.name for _, column in filled}:
            yield f"fill: '{name}' is a struct, or holds no numbers: name its columns"
    for leaf, column in filled:
        what = f"fill: column '{column.name}' of {leaf.name} holds {leaf.dtype}"
        if column.fill == MEAN and (leaf.dtype.kind != "f" or column.holds_arrays):
            yield f"{what}, and no mean of them: a number, previous, or single floats by [dtypes]"


def _dtype(
    leaf: Leaf,
    twins: Mapping[tuple[str, tuple[str, ...]], Leaf],
    mapping: TableMapping,
    known: tuple[Space | None, Space | None],
) -> np.dtype[Any]:
    """The dtype that the mapping says; else that of the space, for decimals written as text; else of the values.

    `new_obs` has that of `obs`; an extra output of whole numbers with a null is one of floats, so that it can hold NaN.
    """
    role, dtype = Columns.OBS if leaf.role == Columns.NEXT_OBS else leaf.role, leaf.dtype
    for other in (Columns.OBS, Columns.NEXT_OBS) if role == Columns.OBS else ():
        dtype = np.result_type(dtype, twins.get((other, leaf.part.path), leaf).dtype)
    dtypes = mapping.said.dtypes
    said, space = {Columns.OBS: (dtypes.obs, known[0]), Columns.ACTIONS: (dtypes.actions, known[1])}.get(role, (None, None))
    if said is not None:
        return np.dtype(said)
    if space is not None and dtype.kind == "f" and all(column.is_soft for column in leaf.columns):
        inner = leaf_spaces(space).get(".".join(leaf.part.path))
        return np.dtype(inner.dtype) if isinstance(inner, spaces.Box) and np.dtype(inner.dtype).kind == "f" else dtype
    lacks = role == EXTRA and dtype.kind in "iu" and any(one.fill is None and one.nulls for one in leaf.columns)
    return np.dtype(np.float64) if lacks else dtype
