"""The leaves of an episode: what the columns of a mapping are read as, with the SQL of each value.

`lay_out` raises with all columns that contradict the mapping. Names and texts of files never become SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.rllib.packed import looks_packed
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.arrow_types import is_bytes, is_list
from offline_cli.formats.tables.columns import (
    LARGEST,
    MOST_TEXTS,
    Facts,
    Matched,
    expanded,
    first_url,
    hint_for,
    number_sql,
    texts_of,
    time_sql,
)
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
)
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["ColumnPlan", "Layout", "Leaf", "lay_out", "plan_of", "value_sql"]

FLAG_ROLES: Final = (*END_FLAGS, STARTS)
SCALARS: Final = (Columns.REWARDS, *FLAG_ROLES)


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
    return number_sql(column, decimal, kind), []
