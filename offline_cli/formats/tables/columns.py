"""Match the columns of files with a mapping, detect what they hold, and build SQL that reads them as leaves of episodes.

* `match`: checks the mapping before data is read; reports all missing columns, with similar names.
* `columns_of`: detects what columns hold. Text columns are read completely: only the last row may have a decimal.
* `lay_out`: the leaves of episodes; reports all columns that contradict the mapping.

Names and texts from files never become part of SQL.
"""

# ruff: noqa: S608  only our own names become SQL; values are bound

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.files import TableFiles, dtype_of, is_bytes, is_list
from offline_cli.formats.tables.mapping import (
    EXTRA,
    FILE_ID,
    FILLED_ROLES,
    FOLDER_ID,
    STARTS,
    TREES,
    Part,
    TableMapping,
    nearest,
)
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space, leaf_spaces

MEANINGS: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS})
INDEXES: Final = ("", "__index_level_0__", "Unnamed: 0")  # pandas's names for row numbers
ROLE_ALONE: Final = re.compile(
    r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)"
)  # column names that only state a role
FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)
KINDS: Final = ("number", "number", "bool", "list", "list", "time", "text")  # kinds of text cells: see `_cell_sql`
FRACTIONS: Final = (1, 4)  # indexes of the kinds that do not fit integers
LISTS, TEXT = (3, 4), 6
MOST_TEXTS: Final = 256  # most categories proposed for a column
SHOWN: Final = 40  # columns listed in a message
SAMPLES: Final = 12
LARGEST: Final = 9_200_000_000_000_000_000  # limit of numbers read as int64


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the files: what its cells hold, and how they are read."""

    name: str
    cells: str = ""  # kind of most cells: number, list, bool, time, text, other; "": all null; by mapping: category, image
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))  # can hold all cells
    held: str = ""  # the Arrow type, if neither numbers nor text
    is_soft: bool = False  # the files give no dtype for its numbers
    rows: int = 0
    nulls: int = 0
    kinds: tuple[str, ...] = ()  # all kinds of its text cells
    samples: tuple[str, ...] = ()  # examples of plain text
    depth: int = 1  # nesting of lists
    categories: tuple[str, ...] = ()
    image: str = ""  # the mode that images are decoded to
    fill: str | float | None = None  # replaces missing cells: `zero`, `previous`, a number; None: not filled

    @property
    def holds_arrays(self) -> bool:
        """Whether a cell holds several numbers."""
        return self.cells in ("list", "image")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an episode, and the columns it is read from."""

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

    def array_of(self, column: Column) -> str:
        """The key of a column's array: the leaf's name, plus the column's if several are stacked."""
        return f"{self.name}:{column.name}" if self.part.stacked else self.name

    def values(self, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> NDArray[Any]:
        """The leaf's values, (N, ...), from the arrays of its columns. `prefix`: of their keys."""
        parts = [arrays[f"{prefix}{self.array_of(column)}"] for column in self.columns]
        if not self.part.stacked:
            return parts[0]
        return np.concatenate([part if part.ndim > 1 else part[:, None] for part in parts], axis=1)


@dataclass(frozen=True, slots=True)
class Layout:
    """All leaves of a table, and its other columns."""

    leaves: tuple[Leaf, ...]
    infos: str | None
    dropped: Mapping[str, str]  # dropped columns, and why

    def of(self, role: str) -> tuple[Leaf, ...]:
        """The leaves of one role."""
        return tuple(leaf for leaf in self.leaves if leaf.role == role)

    @property
    def is_time(self) -> bool:
        """Whether `t` is a time in nanoseconds, not a number."""
        return any(leaf.columns[0].cells == "time" for leaf in self.of(Columns.T))

    @property
    def columns(self) -> list[tuple[Leaf, Column]]:
        """All columns with their leaves, in the order of `v0`, `v1`, ... in a query."""
        return [(leaf, column) for leaf in self.leaves for column in leaf.columns]


# ---- the mapping and the columns of the files ----


def match(mapping: TableMapping, files: Mapping[str, Collection[str]]) -> tuple[TableMapping, tuple[str, ...], dict[str, str]]:
    """Match a mapping with the columns of files. `files`: columns by URL.

    Returns the mapping without optional parts that no file has; unmapped columns that become extra model outputs if they hold
    numbers; and dropped columns, with reasons. Raises BadMapping with all missing columns, and those that `unmapped` refuses.
    """
    every, said = common_columns(files), mapping.said
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    parts = [_costs(part, every) for part in mapping.parts]
    used = [part for part in parts if part.said_as not in said.optional or all(_has(anywhere, name) for name in part.columns)]
    problems = list[str]()
    for theirs in dict.fromkeys(name for part in used for name in part.columns):
        lacking = [url for url, columns in files.items() if not _has(columns, theirs)]
        if lacking:  # optional columns must be in all files or none: dropping them everywhere would lose data silently
            ours = ", ".join(part.said_as for part in used if theirs in part.columns)
            place = f" in {lacking[0]}" if len(files) > 1 else ""
            problems.append(f"no column '{theirs}'{place} (for {ours}){nearest(theirs, files[lacking[0]])}")
    named = {name for part in used for name in part.columns}
    rest = [name for name in anywhere if name not in named and not any(name.startswith(f"{one}.") for one in named)]
    for name in rest:
        if said.unmapped == "error":
            problems.append(f"column '{name}' is not mapped, and unmapped = \"error\"")
        elif said.unmapped == EXTRA and name in MEANINGS:
            fix = 'name it under [columns], or set unmapped = "drop"'
            problems.append(f"column '{name}' is not mapped, but its name is reserved: {fix}")
    if problems:
        fix = f"the columns are: {listed(every)}" if every else "convert files without common columns separately"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files)}", fix=fix)
    spare = tuple(name for name in rest if said.unmapped == EXTRA and name not in INDEXES and name in every)
    why = "row numbers of a data frame" if said.unmapped == EXTRA else f'not named, and unmapped = "{said.unmapped}"'
    dropped = {name: why if name in every else "not in every file" for name in rest if name not in spare}
    return replace(mapping, parts=tuple(used)), spare, dropped


