"""ConnectorV2, the base of every piece between episodes and a module; refuses to know what any piece does.

The call contract, the batch layout and the helpers are RLlib's, so that a piece written for RLlib runs here after changing its
import line. A column of a batch goes through these forms on its way:

* `[item, ...]`, items without an episode;
* `{(episode id,): [item, ...]}`, or `{(episode id, agent id, module id): [...]}`, where an entry may also be `Items`, several
  items that are already stacked;
* a tree of arrays (N, ...), all rows of all episodes in order: what `BatchIndividualItems` leaves, and what our own pieces
  write at once where `episodes` is an `EpisodeBatch`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["Batch", "ConnectorV2", "Episodes", "Items"]

Batch = dict[str, Any]
Episodes = Sequence[SingleAgentEpisode] | EpisodeBatch  # a batch gives the same episodes, one by one, to who iterates


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """`count` items of one episode, already stacked: leaves (count, ...)."""

    tree: Tree
    count: int


class ConnectorV2(ABC):
    """One piece of a pipeline: a call that takes a batch and episodes and gives the batch.

    `whole_arrays`: the piece reads an `EpisodeBatch` as arrays and never writes into episodes. A pipeline hands every other
    piece a list of `SingleAgentEpisode`, the same objects to each, so that what a piece writes into them stays.
    """

    whole_arrays: ClassVar[bool] = False

    def __init__(self, input_observation_space: Space | None = None, input_action_space: Space | None = None, **_: Any) -> None:
        self._input_observation_space = input_observation_space
        self._input_action_space = input_action_space
        self._recompute()

    @abstractmethod
    def __call__(
        self,
        *,
        rl_module: Any,
        batch: Batch,
        episodes: Episodes,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> Batch:
        """The batch, changed in place or new."""

    # ---- spaces ----

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The space of observations after this piece; a piece that changes shapes overrides this. Called by position."""
        return input_observation_space

    def recompute_output_action_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The space of actions after this piece. Called by position."""
        return input_action_space

    def _recompute(self) -> None:
        observations, actions = self._input_observation_space, self._input_action_space
        self._observation_space, self._action_space = observations, actions
        if observations is not None and actions is not None:
            self._observation_space = self.recompute_output_observation_space(observations, actions)
            self._action_space = self.recompute_output_action_space(observations, actions)

    @property
    def input_observation_space(self) -> Space | None:
        """The space of observations before this piece; None: not known yet."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, value: Space | None) -> None:
        self._input_observation_space = value
        self._recompute()

    @property
    def input_action_space(self) -> Space | None:
        """The space of actions before this piece; None: not known yet."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, value: Space | None) -> None:
        self._input_action_space = value
        self._recompute()

    @property
    def observation_space(self) -> Space | None:
        """The space of observations after this piece."""
        return self._observation_space

    @property
    def action_space(self) -> Space | None:
        """The space of actions after this piece."""
        return self._action_space

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """What the piece learned from data: plain values and arrays by name, saved with the policy."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` gave. Raises ValueError for names that this piece does not have."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, yet was given {sorted(state)}")

    def reset_state(self) -> None:  # noqa: B027  # most pieces learn nothing, so most have nothing to forget
        """Forget what was learned from data."""

    # ---- helpers for pieces ----

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Episodes,
        agents_that_stepped_only: bool = True,
        zip_with_batch_column: Sequence[Any] | Mapping[Any, Sequence[Any]] | None = None,
    ) -> Iterator[Any]:
        """Each single-agent episode, or (episode, its item) where a column is given.

        `agents_that_stepped_only` matters to multi-agent episodes alone: in the others the one agent steps at every step.
        Raises ValueError where the column does not fit the episodes.
        """
        if zip_with_batch_column is None:
            yield from episodes
        elif len(zip_with_batch_column) != len(episodes):
            raise ValueError(f"a column of {len(zip_with_batch_column)} entries for {len(episodes)} episodes")
        elif isinstance(zip_with_batch_column, Mapping):
            taken: dict[Any, int] = {}
            for episode in episodes:
                key = _key(episode)
                yield episode, zip_with_batch_column[key][taken.get(key, 0)]
                taken[key] = taken.get(key, 0) + 1
        else:
            yield from zip(episodes, zip_with_batch_column, strict=True)

    @staticmethod
    def add_batch_item(
        batch: Batch, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode | None = None
    ) -> None:
        """Append one item to `column`, under the episode's key where one is given. Raises ValueError for a stacked column."""
        _entries(batch, column, single_agent_episode).append(item_to_add)

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
            entries.extend(items_to_add)
        elif num_items:
            entries.append(Items(items_to_add, num_items))

    @staticmethod
    def foreach_batch_item_change_in_place(batch: Batch, column: str | Sequence[str], func: Callable[..., Any]) -> None:
        """Put `func(item, episode id, agent id, module id)` in the place of each item of `column`; several columns go together.

        With several columns `func` takes and gives a tuple of items. Ids are None for items without an episode.
        Raises ValueError for a column that is not made of individual items.
        """
        names = [column] if isinstance(column, str) else list(column)
        columns = [batch[name] for name in names]
        for key in columns[0] if isinstance(columns[0], dict) else [None]:
            lists = [part if key is None else part[key] for part in columns]
            if any(not isinstance(part, list) or any(isinstance(item, Items) for item in part) for part in lists):
                raise ValueError(f"columns {names} hold stacked rows: change them as arrays, or before they are stacked")
            ids = (*key, None, None)[:3] if key is not None else (None, None, None)
            for i, items in enumerate(zip(*lists, strict=True)):
                changed = func(items[0] if isinstance(column, str) else items, *ids)
                for part, item in zip(lists, [changed] if isinstance(column, str) else changed, strict=True):
                    part[i] = item

    def __repr__(self) -> str:
        return type(self).__name__


def _key(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """How an episode's items are filed: by its id, and by agent and module where it belongs to a multi-agent episode."""
    if episode.agent_id is None or episode.module_id is None:
        return (episode.id_,)
    return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)


def _entries(batch: Batch, column: str, episode: SingleAgentEpisode | None) -> list[Any]:
    held: Any = batch.setdefault(column, [] if episode is None else {})
    if episode is not None and isinstance(held, dict) and all(isinstance(key, tuple) for key in held):
        entries: list[Any] = held.setdefault(_key(episode), [])
        return entries
    if episode is None and isinstance(held, list):
        return held
    raise ValueError(f"column {column!r} is already {type(held).__name__}: items cannot be added to it")
