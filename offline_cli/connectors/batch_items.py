"""Batches before they are stacked: items in columns, filed by episode.

A column of a batch goes through these forms on its way:

* `[item, ...]`, items without an episode;
* `{(episode id,): [item, ...]}`, or `{(episode id, agent id, module id): [...]}`, where an entry may also be `Items`, several
  items that are already stacked;
* a tree of arrays (N, ...), all rows of all episodes in order: what `BatchIndividualItems` leaves, and what our own pieces
  write at once where `episodes` is an `EpisodeBatch`.

No column shares memory that can be written with an episode, or with another call's batch: items are copied when they are added,
`Items` are read-only views until they are stacked or changed.

In multi-agent pipelines `AgentToModuleMapping` makes `{module id: {column: ...}}` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import unstack
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = [
    "Batch",
    "BatchHelpers",
    "Episodes",
    "Items",
    "RowsOfEpisodes",
    "SingleEpisodes",
    "filed_rows",
    "is_filed",
    "key_of",
    "owned",
    "refiled",
]

Batch = dict[str, Any]
Episodes = Sequence[Any] | EpisodeBatch
"""SingleAgentEpisodes, MultiAgentEpisodes, or a batch, which gives the same single episodes, one by one, to who iterates."""


@dataclass(slots=True, eq=False)  # not frozen: one is made per column and episode, and frozen ones take three times as long
class Items:
    """`count` items of one episode, already stacked: leaves (count, ...), which others may hold, too; never written to."""

    tree: Tree
    count: int


def read_only(tree: Tree) -> Tree:
    """Views of arrays that cannot be written to; the arrays themselves can as before."""
    if type(tree) is not np.ndarray:
        return map_leaves(read_only, tree) if isinstance(tree, (dict, tuple)) else tree
    view = tree[...]
    view.flags.writeable = False
    return view


def owned(item: Tree) -> Tree:
    """A deep copy of a tree."""
    if type(item) is np.ndarray:
        return item.copy()
    if isinstance(item, (dict, tuple)):
        return map_leaves(owned, item)
    return item if isinstance(item, (int, float, str, np.generic)) else deepcopy(item)


def key_of(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """How an episode's items are filed: by its id, or by (multi-agent episode, agent, module) where it has an agent's id."""
    if episode.agent_id is None:
        return (episode.id_,)
    whole = episode.multi_agent_episode_id
    return (episode.id_ if whole is None else whole, episode.agent_id, episode.module_id)


def is_filed(column: Any) -> bool:
    """Whether a column is filed by episode: its keys are tuples, where those of a Dict observation are text."""
    return isinstance(column, dict) and isinstance(next(iter(column), None), tuple)


def filed_rows(keys: Iterable[tuple[Any, ...]], trees: Iterable[Tree], counts: Iterable[int]) -> dict[Any, list[Any]]:
    """A whole column at once: under each key, in order, a tree of that many rows (or a list of so many items).

    Arrays are to be made for this call, views of others at least: they cannot be written to any more.
    """
    filed: dict[Any, list[Any]] = {}
    for key, tree, count in zip(keys, trees, counts, strict=True):
        entries = filed.setdefault(key, [])
        if type(tree) is np.ndarray:
            tree.setflags(write=False)
            entries.append(Items(tree, count))
        elif type(tree) is list:
            entries.extend(map(owned, tree))
        else:
            entries.append(Items(read_only(tree), count))
    return filed


class SingleEpisodes(list[SingleAgentEpisode]):
    """The episodes of an `EpisodeBatch`, one by one, for a piece that takes no other."""


class RowsOfEpisodes(dict[str, Any]):
    """A batch for such a piece. Columns may be stacked over all episodes already: helpers need to know whose rows are whose."""

    __slots__ = ("episodes",)

    def __init__(self, batch: Batch, episodes: SingleEpisodes) -> None:
        super().__init__(batch)
        self.episodes = episodes


def refiled(batch: Batch, episodes: Sequence[SingleAgentEpisode], names: Iterable[str]) -> Batch:
    """The columns `names` of a batch, filed by episode.

    Those are columns of arrays (and lists of infos) with a row for each step of all episodes or, where `seq_lens` is there, for
    each sequence; others stay.
    """
    moved = [episode for episode in episodes if len(episode)]
    if not moved:
        return {name: batch[name] for name in names}
    keys, ends = [key_of(episode) for episode in moved], np.cumsum([len(episode) for episode in moved])
    bounds = [0, *ends.tolist()]
    sequences = batch.get(Columns.SEQ_LENS)
    if isinstance(sequences, np.ndarray):
        bounds = [0, *(np.searchsorted(np.cumsum(sequences), ends) + 1).tolist()]
    return {name: _refiled(batch[name], keys, bounds) for name in names}


def _refiled(held: Any, keys: Sequence[tuple[Any, ...]], bounds: list[int]) -> Any:
    rows = [held] if isinstance(held, list) else [] if is_filed(held) else leaves(held)
    lengths = {len(leaf) if isinstance(leaf, list) or (isinstance(leaf, np.ndarray) and leaf.ndim) else None for leaf in rows}
    if lengths != {bounds[-1]}:
        return held
    parts = [slice(start, stop) for start, stop in pairwise(bounds)]
    trees = (held[part] if isinstance(held, list) else map_leaves(itemgetter(part), held) for part in parts)
    return filed_rows(keys, trees, (part.stop - part.start for part in parts))


class BatchHelpers:
    """What RLlib's pieces call to walk over episodes and to fill and change batches."""

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Episodes,
        agents_that_stepped_only: bool = True,
        zip_with_batch_column: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None,
    ) -> Iterator[Any]:
        """Each single-agent episode, multi-agent ones taken apart; or (episode, its item) where a column is given.

        Args:
            agents_that_stepped_only: Of multi-agent episodes only the agents that stepped last; in the others the one agent
                steps at every step.
            zip_with_batch_column: One item per episode as a list, or lists of items by the episodes' keys.

        Raises ValueError where the column does not fit the episodes.
        """
        singles = _single_episodes(episodes, agents_that_stepped_only)
        if zip_with_batch_column is None:
            return singles
        return _with_items(list(singles), zip_with_batch_column)

    @staticmethod
    def add_batch_item(
        batch: Batch, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode | None = None
    ) -> None:
        """Append one item to `column`, under the episode's key where one is given.

        Raises ValueError for a column that is stacked already, and for a batch that is already by module.
        """
        _entries(batch, column, single_agent_episode).append(owned(item_to_add))

    @staticmethod
    def add_n_batch_items(
        batch: Batch,
        column: str,
        items_to_add: Any,
        num_items: int,
        single_agent_episode: SingleAgentEpisode | None = None,
    ) -> None:
        """Append `num_items` items: a list of them, or one tree of leaves (num_items, ...). Raises ValueError as above."""
        entries = _entries(batch, column, single_agent_episode)
        if isinstance(items_to_add, list):
            if len(items_to_add) != num_items:
                raise ValueError(f"{len(items_to_add)} items for column {column!r}, {num_items} announced")
            entries.extend(map(owned, items_to_add))
        elif num_items:
            entries.append(Items(read_only(items_to_add), num_items))

    @staticmethod
    def foreach_batch_item_change_in_place(batch: Batch, column: str | Sequence[str], func: Callable[..., Any]) -> None:
        """Put `func(item, episode id, agent id, module id)` in the place of each item of `column`; several columns go together.

        With several columns `func` takes and gives a tuple of items. Ids are None for items without an episode. The steps of a
        numpy'ized episode come as RLlib has them: all at once, as arrays (T, ...), and `func` gives as many. One by one come
        end flags that are asked for alone, and columns of which another has single items.

        Raises ValueError for a column that is not there, or is stacked for good, and where `func` gives another number of rows.
        """
        names = [column] if isinstance(column, str) else list(column)
        missing = [name for name in names if name not in batch]
        if missing:
            raise ValueError(f"no columns {missing} in the batch; there are {sorted(map(str, batch))}")
        if isinstance(batch, RowsOfEpisodes):
            batch.update(refiled(batch, batch.episodes, names))
        columns = [batch[name] for name in names]
        one_by_one = set(names) <= {Columns.TERMINATEDS, Columns.TRUNCATEDS}
        for key in columns[0] if isinstance(columns[0], dict) else [None]:
            lists = [part if key is None else part[key] for part in columns]
            if any(not isinstance(part, list) for part in lists):
                raise ValueError(f"columns {names} hold stacked rows: change them as arrays, or before they are stacked")
            if one_by_one or any(_counts(part) != _counts(lists[0]) for part in lists):
                for part in lists:
                    part[:] = _single_items(part)
            ids = (*key, None, None)[:3] if key is not None else (None,) * 3
            _change_each(names, lists, ids, func, single=isinstance(column, str))

    @staticmethod
    def switch_batch_from_column_to_module_ids(batch: Mapping[str, Mapping[Any, Any]]) -> dict[Any, dict[str, Any]]:
        """`{column: {module id: data}}` as `{module id: {column: data}}`."""
        by_module: dict[Any, dict[str, Any]] = {}
        for column, parts in batch.items():
            for module_id, data in parts.items():
                by_module.setdefault(module_id, {})[column] = data
        return by_module