def _costs(part: Part, columns: Collection[str]) -> Part:
    """`rewards = "-cost"` reads the column `cost` as a negative reward."""
    name = part.columns[0]
    if part.role == Columns.REWARDS and name.startswith("-") and name not in columns:
        return replace(part, columns=(name[1:].strip(),), is_cost=True)
    return part


def common_columns(files: Mapping[str, Collection[str]]) -> list[str]:
    """The columns in all files, in the order of the first file."""
    first, *others = (dict.fromkeys(columns) for columns in files.values())
    return [name for name in first if all(name in other for other in others)]


def expanded(theirs: str, columns: Collection[str]) -> list[str]:
    """The column itself, or the columns of the struct with that name."""
    return [theirs] if theirs in columns else [name for name in columns if name.startswith(f"{theirs}.")]


def _has(columns: Collection[str], theirs: str) -> bool:
    return theirs in (FILE_ID, FOLDER_ID) or bool(expanded(theirs, columns))


def first_url(files: Mapping[str, Any]) -> str:
    """The first file, and the number of others, for messages."""
    return f"{next(iter(files))}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"


def listed(columns: Sequence[str]) -> str:
    """The first names, and the number of others, for messages."""
    return ", ".join(name[:100] for name in columns[:SHOWN]) + (
        f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    )


def category_space(mapping: TableMapping, role: str) -> Space | None:
    """The Discrete space of a column of categories, with as many values as the mapping lists, used or not."""
    parts = mapping.of(role)
    names = mapping.said.categories.get(parts[0].columns[0], ()) if parts else ()
    return spaces.Discrete(len(names)) if names and len(parts) == 1 and not (parts[0].path or parts[0].stacked) else None


