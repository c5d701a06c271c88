"""Batches before stacking: columns of items grouped by episode, and RLlib's helpers that fill them.

A column of a batch has one of these forms:

* `[item, ...]`: items without an episode;
* `{(episode id,): [item, ...]}`, or `{(episode id, agent id, module id): [...]}`; an entry may also be `Items`: several
  stacked items, such as all steps of a numpy'ized episode;
* a tree of arrays (N, ...): all rows of all episodes in order. `BatchIndividualItems` produces it; pieces write it directly if
  `episodes` is an `EpisodeBatch`.

In multi-agent pipelines `AgentToModuleMapping` turns the batch into `{module id: {column: ...}}`.

A batch owns its memory: items are copied when added; `Items` are read-only views until they are stacked or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import unstack
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["Batch", "BatchHelpers", "Episodes", "Items", "SharedData", "is_filed", "key_of", "owned"]

Batch = dict[str, Any]
SharedData = dict[str, Any] | None
"""Data that pieces of the two pipelines around a module exchange, with RLlib's keys."""
Episodes = Sequence[Any] | EpisodeBatch
"""SingleAgentEpisodes, MultiAgentEpisodes, or a batch; iterating over a batch yields its single-agent episodes."""


@dataclass(slots=True, eq=False)
class Items:
    """`count` stacked items of one episode: leaves (count, ...), possibly shared and therefore read-only."""

    tree: Tree
    count: int


def owned(item: Tree) -> Tree:
    """A deep copy of a tree."""
    if type(item) is np.ndarray:
        return item.copy()
    if isinstance(item, (dict, tuple)):
        return map_leaves(owned, item)
    return item if isinstance(item, (int, float, str, np.generic)) else deepcopy(item)