def _single_episodes(episodes: Episodes, stepped_only: bool) -> Iterator[SingleAgentEpisode]:
    for episode in episodes:
        if isinstance(episode, SingleAgentEpisode):
            yield episode
        else:
            agents = episode.get_agents_that_stepped() if stepped_only else episode.agent_episodes
            # Not in the order of that set, which differs from one process to the next.
            yield from (part for agent, part in episode.agent_episodes.items() if agent in agents)


def _with_items(
    episodes: list[SingleAgentEpisode], column: Sequence[Any] | Mapping[Any, Sequence[Any]]
) -> Iterator[tuple[SingleAgentEpisode, Any]]:
    if not isinstance(column, Mapping):
        if len(column) != len(episodes):
            raise ValueError(f"a column of {len(column)} entries for {len(episodes)} episodes")
        yield from zip(episodes, column, strict=True)
        return
    taken: dict[Any, int] = {}
    for episode in episodes:
        key = key_of(episode)
        index = taken.get(key, 0)
        if key not in column or index >= len(column[key]):
            raise ValueError(f"a column of {sum(map(len, column.values()))} entries has none left for the episode {key}")
        yield episode, column[key][index]
        taken[key] = index + 1
    left = {key: len(items) - taken.get(key, 0) for key, items in column.items() if len(items) > taken.get(key, 0)}
    if left:
        raise ValueError(f"a column of entries that no episode asked for: {left} for {len(episodes)} episodes")


