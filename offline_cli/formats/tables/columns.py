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
INDEXES: Final = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls the numbers of its rows
ROLE_ALONE: Final = re.compile(r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)")  # no more than a role
FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)
KINDS: Final = ("number", "number", "bool", "list", "list", "time", "text")  # of cells of text: see `_cell_sql`
FRACTIONS: Final = (1, 4)  # those of them that no integers hold
LISTS, TEXT = (3, 4), 6
MOST_TEXTS: Final = 256  # of a column of categories that are proposed
SHOWN: Final = 40  # columns listed in a message
SAMPLES: Final = 12
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
    fill: str | float | None = None  # what a missing cell becomes: `zero`, `previous`, a number; None: nothing

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

    def array_of(self, column: Column) -> str:
        """What the array of one of its columns is called among others: its name, and the column's where several are stacked."""
        return f"{self.name}:{column.name}" if self.part.stacked else self.name

    def values(self, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> NDArray[Any]:
        """(N, ...) of the arrays of its columns, which have `prefix` before their names."""
        parts = [arrays[f"{prefix}{self.array_of(column)}"] for column in self.columns]
        if not self.part.stacked:
            return parts[0]
        return np.concatenate([part if part.ndim > 1 else part[:, None] for part in parts], axis=1)


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
    def is_time(self) -> bool:
        """Whether `t` is a time, in nanoseconds."""
        return any(leaf.columns[0].cells == "time" for leaf in self.of(Columns.T))

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
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    parts = [_costs(part, every) for part in mapping.parts]
    used = [part for part in parts if part.said_as not in said.optional or all(_has(anywhere, name) for name in part.columns)]
    problems = list[str]()
    for theirs in dict.fromkeys(name for part in used for name in part.columns):
        lacking = [url for url, columns in files.items() if not _has(columns, theirs)]
        if lacking:  # one file may lack what is optional for all: leaving it out of all would lose it silently
            ours = ", ".join(part.said_as for part in used if theirs in part.columns)
            place = f" in {lacking[0]}" if len(files) > 1 else ""
            problems.append(f"no column '{theirs}'{place} (for {ours}){nearest(theirs, files[lacking[0]])}")
    named = {name for part in used for name in part.columns}
    rest = [name for name in anywhere if name not in named and not any(name.startswith(f"{one}.") for one in named)]
    for name in rest:
        if said.unmapped == "error":
            problems.append(f"column '{name}' is not mapped, and unmapped = \"error\"")
        elif said.unmapped == EXTRA and name in MEANINGS:
            fix = 'name it under [columns], or say unmapped = "drop"'
            problems.append(f"column '{name}' is not mapped, but its name has a meaning here: {fix}")
    if problems:
        fix = f"the columns are: {listed(every)}" if every else "convert files without a column in common apart"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files)}", fix=fix)
    spare = tuple(name for name in rest if said.unmapped == EXTRA and name not in INDEXES and name in every)
    why = "the numbers of a data frame's rows" if said.unmapped == EXTRA else f'not named, and unmapped = "{said.unmapped}"'
    dropped = {name: why if name in every else "not in every file" for name in rest if name not in spare}
    return replace(mapping, parts=tuple(used)), spare, dropped


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


def _has(columns: Collection[str], theirs: str) -> bool:
    return theirs in (FILE_ID, FOLDER_ID) or bool(expanded(theirs, columns))


def first_url(files: Mapping[str, Any]) -> str:
    """The first of some files, for messages."""
    return f"{next(iter(files))}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"


