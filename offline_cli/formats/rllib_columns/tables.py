"""Tables of step rows: the meaning of their columns, which episode each row belongs to, their order, and rows as arrays.

* `keys_of`, `taken`, `order_of`: the episode and agent of each row, by whole columns, and the order to read rows in.
* `check_columns`, `wanted_columns`, `missing_values`: a table made ready to be read. One without the columns of a step, or with
  ids or timesteps of odd types, raises. Columns without a meaning of their own are extra model outputs. Columns of nulls count
  as absent. Extra columns that hold no numbers are left out, named and counted (`dropped-column`), and so are infos that are
  not dicts; a number missing in a column that holds numbers is NaN, and counted (`null-as-nan`).
* `parts_of`: rows of a table as arrays. Rows that cannot be read, and rows of other shapes than most, are rejected by place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import infos_of, is_text, tree_of, tree_of_following, why_no_infos, why_no_numbers
from offline_cli.formats.step_rows import END_FLAGS, Keys, timesteps
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import Tree, flatten

__all__ = [
    "INFOS",
    "KEYS",
    "NEEDED",
    "SCALARS",
    "TREES",
    "VALUES",
    "Part",
    "Shapes",
    "check_columns",
    "first_of_each_agent",
    "keys_of",
    "missing_values",
    "order_of",
    "parts_of",
    "quoted",
    "taken",
    "wanted_columns",
]

NEEDED: Final = (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
KEYS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
SCALARS: Final = (Columns.REWARDS, *END_FLAGS)
VALUES: Final = (*TREES, *SCALARS, Columns.T)
"""Columns that hold a value for every row, where they are there at all."""
INFOS: Final = (Columns.INFOS, Columns.RESET_INFOS)

Where = Callable[[int], str]  # row of the table to its place as text
OnLost = Callable[[NDArray[np.int64], str], None]  # rows of the table that went to the rejects, and the place of the first
Shapes = Mapping[str, tuple[int, ...]]  # by dotted path of the leaf


def keys_of(table: pa.Table) -> Keys:
    """The keys of all rows, ids as text; each row has an `eps_id`."""
    codes, names = zip(*(_codes(table, name) for name in KEYS), strict=True)
    if len(names[1]) == len(names[2]) == 1:
        return Keys(codes[0], tuple(map(str, names[0])), names[1] * len(names[0]), names[2] * len(names[0]))
    sizes = len(names[1]), len(names[2])
    distinct, code = np.unique((codes[0] * sizes[0] + codes[1]) * sizes[1] + codes[2], return_inverse=True)
    modules, rest = distinct % sizes[1], distinct // sizes[1]
    agents, ids = rest % sizes[0], rest // sizes[0]
    return Keys(
        code.astype(np.int64),
        tuple(str(names[0][i]) for i in ids),
        tuple(names[1][i] for i in agents),
        tuple(names[2][i] for i in modules),
    )


def _codes(table: pa.Table, name: str) -> tuple[NDArray[np.int64], tuple[str | None, ...]]:
    """(N,) index into distinct values, as text; a missing column has one value, None."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64), (None,)
    encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    return encoded.indices.to_numpy().astype(np.int64), tuple(None if value is None else str(value) for value in values)


def taken(keys: Keys, rows: NDArray[np.int64]) -> Keys:
    """The keys of some rows, in their order."""
    return replace(keys, code=keys.code[rows])


def order_of(table: pa.Table, keys: Keys) -> NDArray[np.int64] | None:
    """The order by episode, and within it by timestep or else in file order; None where rows mostly follow each other."""
    t = table[Columns.T].to_numpy() if Columns.T in table.column_names else None
    breaks = keys.code[1:] != keys.code[:-1]
    if t is not None:
        breaks |= t[1:] != t[:-1] + 1
    if int(breaks.sum()) <= len(breaks) // 2:
        return None
    return np.argsort(keys.code, kind="stable") if t is None else np.lexsort((np.arange(len(t)), t, keys.code))


def first_of_each_agent(keys: Keys, begin: int) -> NDArray[np.int64]:
    """Of the rows from `begin` on, the first of each agent."""
    pairs: dict[tuple[str | None, str | None], int] = {}
    number = [pairs.setdefault(pair, len(pairs)) for pair in zip(keys.agent_ids, keys.module_ids, strict=True)]
    if len(pairs) == 1:
        return np.arange(begin, min(begin + 1, len(keys.code)))
    return begin + np.unique(np.array(number)[keys.code[begin:]], return_index=True)[1]


