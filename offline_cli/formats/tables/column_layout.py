"""How the columns of a table become the columns of an episode; columns that hold no numbers are reported all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.cells import hint_for_cells
from offline_cli.formats.tables.column_facts import MOST_TEXTS, ColumnFacts, LookedAt
from offline_cli.formats.tables.images import is_bytes
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, KEYS, MEAN, PREVIOUS, TREES, Part, TableMapping
from offline_cli.formats.tables.matching import Matched
from offline_cli.formats.tables.proposals import TextColumn, hint_for_bytes
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["VALUES", "ColumnPlan", "Layout", "Leaf", "lay_out", "looked_at"]

VALUES = (*TREES, EXTRA)  # roles of any shape, in parts or whole
SCALARS = (Columns.REWARDS, *END_FLAGS)


Problems = list[str | TextColumn]


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


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an episode, and a column of the tables on the way to it."""

    name: str  # `obs.camera`, `extra.action_logp`, `rewards`
    role: str
    path: tuple[str, ...]
    columns: tuple[ColumnPlan, ...]
    stacked: bool
    dtype: np.dtype[Any]
    spare: bool = False  # not named in the mapping


@dataclass(frozen=True, slots=True)
class Layout:
    """All leaves of a table, and the other columns read of it."""

    leaves: tuple[Leaf, ...]
    keys: Mapping[str, tuple[str, pa.DataType]]  # by eps_id, agent_id, module_id: their column, and its type in between
    infos: str | None  # their column
    dropped: Mapping[str, str]  # columns left out, and why
    counted_t: bool  # whether t counts steps: whole numbers that are no times
    split_at_gaps: bool = False  # a missing cell without a fill ends the episode

    def of(self, role: str) -> tuple[Leaf, ...]:
        """The leaves of one role."""
        return tuple(leaf for leaf in self.leaves if leaf.role == role)

    @property
    def kept(self) -> frozenset[str]:
        """Names of the leaves that become arrays of an episode, one value a step."""
        roles = {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, EXTRA}
        return frozenset(leaf.name for leaf in self.leaves if leaf.role in roles)

    def splits_at(self, leaf: Leaf) -> bool:
        """Whether an episode ends at a missing cell of it."""
        return self.split_at_gaps and leaf.role in FILLED_ROLES

    @property
    def missing(self) -> tuple[tuple[Leaf, int], ...]:
        """Leaves and numbers of those of their columns whose missing cells are filled once an episode is whole."""
        return tuple((leaf, i) for leaf in self.leaves for i, plan in enumerate(leaf.columns) if plan.fill == PREVIOUS)

    @property
    def images(self) -> list[str]:
        """Their columns of encoded images."""
        return [plan.column for leaf in self.leaves for plan in leaf.columns if plan.image]

    @property
    def has_t(self) -> bool:
        """Whether rows have an order of their own."""
        return bool(self.of(Columns.T))

    def reads(self, names: Iterable[str] | None = None) -> list[str]:
        """Their columns that are needed for ours of these names, or for all."""
        wanted = None if names is None else set(names)
        found = [plan.column for leaf in self.leaves if wanted is None or leaf.name in wanted for plan in leaf.columns]
        found += [column for name, (column, _) in self.keys.items() if wanted is None or name in wanted]
        return [*dict.fromkeys(found), *([self.infos] if self.infos is not None and wanted is None else [])]


def looked_at(matched: Matched, types: Mapping[str, pa.DataType]) -> LookedAt:
    """The flat columns of which facts are needed."""
    mapping = matched.mapping
    wanted, extras = (
        [name for part in parts for theirs in part.columns for name in _expanded(theirs, types)]
        for parts in (
            [part for part in mapping.parts if part.role not in (*KEYS, *SCALARS, Columns.INFOS)],
            mapping.of(EXTRA),
        )
    )
    times = [name for name in wanted if name not in mapping.categories]
    return LookedAt(list(dict.fromkeys([*wanted, *matched.spare])), times, {*extras, *matched.spare})


def _expanded(theirs: str, types: Mapping[str, pa.DataType]) -> list[str]:
    """The column itself, or the columns of the struct of that name."""
    return [theirs] if theirs in types else [name for name in types if name.startswith(f"{theirs}.")]