def listed(columns: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(name[:100] for name in columns[:SHOWN]) + (
        f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    )


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


def columns_of(files: TableFiles, names: Collection[str], *, decimal: str, nulls: Collection[str]) -> dict[str, Column]:
    """Flat columns by name; `nulls`: whose nulls are counted, where they are no text."""
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
    # as rows of one column: SQL that names thousands of columns takes DuckDB half a minute to plan
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
    """What the type of a column says."""
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
    """What most cells of a column of text are; `groups`: of each kind its number, cells, depth of lists, and samples."""
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
    """What a cell of text is, as an index of `KINDS`."""
    number = _number_sql(column, decimal)
    marks = " OR ".join(f"contains({column}, '{letter}')" for letter in (decimal, "e", "E"))
    return (
        f"CASE WHEN {number} IS NOT NULL THEN CASE WHEN {marks} OR NOT abs({number}) < {LARGEST} THEN 1 ELSE 0 END"
        f" WHEN lower(trim({column})) IN ('true', 'false') THEN 2"
        f" WHEN starts_with(ltrim({column}), '[') THEN CASE WHEN regexp_matches({column}, '[.eEnN]') THEN 4 ELSE 3 END"
        f" WHEN {_micros_sql(column)} IS NOT NULL THEN 5 ELSE {TEXT} END"
    )


def _number_sql(column: str, decimal: str, kind: str = "DOUBLE") -> str:
    """The number in a text. DuckDB would take `1_000` for one too; with decimal commas a point makes none."""
    odd = f"contains({column}, '_')" + (f" OR contains({column}, '.')" if decimal == "," else "")
    text = f"replace({column}, ',', '.')" if decimal == "," else column
    return f"CASE WHEN NOT ({odd}) THEN TRY_CAST({text} AS {kind}) END"


def _micros_sql(column: str) -> str:
    """Microseconds since 1970 in UTC of an ISO text, as BIGINT; NULL where it is none."""
    zoned = f"regexp_replace({column}, ' ?([Zz]|UTC|GMT)\\s*$', '+00')"
    return (
        f"CASE WHEN regexp_matches({column}, '^\\s*\\d{{4}}[-/]\\d{{1,2}}[-/]\\d{{1,2}}')"
        f" THEN epoch_us(TRY_CAST({zoned} AS TIMESTAMPTZ)) END"
    )


def value_sql(files: TableFiles, role: str, column: Column, decimal: str) -> tuple[str, list[Any]]:
    """A column's value, NULL where it has none, and the bound values. Times are nanoseconds as `t`, else microseconds."""
    place, cells, kind = files.column(column.name), column.cells, files.kind_of(column.name)
    is_text, number = files.holds_text(column.name), "DOUBLE" if column.dtype.kind == "f" else "BIGINT"
    if cells == "category":
        return f"NULLIF(list_position(?, CAST({place} AS VARCHAR)), 0) - 1", [list(column.categories)]
    if is_text and role in FLAG_ROLES:  # 0 or 1 in any format of numbers, true or false, yes or no
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
    """A time as BIGINT; `kind`: None: of text. NULL where nanoseconds cannot hold it."""
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
    """The layout of all files, of what `match` gave. Raises BadMapping with every column that contradicts the mapping.

    `known`: the spaces of observations and actions that are declared.
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
    problems += [f"fill: '{name}' is a struct, or holds no numbers: name its columns" for name in sorted(unfilled)]
    if problems:
        fix = "name columns of numbers, lists of numbers or JSON lists; leave the others out"
        raise BadMapping.of(problems, where=f"mapping {mapping.name} for {first_url(files.columns)}", fix=fix)
    return Layout(tuple(leaves), mapping.infos, {**dropped, **left_out})


def _of_struct(part: Part, structs: Sequence[str], files: TableFiles) -> list[Part]:
    """The part itself, or of a struct a part for each of its columns."""
    if not structs:
        return [part]
    names = expanded(structs[0], files.kinds)
    paths = [(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")) for name in names]
    return [replace(part, path=path, columns=(name,)) for name, path in zip(names, paths, strict=True)]


def _as_values(part: Part, column: Column, mapping: TableMapping, files: TableFiles, problems: list[str]) -> Column:
    """How the column is read as numbers; as `other`, and with a problem, where it holds none."""
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
        problem = f"{files.kinds[name]}, and [images] are bytes of PNG or JPEG"
    elif not column.cells:
        problem = "no value in any row"
    elif column.held:
        hint = f'; if these are PNG or JPEG: [images] {toml_key(name)} = "rgb"' if is_image else ", nor one text a row"
        problem = f"{column.held}, not numbers{hint}"
    else:
        texts = texts_of(files, name)
        names = f"more than {MOST_TEXTS} texts, too many" if texts is None else json.dumps(texts, ensure_ascii=False)
        hint = f"if the texts are categories, number them in the mapping: [categories] {toml_key(name)} = {names}"
        problem = f"text ({', '.join(repr(text[:40]) for text in column.samples[:3])}), not numbers; {hint}"
    problems.append(f"{part.said_as}: column '{name}' holds {problem}")
    return replace(column, cells="other")


def toml_key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def _why_no_extra(column: Column) -> str:
    """Why an unmapped column cannot be an extra model output; "" where all of it is numbers."""
    if not (column.held or column.cells):
        return "no value in any row"
    if len(column.kinds) > 1:
        return f"cells of several kinds: {', '.join(column.kinds)}"
    if column.held or column.kinds in (("text",), ("time",)):
        return f"{column.held or column.cells}, and not numbers"
    return "by its name a part of a struct, which the mapping does not name" if "." in column.name else ""


def _dtype(
    leaf: Leaf,
    by_part: Mapping[tuple[str, tuple[str, ...]], Leaf],
    mapping: TableMapping,
    known: tuple[Space | None, Space | None],
) -> np.dtype[Any]:
    """The dtype that the mapping says; else that of the space, for decimals written as text; else of the values.

    `new_obs` has that of `obs`; an extra output of whole numbers with a null is one of floats, so that it can hold NaN.
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