def _entries(batch: Batch, column: str, episode: SingleAgentEpisode | None) -> list[Any]:
    if episode is not None and episode.module_id is not None and episode.module_id in batch:
        raise ValueError(f"the batch is by module already ({episode.module_id!r}): items are added before AgentToModuleMapping")
    held: Any = batch.get(column)
    if held is None:
        held = batch[column] = [] if episode is None else {}
    if episode is not None and type(held) is dict and (not held or is_filed(held)):
        entries: list[Any] = held.setdefault(key_of(episode), [])
        return entries
    if episode is None and isinstance(held, list):
        return held
    raise ValueError(f"column {column!r} is already {type(held).__name__}: items cannot be added to it")


def _counts(entries: list[Any]) -> list[int | None]:
    return [entry.count if isinstance(entry, Items) else None for entry in entries]


def _single_items(entries: list[Any]) -> list[Any]:
    """Each row of `Items` as an item of its own."""
    return [item for entry in entries for item in (unstack(owned(entry.tree)) if isinstance(entry, Items) else [entry])]


def _change_each(
    names: list[str], lists: list[list[Any]], ids: tuple[Any, ...], func: Callable[..., Any], *, single: bool
) -> None:
    for i, items in enumerate(zip(*lists, strict=True)):
        handed = [owned(item.tree) if isinstance(item, Items) else item for item in items]
        changed = func(handed[0] if single else tuple(handed), *ids)
        for name, part, before, after in zip(names, lists, items, [changed] if single else changed, strict=True):
            part[i] = _as_items(name, after, before.count) if isinstance(before, Items) else after


def _as_items(name: str, rows: Tree, count: int) -> Items:
    found = {len(leaf) if np.ndim(leaf) else None for leaf in leaves(rows)}
    if found != {count}:
        raise ValueError(f"column {name!r}: {count} rows were to be changed, and the function gave {sorted(map(str, found))}")
    return Items(map_leaves(np.asarray, rows), count)