def meanings_of(mapping: TableMapping) -> Meanings:
    """Names, categories and units of elements, from the mapping.

    A single column's name is used unless it only states the role, or the part has a name.
    """
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


def columns_of(files: TableFiles, names: Collection[str], *, decimal: str, nulls: Collection[str]) -> dict[str, Column]:
    """Detect what columns hold, by name. `nulls`: columns whose nulls are counted even if they are not text."""
    found = {name: _typed(files, name) for name in names}
    texts = {files.column(name): name for name in found if files.holds_text(name)}
    counted = [name for name in found if name in nulls and not files.holds_text(name)]
    if not (texts or counted):
        return found
    asked = ", ".join(["count(*)", *(f"count({files.column(name)})" for name in counted)])
    rows, *present = files.one(f"SELECT {asked} FROM {files.relation(counted)}")
    found |= {name: replace(found[name], rows=rows, nulls=rows - count) for name, count in zip(counted, present, strict=True)}
    if not texts:
        return found
    # unpivoted to one column: DuckDB takes half a minute to plan SQL with thousands of columns
    each = f"UNPIVOT (SELECT {', '.join(texts)} FROM {files.relation(texts.values())}) ON COLUMNS(*) INTO NAME name VALUE x"
    sql = (
        "SELECT name, kind, count(*),"
        f" max(length(regexp_extract(replace(x, ' ', ''), '^\\[+'))) FILTER (WHERE kind IN {LISTS}),"
        f" min(x, {SAMPLES}) FILTER (WHERE kind = {TEXT})"
        f" FROM (SELECT *, {_cell_sql('x', decimal)} AS kind FROM ({each})) GROUP BY name, kind ORDER BY kind"
    )
    groups: dict[str, list[Any]] = {name: [] for name in texts.values()}
    for batch in files.query(sql):
        for place, *group in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
            groups[texts[place]].append(group)
    return found | {name: _of_text(found[name], rows, group) for name, group in groups.items()}


def _typed(files: TableFiles, name: str) -> Column:
    """Detect a column by its Arrow type."""
    kind = files.kind_of(name)
    if files.holds_text(name) or pa.types.is_null(kind):
        return Column(name, is_soft=True)
    dtype = dtype_of(kind)
    if dtype is None:
        return Column(name, "other", held=str(kind))
    depth, inner = 0, kind
    while is_list(inner):
        depth, inner = depth + 1, inner.value_type
    cells = "time" if pa.types.is_temporal(kind) else "list" if depth or isinstance(kind, pa.BaseExtensionType) else "number"
    return Column(name, cells, dtype, is_soft=files.is_text, depth=depth)


def _of_text(column: Column, rows: int, groups: Sequence[Any]) -> Column:
    """Detect a text column by its most common kind. `groups`: per kind its index, number of cells, list depth, samples."""
    column = replace(column, rows=rows, nulls=rows - sum(count for _, count, _, _ in groups))
    if not groups:
        return column
    kinds = tuple(dict.fromkeys(KINDS[kind] for kind, *_ in groups))
    cells = max(kinds, key=lambda one: sum(count for kind, count, *_ in groups if KINDS[kind] == one))
    mine = [group for group in groups if KINDS[group[0]] == cells]
    has_fractions = any(kind in FRACTIONS for kind, *_ in mine)
    return replace(
        column,
        cells=cells,
        dtype=np.dtype(np.bool_ if cells == "bool" else np.float64 if has_fractions else np.int64),
        kinds=kinds,
        samples=tuple(text for *_, texts in groups for text in dict.fromkeys(texts or ())),
        depth=max(1, *(depth for _, _, depth, _ in mine)) if cells == "list" else 1,
    )