def lay_out(
    matched: Matched,
    files: Mapping[str, Mapping[str, pa.DataType]],
    facts: Mapping[str, ColumnFacts],
    known_spaces: tuple[Space | None, Space | None],
    *,
    untyped: Collection[str] = (),
    texts_of: Callable[[Sequence[str]], Mapping[str, Sequence[str] | None]],
) -> Layout:
    """The layout of all files; `untyped`: those whose types follow from their first lines; `texts_of`: see `TextColumn`.

    Raises BadMapping with every column that contradicts the mapping.
    """
    types = next(iter(files.values()))
    mapping, problems = matched.mapping, Problems()
    leaves: list[Leaf] = []
    for part in mapping.parts:
        if part.role in VALUES:
            leaves += _leaves(part, types, facts, mapping, problems)
        elif part.role in SCALARS:
            dtype = np.dtype(np.float64 if part.role == Columns.REWARDS else np.bool_)
            structs = [theirs for theirs in part.columns if theirs not in types]
            problems += [f"{part.said_as}: '{theirs}' is a struct: name one of its columns" for theirs in structs]
            plans = tuple(ColumnPlan(theirs, dtype, "number") for theirs in part.columns)
            leaves.append(Leaf(part.name, part.role, part.path, plans, False, dtype))
        elif part.role == Columns.T:
            leaves += _order(part, facts, problems)
    left_out = {name: why for name in matched.spare if (why := _why_no_extra(name, facts[name]))}
    leaves += [_spare(name, facts[name]) for name in matched.spare if name not in left_out]
    leaves = [replace(leaf, columns=tuple(_with_fill(plan, leaf, mapping.fill) for plan in leaf.columns)) for leaf in leaves]
    leaves = _with_dtypes(leaves, mapping.dtypes, known_spaces, facts)
    problems += _bad_fills(leaves, mapping.fill)
    keys = {part.role: _key(part, files, untyped, problems) for part in mapping.parts if part.role in KEYS}
    infos = next((part.columns[0] for part in mapping.of(Columns.INFOS)), None)
    problems += _bad_infos(infos, types)
    if problems:
        texts = texts_of([problem.column for problem in problems if isinstance(problem, TextColumn)])
        raise BadMapping.of(
            [one if isinstance(one, str) else one.problem(texts.get(one.column), MOST_TEXTS) for one in problems],
            where=f"mapping {mapping.name} for {next(iter(files))}",
            fix="name columns of numbers, lists of numbers or JSON lists; leave the others out",
        )
    return Layout(
        leaves=tuple(leaves),
        keys=keys,
        infos=infos,
        dropped={**matched.dropped, **left_out},
        counted_t=_counts_steps(leaves),
        split_at_gaps=mapping.split_at_gaps,
    )


def _leaves(
    part: Part,
    types: Mapping[str, pa.DataType],
    facts: Mapping[str, ColumnFacts],
    mapping: TableMapping,
    problems: Problems,
) -> list[Leaf]:
    """One leaf, or one for each column of a struct."""
    structs = [theirs for theirs in part.columns if theirs not in types]
    if structs and part.stacked:
        problems.append(f"{part.said_as}: '{structs[0]}' is a struct, which cannot be stacked: name its columns")
        return []
    if structs:
        parts = [
            replace(part, path=(*part.path, *name.removeprefix(f"{structs[0]}.").split(".")), columns=(name,))
            for name in _expanded(structs[0], types)
        ]
        return [leaf for inner in parts for leaf in _leaves(inner, types, facts, mapping, problems)]
    plans = [
        _image_plan(theirs, types[theirs], mapping.images[theirs], part.said_as, problems)
        if theirs in mapping.images
        else _plan(theirs, facts[theirs], mapping.categories.get(theirs, ()), part.said_as, problems)
        for theirs in part.columns
    ]
    known = tuple(plan for plan in plans if plan is not None)
    if len(known) < len(plans):
        return []
    dtype = np.result_type(*(plan.dtype for plan in known))
    return [Leaf(part.name, part.role, part.path, known, part.stacked, dtype)]


def _image_plan(column: str, kind: pa.DataType, image: str, ours: str, problems: Problems) -> ColumnPlan | None:
    if is_bytes(kind):
        return ColumnPlan(column, np.dtype(np.uint8), "image", vectors=True, image=image)
    problems.append(f"{ours}: column '{column}' is one of [images], and holds {kind}, not bytes of PNG or JPEG")
    return None


