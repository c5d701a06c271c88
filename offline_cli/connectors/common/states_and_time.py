"""States and the time axis for stateful modules: train rows are cut into sequences of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import SharedData, is_filed, key_of
from offline_cli.connectors.common.batching import stacked
from offline_cli.connectors.common.frame_stacking import taken
from offline_cli.connectors.connector_v2 import Batch, Episodes, Items, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, BadPiece, EpisodeIndexError
from offline_cli.modules.rl_module import initial_state, is_stateful, max_seq_len, module_of
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["AddStatesFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "Cut"]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Cut N timesteps of episodes into B sequences of T; each episode starts a new sequence, its last one is zero-padded."""

    rows: NDArray[np.int64]  # (B, T) index of the timestep; 0 for padding
    there: NDArray[np.bool_]  # (B, T) False for padding; each timestep is in one sequence
    seq_lens: NDArray[np.int64]  # (B,) timesteps without padding
    timesteps: int  # N

    @classmethod
    def of(cls, lengths: Sequence[int] | NDArray[np.int64], max_seq_len: int) -> Cut:
        """Cut episodes of these lengths, one after the other; an empty episode gives no sequence."""
        steps = np.asarray(lengths, np.int64)
        counts = -(-steps // max_seq_len)
        episode = np.repeat(np.arange(len(steps)), counts)
        nth = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
        seq_lens = np.minimum(max_seq_len, steps[episode] - nth * max_seq_len)
        first = (np.cumsum(steps) - steps)[episode] + nth * max_seq_len
        offsets = np.arange(max_seq_len)
        there = offsets < seq_lens[:, None]
        return cls(np.where(there, first[:, None] + offsets, 0), there, seq_lens, int(steps.sum()))

    @classmethod
    def for_module(cls, lengths: Sequence[int] | NDArray[np.int64], module: Any) -> Cut:
        """Cut as a stateful module's `model_config` says. Raises BadConfig if it sets no `max_seq_len`."""
        return cls.of(lengths, max_seq_len(module))

    def __len__(self) -> int:
        """Number of sequences, B."""
        return len(self.seq_lens)

    def check(self, column: str, rows: int) -> None:
        """Raise BadPiece, naming the column, unless it has a row for each timestep."""
        if rows != self.timesteps:
            raise BadPiece(
                f"column {column!r} has {rows} rows, but the episodes have {self.timesteps} timesteps",
                where="AddTimeDimToBatchAndZeroPad",
                fix="add one row per timestep of every episode, or add the column after the default pieces",
            )

    def pad(self, column: str, tree: Tree) -> Tree:
        """Cut leaves (N, ...) into leaves (B, T, ...). Raises BadPiece, naming the column, for another number of rows."""
        for _, leaf in flatten(tree):
            self.check(column, len(leaf))
        return map_leaves(lambda leaf: taken(leaf, self.rows, self.there), tree)

    def unpad(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The inverse: (B, T, ...) to (N, ...)."""
        return rows[self.there]


class AddStatesFromEpisodesToBatch(TwoSidedPiece):
    """Add `state_in`, without a time axis, for stateful modules; do nothing if the batch has it.

    In a learner pipeline (B, ...): the state before each sequence, which is the module's initial state at the start of an
    episode and wherever episodes hold no `state_out`. If the batch has `new_obs`, `next_state_in` is the state after the first
    step of each sequence. In an env-to-module pipeline: the last `state_out` of each episode.
    """

    whole_arrays = True

    def __call__(self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadEpisode for a chunk with `state_out` that lacks the one before its first step."""
        if not is_stateful(rl_module) or Columns.STATE_IN in batch:
            return batch
        with_next = Columns.NEXT_OBS in batch
        if self._as_learner_connector and isinstance(episodes, EpisodeBatch):
            module = module_of(rl_module, None)
            if Columns.STATE_OUT in episodes.extra and episodes.t_started is not None:  # chunks have no lookback buffers here
                for number in np.flatnonzero((episodes.t_started > 0) & (episodes.lengths > 0))[:1]:
                    raise _unknown(episodes.ids[number], int(episodes.t_started[number]))
            return batch | _states(module, episodes, initial_state(module), with_next)
        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            module = module_of(rl_module, episode.module_id)
            if not module.is_stateful():
                continue
            before = _before(module, episode, self._as_learner_connector)
            if not self._as_learner_connector:
                self.add_batch_item(batch, Columns.STATE_IN, before, episode)
            elif len(episode):
                states = _states(module, EpisodeBatch.from_episodes([episode]), before, with_next)
                for column, rows in states.items():
                    self.add_n_batch_items(batch, column, rows, len(Cut.for_module([len(episode)], module)), episode)
        return batch


def _before(module: Any, episode: SingleAgentEpisode, of_first: bool) -> Tree:
    """The state before the next step of an episode; `of_first`: before the first step, from the chunk's lookback buffer."""
    begins = episode.t_started == 0 and (of_first or len(episode) == 0)
    if begins or Columns.STATE_OUT not in episode.extra_model_outputs:
        return initial_state(module)
    try:
        return episode.get_extra_model_outputs(Columns.STATE_OUT, -1, neg_index_as_lookback=of_first)
    except EpisodeIndexError as err:
        raise _unknown(episode.id_, episode.t_started) from err


def _unknown(id_: str, t_started: int) -> BadEpisode:
    return BadEpisode(
        f"the chunk from timestep {t_started} has state_out, but lacks the one before its first step",
        where=f"episode {id_}",
        fix="pass whole episodes, or cut them with len_lookback_buffer=1 or more",
    )


def _states(module: Any, episodes: EpisodeBatch, before: Tree, with_next: bool) -> dict[str, Tree]:
    """`state_in` and, with `with_next`, `next_state_in`: leaves (B, ...). `before`: the state at the start of an episode."""
    cut = Cut.for_module(episodes.lengths, module)
    outs, firsts = episodes.extra.get(Columns.STATE_OUT), cut.rows[:, 0]
    if outs is None:
        rows = map_leaves(lambda leaf: np.repeat(leaf[None], len(cut), axis=0), before)
        return {Columns.STATE_IN: rows} | ({Columns.NEXT_STATE_IN: map_leaves(np.copy, rows)} if with_next else {})
    at_start = np.isin(firsts, episodes.starts[:-1])

    def states(first: Any, rows: NDArray[Any]) -> NDArray[Any]:
        chosen = rows[np.maximum(firsts - 1, 0)].astype(np.result_type(first, rows), copy=False)
        chosen[at_start] = first
        return chosen

    found = {Columns.STATE_IN: map_leaves(states, before, outs)}
    return found | ({Columns.NEXT_STATE_IN: map_leaves(lambda rows: rows[firsts], outs)} if with_next else {})


class AddTimeDimToBatchAndZeroPad(TwoSidedPiece):
    """Add a time axis to all columns but `infos` for stateful modules; do nothing if the batch has `state_in`.

    In a learner pipeline rows (N, ...) become zero-padded sequences (B, T, ...) with T the module's `max_seq_len`; `seq_lens`
    (B,) and `loss_mask` (B, T), unless it exists, mark the real steps. In an env-to-module pipeline the time axis
    has one step, which `shared_data["_added_single_ts_time_rank"]` (RLlib's key) tells module-to-env.
    """

    whole_arrays = True

    def __call__(
        self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, shared_data: SharedData = None, **_: Any
    ) -> Batch:
        """The batch. Raises BadPiece if columns do not fit the episodes, BadConfig for a module without `max_seq_len`."""
        if not is_stateful(rl_module) or Columns.STATE_IN in batch:
            return batch
        if self._as_learner_connector:
            return self._in_sequences(rl_module, batch, episodes)
        if shared_data is not None:
            shared_data["_added_single_ts_time_rank"] = True
        return {name: held if name == Columns.INFOS else _one_step(rl_module, held) for name, held in batch.items()}

    def _in_sequences(self, rl_module: Any, batch: Batch, episodes: Episodes) -> Batch:
        columns = [column for column in batch if column != Columns.INFOS]
        filed = [column for column in columns if is_filed(batch[column])]
        new_mask = [] if Columns.LOSS_MASK in batch else [Columns.LOSS_MASK]
        if len(filed) < len(columns):  # rows of a single agent's episodes, in order
            lengths = episodes.lengths if isinstance(episodes, EpisodeBatch) else list(map(len, episodes))
            whole = Cut.for_module(lengths, module_of(rl_module, None))
            for column in (name for name in columns if name not in filed):
                rows = batch[column]
                batch[column] = whole.pad(column, stacked(rows) if isinstance(rows, list) else rows)
            if not filed:
                return batch | {Columns.SEQ_LENS: whole.seq_lens} | dict.fromkeys(new_mask, whole.there)
        own: dict[tuple[Any, ...], tuple[Any, list[int]]] = {}  # stateful module and episode lengths by key
        for episode in self.single_agent_episode_iterator(episodes, False):
            module = module_of(rl_module, episode.module_id)
            if module.is_stateful():
                own.setdefault(key_of(episode), (module, []))[1].append(len(episode))
        for key, (module, lengths) in own.items():
            cut = Cut.for_module(lengths, module)
            for column in filed:
                entries = batch[column].get(key)
                if entries:
                    batch[column][key] = [Items(cut.pad(column, stacked(entries)), len(cut))]
                else:
                    cut.check(column, 0)
            for column in [Columns.SEQ_LENS, *new_mask] if len(cut) else []:
                made = cut.seq_lens if column == Columns.SEQ_LENS else cut.there
                batch.setdefault(column, {})[key] = [Items(made, len(cut))]
        return batch


def _one_step(rl_module: Any, held: Any) -> Any:
    """Insert a time axis of one step, after the batch axis if there is one."""
    if is_filed(held):
        stateless = [key for key in held if len(key) == 3 and not module_of(rl_module, key[2]).is_stateful()]
        return {key: items if key in stateless else _one_step(rl_module, items) for key, items in held.items()}
    if not isinstance(held, list):
        return map_leaves(lambda leaf: leaf[:, None], held)
    return [
        Items(_one_step(rl_module, item.tree), item.count)
        if isinstance(item, Items)
        else map_leaves(lambda leaf: np.expand_dims(leaf, 0), item)
        for item in held
    ]