def texts_of(files: TableFiles, name: str) -> list[str] | None:
    """All different texts of a column, sorted; None for more than MOST_TEXTS."""
    column = f"CAST({files.column(name)} AS VARCHAR)"
    sql = f"SELECT DISTINCT {column} FROM {files.relation([name])} WHERE {column} IS NOT NULL LIMIT {MOST_TEXTS + 1}"
    texts = [text for batch in files.query(sql) for text in batch.column(0).to_pylist()]
    return sorted(texts) if len(texts) <= MOST_TEXTS else None


# ---- SQL of a value ----


def _cell_sql(column: str, decimal: str) -> str:
    """SQL for the kind of a text cell, as an index of `KINDS`."""
    number = _number_sql(column, decimal)
    marks = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    return (
        f"CASE WHEN {number} IS NOT NULL THEN CASE WHEN {marks} OR NOT abs({number}) < {LARGEST} THEN 1 ELSE 0 END"
        f" WHEN lower(trim({column})) IN ('true', 'false') THEN 2"
        f" WHEN starts_with(ltrim({column}), '[') THEN CASE WHEN regexp_matches({column}, '[.eEnN]') THEN 4 ELSE 3 END"
        f" WHEN {_micros_sql(column)} IS NOT NULL THEN 5 ELSE {TEXT} END"
    )


def _number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
    """SQL for the number in a text. Rejects `1_000`, which DuckDB accepts, and decimal points if `decimal` is a comma."""
    odd = f"contains({column}, '_')" + (f" OR contains({column}, '.')" if decimal == "," else "")
    text = f"replace({column}, ',', '.')" if decimal == "," else column
    return f"CASE WHEN NOT ({odd}) THEN TRY_CAST({text} AS {kind}) END"


def _micros_sql(column: str) -> str:
    """SQL for an ISO text as microseconds since 1970 in UTC, BIGINT; NULL if it is not one."""
    zoned = f"regexp_replace({column}, ' ?([Zz]|UTC|GMT)\\s*$', '+00')"
    return (
        f"CASE WHEN regexp_matches({column}, '^\\s*\\d{{4}}[-/]\\d{{1,2}}[-/]\\d{{1,2}}')"
        f" THEN epoch_us(TRY_CAST({zoned} AS TIMESTAMPTZ)) END"
    )


def value_sql(files: TableFiles, role: str, column: Column, decimal: str) -> tuple[str, list[Any]]:
    """SQL for a column's value (NULL if invalid), and values to bind. Times are nanoseconds in `t`, otherwise microseconds."""
    place, cells, kind = files.column(column.name), column.cells, files.kind_of(column.name)
    is_text, number = files.holds_text(column.name), "DOUBLE" if column.dtype.kind == "f" else "BIGINT"
    if cells == "category":
        return f"NULLIF(list_position(?, CAST({place} AS VARCHAR)), 0) - 1", [list(column.categories)]
    if is_text and role in FLAG_ROLES:  # 0 or 1 in any number format, true or false, yes or no
        text = f"lower(trim({place}))"
        is_said = f"WHEN {text} IN ('true', 'yes', 'y', 't') THEN 1.0 WHEN {text} IN ('false', 'no', 'n', 'f') THEN 0.0"
        return f"CASE {is_said} ELSE TRY_CAST({place} AS DOUBLE) END", []
    if is_text and cells == "bool":
        return f"CASE lower(trim({place})) WHEN 'true' THEN true WHEN 'false' THEN false END", []
    if is_text and cells == "list":
        return f"CASE WHEN starts_with(ltrim({place}), '[') THEN TRY_CAST({place} AS {number}{'[]' * column.depth}) END", []
    if pa.types.is_temporal(kind) or cells == "time":
        return _time_sql(place, None if is_text else kind, in_nanoseconds=cells == "time" and role == Columns.T), []
    if is_text:
        return _number_sql(place, decimal, number), []
    return f"CAST({place} AS DOUBLE)" if pa.types.is_decimal(kind) else place, []


