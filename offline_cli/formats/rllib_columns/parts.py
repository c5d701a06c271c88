"""Rows of a table as arrays; refuses rows that cannot be read, and rows of other shapes than most, each by its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import infos_of, tree_of, tree_of_following
from offline_cli.formats.rllib_columns.tables import INFOS, KEYS, SCALARS, TREES, quoted
from offline_cli.formats.step_rows import timesteps
from offline_cli.tally import OnError, Rejects
from offline_cli.trees import Tree, flatten

__all__ = ["Part", "Shapes", "parts_of"]

Where = Callable[[int], str]  # row of the table to its place in words
OnLost = Callable[[NDArray[np.int64], str], None]  # rows of the table that went to the rejects, and the place of the first
Shapes = Mapping[str, tuple[int, ...]]  # by dotted path of the leaf


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
    """All rows at once where they can be read; otherwise halves, until the rows that cannot be read stand alone."""
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
    """What keeps steps of the two from standing in one episode; a column that only one has does not, unless it is needed."""
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