def key_of(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """The key of an episode's items in a column: (episode id,), or (multi-agent episode id, agent id, module id)."""
    if episode.agent_id is None:
        return (episode.id_,)
    whole = episode.multi_agent_episode_id
    return (episode.id_ if whole is None else whole, episode.agent_id, episode.module_id)


def is_filed(column: Any) -> bool:
    """Whether a column maps episode keys (tuples) to items; the keys of a Dict observation are strings."""
    return isinstance(column, dict) and isinstance(next(iter(column), None), tuple)


class BatchHelpers:
    """RLlib's helper methods of pieces: iterate over episodes, fill and change batches."""

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Episodes,
        agents_that_stepped_only: bool = True,
        zip_with_batch_column: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None,
    ) -> Iterator[Any]:
        """Iterate over single-agent episodes, including each agent's; with a column, over pairs (episode, item).

        Args:
            agents_that_stepped_only: For multi-agent episodes, only agents that acted in the last step.
            zip_with_batch_column: A list with one item per episode, or lists of items by episode key.

        Raises ValueError if the column does not fit the episodes.
        """
        singles = _single_episodes(episodes, agents_that_stepped_only)
        return singles if zip_with_batch_column is None else _with_items(list(singles), zip_with_batch_column)

    @staticmethod
    def add_batch_item(
        batch: Batch, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode | None = None
    ) -> None:
        """Append one item to `column`, under the episode's key if an episode is given.

        Raises ValueError if the column is already stacked, or the batch already grouped by module.
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
        """Append `num_items` items: a list, or one tree of leaves (num_items, ...). Raises ValueError like `add_batch_item`."""
        entries = _entries(batch, column, single_agent_episode)
        if not isinstance(items_to_add, list):
            entries += [Items(map_leaves(_read_only, items_to_add), num_items)] if num_items else []
        elif len(items_to_add) == num_items:
            entries += map(owned, items_to_add)
        else:
            raise ValueError(f"column {column!r}: {len(items_to_add)} items given, but num_items is {num_items}")

    @staticmethod
    def foreach_batch_item_change_in_place(batch: Batch, column: str | Sequence[str], func: Callable[..., Any]) -> None:
        """Replace each item of `column` by `func(item, episode id, agent id, module id)`; several columns are passed together.

        With several columns `func` takes and returns a tuple of items. Ids are None for items without an episode. As in RLlib,
        the steps of a numpy'ized episode are one item: arrays (T, ...), and `func` returns T rows. They are split into single
        items if only end flags are changed, or if another column has single items.

        Raises ValueError for a missing or stacked column, and if `func` returns another number of rows.
        """
        names = [column] if isinstance(column, str) else list(column)
        missing = [name for name in names if name not in batch]
        if missing:
            raise ValueError(f"no columns {missing} in the batch; there are {sorted(map(str, batch))}")
        columns = [batch[name] for name in names]
        for key in columns[0] if isinstance(columns[0], dict) else [None]:
            lists = [held if key is None else held[key] for held in columns]
            if any(not isinstance(entries, list) for entries in lists):
                raise ValueError(f"columns {names} are stacked: change them as arrays, or before BatchIndividualItems")
            if set(names) <= {Columns.TERMINATEDS, Columns.TRUNCATEDS} or any(
                _counts(entries) != _counts(lists[0]) for entries in lists
            ):
                for entries in lists:
                    entries[:] = _one_by_one(entries)
            ids = (*key, None, None)[:3] if key is not None else (None,) * 3
            for index, together in enumerate(zip(*lists, strict=True)):
                handed = [owned(item.tree) if isinstance(item, Items) else item for item in together]
                changed = [func(handed[0], *ids)] if isinstance(column, str) else func(tuple(handed), *ids)
                for name, entries, before, after in zip(names, lists, together, changed, strict=True):
                    entries[index] = _as_items(name, after, before.count) if isinstance(before, Items) else after

    @staticmethod
    def switch_batch_from_column_to_module_ids(batch: Mapping[str, Mapping[Any, Any]]) -> dict[Any, dict[str, Any]]:
        """Turn `{column: {module id: data}}` into `{module id: {column: data}}`."""
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
            # The order of a set differs between processes.
            yield from (part for agent, part in episode.agent_episodes.items() if agent in agents)


def _with_items(
    episodes: list[SingleAgentEpisode], column: Sequence[Any] | Mapping[Any, Sequence[Any]]
) -> Iterator[tuple[SingleAgentEpisode, Any]]:
    if not isinstance(column, Mapping):
        if len(column) != len(episodes):
            raise ValueError(f"the column has {len(column)} entries, but there are {len(episodes)} episodes")
        yield from zip(episodes, column, strict=True)
        return
    left = {key: list(items) for key, items in column.items()}
    for episode in episodes:
        if not left.get(key_of(episode)):
            raise ValueError(f"the column of {sum(map(len, column.values()))} entries has none left for {key_of(episode)}")
        yield episode, left[key_of(episode)].pop(0)
    if counts := {key: len(items) for key, items in left.items() if items}:
        raise ValueError(f"the column has unused entries: {counts} for {len(episodes)} episodes")


def _entries(batch: Batch, column: str, episode: SingleAgentEpisode | None) -> list[Any]:
    if episode is not None and episode.module_id is not None and episode.module_id in batch:
        raise ValueError(f"the batch is grouped by module ({episode.module_id!r}): add items before AgentToModuleMapping")
    held: Any = batch.setdefault(column, [] if episode is None else {})
    if episode is not None and type(held) is dict and (not held or is_filed(held)):
        held = held.setdefault(key_of(episode), [])
    if not isinstance(held, list) or (episode is not None and held is batch[column]):
        raise ValueError(f"column {column!r} is a {type(held).__name__}: items cannot be added to it")
    return held


def _read_only(leaf: Any) -> Any:
    """A read-only view of an array."""
    if type(leaf) is not np.ndarray:
        return leaf
    view = leaf[...]
    view.setflags(write=False)
    return view


def _counts(entries: list[Any]) -> list[int | None]:
    return [entry.count if isinstance(entry, Items) else None for entry in entries]


def _one_by_one(entries: list[Any]) -> list[Any]:
    """Split `Items` into single items."""
    return [item for entry in entries for item in (unstack(owned(entry.tree)) if isinstance(entry, Items) else [entry])]


def _as_items(name: str, rows: Tree, count: int) -> Items:
    counts = {len(leaf) if np.ndim(leaf) else None for leaf in leaves(rows)}
    if counts != {count}:
        raise ValueError(f"column {name!r}: the function got {count} rows, but returned {sorted(map(str, counts))}")
    return Items(map_leaves(np.asarray, rows), count)