def _time_sql(place: str, kind: pa.DataType | None, *, in_nanoseconds: bool) -> str:
    """SQL for a time as BIGINT; NULL if it does not fit. `kind`: None if the column is text."""
    if kind is not None and (pa.types.is_duration(kind) or pa.types.is_time(kind)):  # as nanoseconds
        return place if in_nanoseconds else f"{place} // 1000"
    if in_nanoseconds and kind is not None and pa.types.is_timestamp(kind) and kind.unit == "ns":
        return f"epoch_ns({place})"
    micros = _micros_sql(place) if kind is None else f"epoch_us({place})"
    return f"CASE WHEN abs({micros}) < {LARGEST // 1000} THEN {micros} * 1000 END" if in_nanoseconds else micros


# ---- leaves ----


def lay_out(
    matched: tuple[TableMapping, Sequence[str], Mapping[str, str]],
    files: TableFiles,
    columns: Mapping[str, Column],
    known: tuple[Space | None, Space | None],
) -> Layout:
    """The layout of all files. Raises BadMapping with all columns that contradict the mapping.

    `matched`: result of `match`. `known`: declared spaces of observations and actions.
    """
    mapping, spare, dropped = matched
    problems, leaves = list[str](), list[Leaf]()
    left_out = {name: why for name in spare if (why := _why_no_extra(columns[name]))}
    for part in (*mapping.parts, *(Part(EXTRA, (name,), (name,)) for name in spare if name not in left_out)):
        is_tree = part.role in (*TREES, EXTRA)
        structs = [theirs for theirs in part.columns if theirs not in files.kinds and theirs not in (FILE_ID, FOLDER_ID)]
        if structs and (not is_tree or part.stacked):
            problems.append(f"{part.said_as}: '{structs[0]}' is a struct: name one of its columns")
        elif is_tree:
            for inner in _of_struct(part, structs, files):
                found = [_as_values(inner, columns[name], mapping, files, problems) for name in inner.columns]
                if all(one.cells != "other" for one in found):
                    leaves.append(Leaf(inner, tuple(found), np.result_type(*(one.dtype for one in found))))
        elif part.role in SCALARS:
            dtype = np.dtype(np.float64 if part.role == Columns.REWARDS else np.bool_)
            fill = mapping.said.fill.get(part.columns[0]) if part.role == Columns.REWARDS else None
            leaves.append(Leaf(part, (Column(part.columns[0], "number", dtype, fill=fill),), dtype))
        elif part.role == Columns.T:
            order = columns[part.columns[0]]
            if order.cells not in ("number", "time"):
                held = order.held or order.cells or "no value"
                problems.append(f"t: column '{order.name}' holds {held}, not numbers, dates or ISO times such as 2024-03-01")
            dtype = np.dtype(np.float64 if order.dtype.kind == "f" and order.cells == "number" else np.int64)
            leaves.append(Leaf(part, (replace(order, dtype=dtype),), dtype))
    by_part = {(leaf.role, leaf.part.path): leaf for leaf in leaves}
    leaves = [replace(leaf, dtype=_dtype(leaf, by_part, mapping, known)) for leaf in leaves]
    unfilled = mapping.said.fill.keys() - {column.name for leaf in leaves for column in leaf.columns}
    problems += [f"fill: '{name}' is a struct, or not numbers: name its columns" for name in sorted(unfilled)]
    if problems:
        fix = "name columns of numbers, lists of numbers or JSON lists; drop the others"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files.columns)}", fix=fix)
    return Layout(tuple(leaves), mapping.infos, {**dropped, **left_out})