def _plan(column: str, facts: ColumnFacts, categories: Sequence[str], ours: str, problems: Problems) -> ColumnPlan | None:
    """How the column is read as numbers; None, and a problem, where it holds none."""
    cells = facts.cells
    if categories and facts.odd:
        what = f"{ours}: column '{column}' holds {min(facts.odd)}, and [categories] number one text in a row"
        problems.append(f"{what}; write a column for each text")
    elif categories:
        return ColumnPlan(column, np.dtype(np.int64), "category", tuple(categories))
    elif facts.odd:
        problems.append(f"{ours}: column '{column}' holds {min(facts.odd)}, not numbers{hint_for_bytes(column, facts.odd)}")
    elif facts.is_empty:
        problems.append(f"{ours}: column '{column}' has no value in any row")
    elif cells.kind == "time" and (facts.has_times or not facts.dtypes):
        return ColumnPlan(column, np.dtype(np.int64), "microseconds")
    elif cells.kind in ("text", "time") and not facts.dtypes:
        problems.append(TextColumn(column, ours, cells.samples))
    elif cells.kind in ("number", "list", "bool"):
        vectors = facts.has_lists or cells.kind == "list"
        return ColumnPlan(column, np.result_type(*facts.dtypes, cells.dtype), cells.kind, vectors=vectors)
    else:
        return ColumnPlan(column, np.result_type(*facts.dtypes), "number", vectors=facts.has_lists)
    return None


def _order(part: Part, facts: Mapping[str, ColumnFacts], problems: Problems) -> list[Leaf]:
    """Of t: an integer, or a float where it has decimals."""
    column = part.columns[0]
    known = facts.get(column)
    if known is None or known.odd or known.is_empty or known.cells.kind in ("text", "list", "bool"):
        held = "a struct" if known is None else f"{min(known.odd)}" if known.odd else known.cells.kind or "no value"
        hint = "" if known is None or not known.cells.samples else hint_for_cells(column, known.cells.samples)
        problems.append(f"t: column '{column}' holds {held}, not numbers, dates or ISO times{hint and '; '}{hint}")
        return []
    dtypes = [*known.dtypes, *([known.cells.dtype] if known.cells.kind == "number" else [])]
    has_decimals = any(dtype.kind == "f" for dtype in dtypes)
    dtype = np.dtype(np.float64 if has_decimals else np.int64)
    cells = "time" if known.cells.kind == "time" or known.has_times else "number"
    read = np.dtype(np.uint64) if known.dtypes == {np.dtype(np.uint64)} and dtypes == list(known.dtypes) else dtype
    return [Leaf(Columns.T, Columns.T, (), (ColumnPlan(column, read, cells),), False, dtype)]


def _counts_steps(leaves: Sequence[Leaf]) -> bool:
    order = next((leaf for leaf in leaves if leaf.role == Columns.T), None)
    if order is None or order.dtype.kind not in "iu":
        return False
    return order.columns[0].cells != "time"


def _why_no_extra(name: str, facts: ColumnFacts) -> str:
    """Why an unmapped column cannot be an extra model output; "" where all of it is numbers."""
    cells = facts.cells
    if facts.odd:
        return f"{min(facts.odd)}, and not numbers"
    if facts.is_empty:
        return "no value in any row"
    if cells.texts and (hint := hint_for_cells(name, cells.samples)):
        return hint
    if len(cells.kinds) > 1:
        return f"cells of several kinds: {', '.join(cells.kinds)}"
    if cells.texts or cells.times:
        return "text, and not numbers" if cells.texts else "times as text"
    return "by its name a part of a struct, which the mapping does not name" if "." in name else ""


def _spare(name: str, facts: ColumnFacts) -> Leaf:
    """An extra model output of the column's own name."""
    problems: Problems = []
    plan = _plan(name, facts, (), name, problems)
    assert plan is not None, problems  # of numbers, as `_why_no_extra` has seen
    return Leaf(f"{EXTRA}.{name}", EXTRA, (name,), (plan,), False, plan.dtype, spare=True)


