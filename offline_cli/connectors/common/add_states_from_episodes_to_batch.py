"""Puts the states of stateful modules into a batch; refuses chunks of episodes whose state before them is not known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.sequences import Cut
from offline_cli.connectors.common.stacking import stacked
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, EpisodeIndexError
from offline_cli.modules.rl_module import initial_state, is_stateful, max_seq_len, module_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AddStatesFromEpisodesToBatch"]


class AddStatesFromEpisodesToBatch(ConnectorV2):
    """Nothing for stateless modules, nor where `state_in` is there. Else `state_in`, without a time axis.

    In a learner pipeline (B, ...): the state that each sequence begins with, which is the module's initial one at the start
    of an episode, and everywhere where the episodes hold no `state_out`. Where the batch has `new_obs`, `next_state_in` is the
    state after the first step of each sequence. Otherwise one per episode: the last `state_out`.
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

    def __call__(self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadEpisode for a chunk with `state_out`s but without the one before its first step."""
        if not is_stateful(rl_module) or Columns.STATE_IN in batch:
            return batch
        if self._as_learner_connector and isinstance(episodes, EpisodeBatch):
            return batch | _states_of_batch(module_of(rl_module, None), episodes, Columns.NEXT_OBS in batch)
        with_next = Columns.NEXT_OBS in batch
        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            module = module_of(rl_module, episode.module_id)
            if not module.is_stateful():
                continue
            if not self._as_learner_connector:
                self.add_batch_item(batch, Columns.STATE_IN, _latest(module, episode), episode)
                continue
            cut = Cut.of([len(episode)], max_seq_len(module))
            for column, states in _states_of_episode(module, episode, cut, with_next).items():
                self.add_n_batch_items(batch, column, states, len(cut), episode)
        return batch

    def on_slots(self, *, batch: Batch, slots: SlotWindows, rl_module: Any = None, **_: Any) -> tuple[Batch, Any]:
        """The states before the latest observations (P, ...)."""
        if is_stateful(rl_module):
            batch.setdefault(Columns.STATE_IN, slots.states)
        return batch, slots


def _latest(module: Any, episode: SingleAgentEpisode) -> Tree:
    begins = episode.t_started == 0 and len(episode) == 0
    if begins or Columns.STATE_OUT not in episode.extra_model_outputs:
        return initial_state(module)
    return episode.get_extra_model_outputs(Columns.STATE_OUT, -1)


def _states_of_episode(module: Any, episode: SingleAgentEpisode, cut: Cut, with_next: bool) -> dict[str, Tree]:
    """`state_in`, and `next_state_in` if asked for: leaves (B, ...)."""
    if not len(cut):
        return {}
    if Columns.STATE_OUT not in episode.extra_model_outputs:
        return _repeated(initial_state(module), len(cut), with_next)
    outs = episode.get_extra_model_outputs(Columns.STATE_OUT)
    outs = stacked(outs) if isinstance(outs, list) else outs
    before = initial_state(module) if episode.t_started == 0 else _before(episode)
    return _at(cut.firsts, outs, before, np.array([True] + [False] * (len(cut) - 1)), with_next)


def _before(episode: SingleAgentEpisode) -> Tree:
    """The state before the first step of a chunk, from its lookback buffer."""
    try:
        return episode.get_extra_model_outputs(Columns.STATE_OUT, -1, neg_index_as_lookback=True)
    except EpisodeIndexError as err:
        raise _unknown(episode.id_, episode.t_started) from err


def _unknown(id_: str, t_started: int) -> BadEpisode:
    return BadEpisode(
        f"a chunk from timestep {t_started} on, with state_outs, but without the one before it",
        where=f"episode {id_}",
        fix="give whole episodes, or cut them with len_lookback_buffer=1 or more",
    )


def _states_of_batch(module: Any, episodes: EpisodeBatch, with_next: bool) -> dict[str, Tree]:
    cut = Cut.of(episodes.lengths, max_seq_len(module))
    if Columns.STATE_OUT not in episodes.extra:
        return _repeated(initial_state(module), len(cut), with_next)
    late = np.zeros(0) if episodes.t_started is None else np.flatnonzero((episodes.t_started > 0) & (episodes.lengths > 0))
    if len(late) and episodes.t_started is not None:
        raise _unknown(episodes.ids[late[0]], int(episodes.t_started[late[0]]))
    at_start = np.isin(cut.firsts, episodes.starts[:-1])
    return _at(cut.firsts, episodes.extra[Columns.STATE_OUT], initial_state(module), at_start, with_next)


def _at(firsts: NDArray[np.int64], outs: Tree, before: Tree, at_start: NDArray[np.bool_], with_next: bool) -> dict[str, Tree]:
    """The states in front of the timesteps `firsts` (B,): `before` where an episode starts, else the one put out before."""

    def states(first: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        chosen = rows[np.maximum(firsts - 1, 0)].astype(np.result_type(first, rows), copy=False)
        chosen[at_start] = first
        return chosen

    found = {Columns.STATE_IN: map_leaves(states, before, outs)}
    return found | ({Columns.NEXT_STATE_IN: map_leaves(lambda rows: rows[firsts], outs)} if with_next else {})


def _repeated(state: Tree, count: int, with_next: bool) -> dict[str, Tree]:
    rows = map_leaves(lambda leaf: np.repeat(leaf[None], count, axis=0), state)
    return {Columns.STATE_IN: rows} | ({Columns.NEXT_STATE_IN: map_leaves(np.copy, rows)} if with_next else {})