def check_columns(table: pa.Table, where: str) -> None:
    """Raise BadData, naming the columns, where a step cannot be read from `table`."""
    present = {column.name: column.type for column in table.schema if not pa.types.is_null(column.type)}
    missing = [name for name in NEEDED if name not in present]
    if missing:
        raise BadData(
            f"no column {' or '.join(missing)}",
            where=where,
            fix=f"give files of steps with the columns {', '.join(NEEDED)}",
        )
    odd = [name for name in KEYS if name in present and not _is_name(present[name])]
    odd += [name for name in (Columns.T,) if name in present and not _is_number(present[name])]
    if odd:
        raise BadData(
            f"column {odd[0]} holds {present[odd[0]]}",
            where=where,
            fix="write ids as text or integers, and t as the number of the step in its episode; or leave t out where rows stand"
            " in order",
        )


def _is_name(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_integer(kind)) or bool(pa.types.is_floating(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def wanted_columns(table: pa.Table, tally: Tally, dropped: set[str]) -> pa.Table:
    """Without the columns that hold nothing of use, and those in `dropped`, which were left out of the rows before."""
    for index, column in reversed(list(enumerate(table.schema))):
        name, values = column.name, table.column(index)
        has_role = name in (*VALUES, *INFOS, *KEYS, *CUSTOM_COLUMNS)
        if pa.types.is_null(column.type) or name in dropped:
            table = table.remove_column(index)
        elif reason := _why_dropped(values, column, has_role=has_role):
            table = table.remove_column(index)
            tally.drop_column(name, reason)
            dropped.add(name)
        elif not has_role and values.null_count and (_is_number(column.type) or pa.types.is_boolean(column.type)):
            tally.assume("null-as-nan", values.null_count)
            kind = column.type if pa.types.is_floating(column.type) else pa.float64()
            table = table.set_column(index, column.with_type(kind), pc.fill_null(values.cast(kind), float("nan")))
    return table


def _why_dropped(values: pa.ChunkedArray, column: pa.Field, *, has_role: bool) -> str:
    if column.name in INFOS:
        return why_no_infos(column.type)
    return "" if has_role else why_no_numbers(values, column)


def missing_values(table: pa.Table, rejects: Rejects, where: Callable[[int], str]) -> NDArray[np.bool_]:
    """(N,) rows that have a null where a step must have a value; they have gone to the rejects."""
    missing = np.zeros(table.num_rows, np.bool_)
    reason: dict[int, str] = {}
    for name in (Columns.EPS_ID, *VALUES):
        if name in table.column_names and table[name].null_count:
            nulls = table[name].is_null().to_numpy()
            missing |= nulls
            reason.update(dict.fromkeys(np.flatnonzero(nulls).tolist(), name))
    for row in np.flatnonzero(missing).tolist():
        error = BadEpisode(
            f"column {reason[row]} has no value",
            where=where(row),
            fix="fill the value in, or --on-error skip to leave out the episode",
        )
        rejects.add(error, raw=quoted(table.slice(row, 1), rejects))
    return missing


def quoted(rows: pa.Table, rejects: Rejects) -> bytes:
    """The rows as text, where the rejects keep it."""
    return repr(rows.to_pylist()).encode() if rejects.on_error is OnError.QUARANTINE else b""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that could be read, as they stand in their table."""

    table: pa.Table
    rows: NDArray[np.int64]  # (N,) of the whole table
    trees: dict[str, Any]  # by column: trees with leaves (N, ...), infos as lists

    def shapes(self) -> Shapes:
        """Of one step."""
        named = [(name, tree) for name, tree in self.trees.items() if name not in INFOS]
        return {path: leaf.shape[1:] for name, tree in named for path, leaf in flatten(tree, name)}


def parts_of(
    table: pa.Table, shapes: Shapes | None, rejects: Rejects, *, where: Where, on_lost: OnLost
) -> tuple[list[Part], Shapes | None]:
    """The readable rows of `table` in as few parts as there are bad rows between them, and the shapes that all have.

    `shapes` are those of the rows before; where there were none, most rows decide.
    """
    parts = list(_read(table, np.arange(table.num_rows), rejects, where, on_lost))
    if shapes is None and parts:
        votes: Counter[Any] = Counter()
        for part in parts:
            votes[tuple(sorted(part.shapes().items()))] += len(part.rows)
        shapes = dict(votes.most_common(1)[0][0])
    return [part for part in parts if _agrees(part, shapes or {}, rejects, where, on_lost)], shapes


def _read(table: pa.Table, rows: NDArray[np.int64], rejects: Rejects, where: Where, on_lost: OnLost) -> Iterator[Part]:
    """All rows at once where they can be read; otherwise halves, until the rows that cannot be read are isolated."""
    if not table.num_rows:
        return
    try:
        yield Part(table, rows, _trees(table, lambda row: where(int(rows[row]))))
    except BadData as error:
        if table.num_rows == 1 or rejects.on_error is OnError.FAIL:
            rejects.add(error, raw=quoted(table, rejects))
            on_lost(rows, error.where)
            return
        half = table.num_rows // 2
        yield from _read(table.slice(0, half), rows[:half], rejects, where, on_lost)
        yield from _read(table.slice(half), rows[half:], rejects, where, on_lost)


def _trees(table: pa.Table, where: Where) -> dict[str, Any]:
    trees: dict[str, Any] = {}
    for column in table.schema:
        if column.name in INFOS:
            infos = infos_of(table[column.name], column, where=where)
            if infos is not None:
                trees[column.name] = infos
        elif column.name not in KEYS and column.name != Columns.SOURCE_ID:
            trees[column.name] = _tree(table, column, trees.get(Columns.OBS), where)
    for name in (*SCALARS, Columns.T):
        if name in trees:
            trees[name] = _one_per_step(trees[name], name, where(0))
    if Columns.T in trees:
        trees[Columns.T] = timesteps(trees[Columns.T], where=where)
    return trees


def _tree(table: pa.Table, column: pa.Field, obs: Tree | None, where: Where) -> Tree:
    """`obs`: the tree of the observations, where it has been made."""
    if column.name == Columns.NEXT_OBS and obs is not None:
        return tree_of_following(table[column.name], column, table[Columns.OBS], obs, where=where)
    return tree_of(table[column.name], column, where=where)


def _one_per_step(tree: Tree, name: str, place: str) -> NDArray[Any]:
    """(N,) of a column of one value per step, which may be written as lists of one."""
    if isinstance(tree, np.ndarray) and tree.size == len(tree):
        return tree.reshape(len(tree))
    fix = "write one number for each step"
    raise BadEpisode(f"column {name} holds more than one value per step", where=place, fix=fix)


def _agrees(part: Part, shapes: Shapes, rejects: Rejects, where: Where, on_lost: OnLost) -> bool:
    problem = _difference(part.shapes(), shapes)
    if not problem:
        return True
    place = where(int(part.rows[0]))
    fix = "pad or cut the values to one shape, or convert the files of each kind into a dataset of its own"
    rejects.add(BadEpisode(problem, where=place, fix=fix), raw=quoted(part.table, rejects), rows=len(part.rows))
    on_lost(part.rows, place)
    return False


def _difference(have: Shapes, want: Shapes) -> str:
    """Why steps of the two cannot share an episode; a column that only one has is no reason, unless it is required."""
    obs, new_obs = (_below(have, name) for name in (Columns.OBS, Columns.NEXT_OBS))
    if new_obs and new_obs != obs:
        return f"column {Columns.NEXT_OBS} has {_words(new_obs)}, and column {Columns.OBS} {_words(obs)}"
    for name in (*TREES, *have):
        mine, theirs = _below(have, name), _below(want, name)
        if mine and theirs and mine != theirs:
            return f"column {name} has {_words(mine)} here and {_words(theirs)} in other rows"
    return ""


def _below(shapes: Shapes, name: str) -> Shapes:
    return {path.removeprefix(name): shape for path, shape in shapes.items() if path == name or path.startswith(f"{name}.")}


def _words(shapes: Shapes) -> str:
    if set(shapes) == {""}:
        return f"shape {list(shapes[''])}"
    return "parts " + ", ".join(f"{path.removeprefix('.')} of shape {list(shape)}" for path, shape in shapes.items())