def _of_struct(part: Part, structs: Sequence[str], files: TableFiles) -> list[Part]:
    """The part itself, or for a struct one part per column."""
    if not structs:
        return [part]
    names = expanded(structs[0], files.kinds)
    paths = [(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")) for name in names]
    return [replace(part, path=path, columns=(name,)) for name, path in zip(names, paths, strict=True)]


def _as_values(part: Part, column: Column, mapping: TableMapping, files: TableFiles, problems: list[str]) -> Column:
    """How a column is read as numbers; if it cannot be, its cells are `other` and a problem is added."""
    name, said = column.name, mapping.said
    categories, image, is_image = said.categories.get(name, ()), said.images.get(name, ""), is_bytes(files.kinds[name])
    column = replace(column, fill=said.fill.get(name))
    if image and is_image:
        return replace(column, cells="image", dtype=np.dtype(np.uint8), image=image)
    if categories and not column.held:
        return replace(column, cells="category", dtype=np.dtype(np.int64), categories=tuple(categories))
    if column.cells == "time":
        return replace(column, dtype=np.dtype(np.int64))
    if column.cells in ("number", "list", "bool") and not image:
        return column
    if image:
        problem = f"{files.kinds[name]}, but [images] must be PNG or JPEG bytes"
    elif not column.cells:
        problem = "no value in any row"
    elif column.held:
        hint = f'; if these are PNG or JPEG: [images] {toml_key(name)} = "rgb"' if is_image else ", nor text"
        problem = f"{column.held}, not numbers{hint}"
    else:
        texts = texts_of(files, name)
        names = f"more than {MOST_TEXTS} different texts, too many" if texts is None else json.dumps(texts, ensure_ascii=False)
        hint = f"if the texts are categories, number them in the mapping: [categories] {toml_key(name)} = {names}"
        problem = f"text ({', '.join(repr(text[:40]) for text in column.samples[:3])}), not numbers; {hint}"
    problems.append(f"{part.said_as}: column '{name}' holds {problem}")
    return replace(column, cells="other")


def toml_key(name: str) -> str:
    """A TOML key, quoted if necessary."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def _why_no_extra(column: Column) -> str:
    """Why an unmapped column cannot be an extra model output; "" if it can."""
    if not (column.held or column.cells):
        return "no value in any row"
    if len(column.kinds) > 1:
        return f"cells of several kinds: {', '.join(column.kinds)}"
    if column.held or column.kinds in (("text",), ("time",)):
        return f"{column.held or column.cells}, not numbers"
    return "by its name part of a struct, which is not in the mapping" if "." in column.name else ""


def _dtype(
    leaf: Leaf,
    by_part: Mapping[tuple[str, tuple[str, ...]], Leaf],
    mapping: TableMapping,
    known: tuple[Space | None, Space | None],
) -> np.dtype[Any]:
    """The dtype of a leaf: from the mapping; otherwise the space's, for decimals in text; otherwise the values'.

    `new_obs` and `obs` share a dtype. Integer extra outputs with nulls become floats, to hold NaN.
    """
    role, dtype = Columns.OBS if leaf.role == Columns.NEXT_OBS else leaf.role, leaf.dtype
    for other in (Columns.OBS, Columns.NEXT_OBS) if role == Columns.OBS else ():
        dtype = np.result_type(dtype, by_part.get((other, leaf.part.path), leaf).dtype)
    dtypes = mapping.said.dtypes
    said, space = {Columns.OBS: (dtypes.obs, known[0]), Columns.ACTIONS: (dtypes.actions, known[1])}.get(role, (None, None))
    if said is not None:
        return np.dtype(said)
    if space is not None and dtype.kind == "f" and all(column.is_soft for column in leaf.columns):
        inner = leaf_spaces(space).get(".".join(leaf.part.path))
        return np.dtype(inner.dtype) if isinstance(inner, spaces.Box) and np.dtype(inner.dtype).kind == "f" else dtype
    lacks = role == EXTRA and dtype.kind in "iu" and any(one.fill is None and one.nulls for one in leaf.columns)
    return np.dtype(np.float64) if lacks else dtype
