"""Gives a batch the time axis that stateful modules need; refuses rows that are not the episodes' timesteps."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import is_filed, key_of, refiled
from offline_cli.connectors.common.sequences import Cut
from offline_cli.connectors.common.stacking import stacked
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, Items
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules.rl_module import is_stateful, max_seq_len, module_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AddTimeDimToBatchAndZeroPad"]


class AddTimeDimToBatchAndZeroPad(ConnectorV2):
    """Nothing for stateless modules, nor where `state_in` is there. Else all columns but `infos` get a time axis.

    In a learner pipeline rows (N, ...) become sequences (B, T, ...) with T the module's `max_seq_len`, filled up with zeros;
    `seq_lens` (B,) and, unless there, `loss_mask` (B, T) say what is real. Otherwise the time axis is of one step, noted in
    `shared_data["_added_single_ts_time_rank"]` (RLlib's name) for module-to-env.
    """

    whole_arrays = True
    slots_too = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        as_learner_connector: bool = False,
        **kwargs: Any,
    ) -> None:
        self._as_learner_connector = as_learner_connector
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: Batch,
        episodes: Episodes,
        shared_data: dict[str, Any] | None = None,
        **_: Any,
    ) -> Batch:
        """The batch. Raises BadPiece for columns that do not fit the episodes, BadConfig for a module without max_seq_len."""
        if not is_stateful(rl_module) or Columns.STATE_IN in batch:
            return batch
        if self._as_learner_connector:
            return self._sequences(rl_module, batch, episodes)
        for column, held in batch.items():
            if column != Columns.INFOS:
                batch[column] = _one_step(rl_module, held)
        if shared_data is not None:
            shared_data["_added_single_ts_time_rank"] = True
        return batch

    def _sequences(self, rl_module: Any, batch: Batch, episodes: Episodes) -> Batch:
        columns = [column for column in batch if column != Columns.INFOS]
        add_mask = Columns.LOSS_MASK not in batch
        if isinstance(episodes, EpisodeBatch) or not any(map(is_filed, batch.values())):
            lengths = episodes.lengths if isinstance(episodes, EpisodeBatch) else list(map(len, episodes))
            cut = Cut.of(lengths, max_seq_len(module_of(rl_module, None)))
            batch |= {column: cut.pad(column, _rows(batch[column])) for column in columns}
            batch[Columns.SEQ_LENS] = cut.seq_lens
            return batch | {Columns.LOSS_MASK: cut.there} if add_mask else batch
        batch |= refiled(batch, list(self.single_agent_episode_iterator(episodes, False)), columns)  # some may be stacked
        for key, cut in self._cuts(rl_module, episodes).items():
            for column in columns:
                _pad_filed(column, batch[column], key, cut)
            self._file(batch, Columns.SEQ_LENS, key, Items(cut.seq_lens, len(cut)))
            if add_mask:
                self._file(batch, Columns.LOSS_MASK, key, Items(cut.there, len(cut)))
        return batch

    def _cuts(self, rl_module: Any, episodes: Episodes) -> dict[tuple[Any, ...], Cut]:
        """How the items under each key are cut; keys of stateless modules left out."""
        lengths: dict[tuple[Any, ...], list[int]] = {}
        modules: dict[tuple[Any, ...], Any] = {}
        for episode in self.single_agent_episode_iterator(episodes, False):
            lengths.setdefault(key_of(episode), []).append(len(episode))
            modules[key_of(episode)] = module_of(rl_module, episode.module_id)
        return {key: Cut.of(steps, max_seq_len(modules[key])) for key, steps in lengths.items() if modules[key].is_stateful()}

    @staticmethod
    def _file(batch: Batch, column: str, key: tuple[Any, ...], items: Items) -> None:
        if items.count:
            batch.setdefault(column, {})[key] = [items]


def _rows(held: Any) -> Tree:
    return stacked(held) if isinstance(held, list) else held


def _pad_filed(column: str, held: Any, key: tuple[Any, ...], cut: Cut) -> None:
    """Put the sequences of one key in the place of its items."""
    entries = held.get(key) if is_filed(held) else None
    if entries:
        held[key] = [Items(cut.pad(column, stacked(entries)), len(cut))]
    else:
        cut.check(column, 0)


def _one_step(rl_module: Any, held: Any) -> Any:
    """A column with a time axis of one step, after the axis of the batch where there is one yet."""
    if is_filed(held):
        stateless = [key for key in held if len(key) == 3 and not module_of(rl_module, key[2]).is_stateful()]
        return {key: items if key in stateless else [_expanded(item) for item in items] for key, items in held.items()}
    if isinstance(held, list):
        return [_expanded(item) for item in held]
    return map_leaves(lambda leaf: leaf[:, None], held)


def _expanded(item: Any) -> Any:
    if isinstance(item, Items):
        return Items(map_leaves(lambda leaf: leaf[:, None], item.tree), item.count)
    return map_leaves(lambda leaf: np.expand_dims(leaf, 0), item)