def _key(
    part: Part, files: Mapping[str, Mapping[str, pa.DataType]], untyped: Collection[str], problems: Problems
) -> tuple[str, pa.DataType]:
    """Ids stay as they are where they are numbers in all files, and are text otherwise: `007` is not 7.

    Integers without a sign are text too: int64 cannot hold them all.
    """
    column = part.columns[0]
    kinds = [types.get(column, pa.null()) for types in files.values()]
    if column not in next(iter(files.values())):
        problems.append(f"{part.role}: '{column}' is a struct: name one of its columns")
    odd = [kind for kind in kinds if not (is_text(kind) or pa.types.is_null(kind) or _is_scalar(kind))]
    if odd:
        problems.append(f"{part.role}: column '{column}' holds {odd[0]}, and neither text nor numbers")
    exact = bool(untyped) or any(pa.types.is_uint64(kind) for kind in kinds)
    if not exact and all(pa.types.is_integer(kind) for kind in kinds):
        return column, pa.int64()
    if not exact and all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        return column, pa.float64()
    return column, pa.large_string()


def _is_scalar(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_primitive(kind) or types.is_decimal(kind)) and not types.is_interval(kind)


def _bad_infos(column: str | None, types: Mapping[str, pa.DataType]) -> list[str]:
    if column is None or column not in types or is_text(types[column]) or pa.types.is_null(types[column]):
        return []
    return [f"infos: column '{column}' holds {types[column]}, and neither JSON text nor structs"]


# ---- missing cells ----


def _with_fill(plan: ColumnPlan, leaf: Leaf, fills: Mapping[str, str | float]) -> ColumnPlan:
    return replace(plan, fill=fills.get(plan.column)) if leaf.role in FILLED_ROLES else plan


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


# ---- dtypes ----


def _with_dtypes(
    leaves: Sequence[Leaf],
    said: Mapping[str, str],
    known_spaces: tuple[Space | None, Space | None],
    facts: Mapping[str, ColumnFacts],
) -> list[Leaf]:
    """The dtype that the mapping says; else that of the space, for decimals written as text; else of the values.

    `new_obs` has that of `obs`.
    """
    by_name = {leaf.name: leaf for leaf in leaves}
    found = []
    for leaf in leaves:
        if leaf.role == Columns.NEXT_OBS or leaf.role == Columns.OBS:
            twin = by_name.get(".".join((_twin(leaf.role), *leaf.path)))
            leaf = replace(leaf, dtype=np.result_type(leaf.dtype, twin.dtype)) if twin is not None else leaf
        name = Columns.OBS if leaf.role == Columns.NEXT_OBS else leaf.role
        space = known_spaces[0] if name == Columns.OBS else known_spaces[1] if name == Columns.ACTIONS else None
        if name in said and name in (Columns.OBS, Columns.ACTIONS):
            leaf = replace(leaf, dtype=np.dtype(said[name]))
        elif space is not None and leaf.dtype.kind == "f" and all(_is_soft(plan, facts) for plan in leaf.columns):
            leaf = replace(leaf, dtype=_dtype_in(space, leaf))
        elif leaf.role == EXTRA and leaf.dtype.kind in "iu" and any(_may_be_nan(plan, facts) for plan in leaf.columns):
            leaf = replace(leaf, dtype=np.dtype(np.float64))  # so that it can hold NaN
        found.append(leaf)
    return found


def _may_be_nan(plan: ColumnPlan, facts: Mapping[str, ColumnFacts]) -> bool:
    return plan.fill is None and (plan.column not in facts or facts[plan.column].has_nulls)


def _twin(role: str) -> str:
    return Columns.OBS if role == Columns.NEXT_OBS else Columns.NEXT_OBS


def _is_soft(plan: ColumnPlan, facts: Mapping[str, ColumnFacts]) -> bool:
    """Whether the column's numbers were written as text, which has no dtype."""
    known = facts.get(plan.column)
    return known is not None and (known.has_numbers_as_text or not known.dtypes)


def _dtype_in(space: Space, leaf: Leaf) -> np.dtype[Any]:
    inner = leaf_spaces(space).get(".".join(leaf.path))
    dtype = np.dtype(inner.dtype) if isinstance(inner, spaces.Box) else leaf.dtype
    return dtype if dtype.kind == "f" else leaf.dtype
