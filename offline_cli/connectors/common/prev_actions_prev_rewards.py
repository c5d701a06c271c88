"""Adds the last actions and rewards to observations; refuses nothing: before the first step both are zeros."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.flat_rows import flat_rows, flat_size
from offline_cli.connectors.common.frame_stacking import windows
from offline_cli.connectors.common.observation_transform import ObservationTransform, change_observations
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.buffers.stacking import row_count, stack
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["PrevActionsPrevRewards"]


class PrevActionsPrevRewards(ObservationTransform):
    """Observations become Dicts: `_orig_obs`, `prev_n_actions` (n * size,), `prev_n_rewards` (n,), float32, the oldest first.

    Actions of any space are one row of `size` numbers each, Discrete and MultiDiscrete one-hot. With n = 0 the key is left out.
    """

    slots_too = True

    ORIG_OBS_KEY: ClassVar[str] = "_orig_obs"
    PREV_ACTIONS_KEY: ClassVar[str] = "prev_n_actions"
    PREV_REWARDS_KEY: ClassVar[str] = "prev_n_rewards"

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool = False,
        as_learner_connector: bool = False,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
        **kwargs: Any,
    ) -> None:
        self.n_prev_actions, self.n_prev_rewards = n_prev_actions, n_prev_rewards
        super().__init__(
            input_observation_space,
            input_action_space,
            multi_agent=multi_agent,
            as_learner_connector=as_learner_connector,
            **kwargs,
        )

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """A Dict of the three. Raises SpaceMismatch where the action space is not known."""
        parts: dict[str, Space] = {self.ORIG_OBS_KEY: observations}
        if self.n_prev_actions:
            if actions is None:
                raise self.misfit("no action space", "to know how long an action is", fix="give the pipeline its action space")
            parts[self.PREV_ACTIONS_KEY] = self._unbounded(flat_size(actions) * self.n_prev_actions)
        if self.n_prev_rewards:
            parts[self.PREV_REWARDS_KEY] = self._unbounded(self.n_prev_rewards)
        return spaces.Dict(parts)

    def _unbounded(self, size: int) -> Space:
        self.check_size((size,))
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Not for observations alone. Raises TypeError."""
        raise TypeError("actions and rewards are in episodes, not in rows of observations")

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Write over the last observation of each."""
        count = max(self.n_prev_actions, self.n_prev_rewards)
        for episode in episodes:
            last = stack([episode.get_observations(-1)])
            actions = _Steps.until_now(episode.get_actions(slice(-count, None)))
            rewards = _Steps.until_now(episode.get_rewards(slice(-count, None)))
            changed = self._joined(last, actions, rewards, agent_id)
            episode.observation_space = self.space_after(agent_id)
            episode.set_observations(at_indices=-1, new_data=map_leaves(lambda leaf: leaf[0], changed))

    def on_slots(self, *, batch: Batch, slots: SlotWindows, **_: Any) -> tuple[Batch, Any]:
        """The batch as it is; the latest observations are changed."""
        self._check(batch)
        joined = {self.ORIG_OBS_KEY: slots.obs}
        if self.n_prev_actions:
            joined[self.PREV_ACTIONS_KEY] = self._recent_actions(slots).reshape(len(slots.live), -1)
        if self.n_prev_rewards:
            recent = slots.rewards(self.n_prev_rewards).astype(np.float32)
            joined[self.PREV_REWARDS_KEY] = np.where(slots.there(self.n_prev_rewards), recent, np.float32(0))
        slots.change(joined, self.observation_space)
        return batch, slots

    def _recent_actions(self, slots: SlotWindows) -> NDArray[np.float32]:
        """(P, n, size): zeros before the first step."""
        space = self._of_agent(self.input_action_space, None)
        recent = np.zeros((len(slots.live), self.n_prev_actions, flat_size(space)), np.float32)
        actions, there = slots.actions(self.n_prev_actions), slots.there(self.n_prev_actions)
        if actions is not None and there.any():
            recent[there] = flat_rows(map_leaves(lambda leaf: leaf[there], actions), space)
        return recent

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Write over all observations of each."""
        for episode in episodes:
            seen = episode.observations
            ends = np.arange(seen.len_incl_lookback()) - seen.lookback - 1
            # Lookback buffers may differ in length: what counts is where the first step after them is.
            steps = [_Steps.of(held.shared(), ends + held.lookback) for held in (episode.actions, episode.rewards)]
            change_observations(episode, partial(self._joined, actions=steps[0], rewards=steps[1], agent_id=agent_id), None)
            episode.observation_space = self.space_after(agent_id)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Leaves (N+E, ...)."""
        firsts = np.repeat(episodes.starts[:-1], episodes.lengths + 1)
        ends = np.arange(len(firsts)) - np.repeat(np.arange(len(episodes)), episodes.lengths + 1) - 1
        actions, rewards = _Steps(episodes.actions, ends, firsts), _Steps(episodes.rewards, ends, firsts)
        return self._joined(episodes.obs, actions, rewards, None)

    def _joined(self, observations: Tree, actions: _Steps, rewards: _Steps, agent_id: Any) -> Tree:
        """Observations (K, ...) with the actions and rewards before each."""
        joined = {self.ORIG_OBS_KEY: observations}
        if self.n_prev_actions:
            space = self._of_agent(self.input_action_space, agent_id)
            empty = np.zeros((0, flat_size(space)), np.float32)
            rows = empty if actions.rows is None else flat_rows(actions.rows, space)
            recent = windows(rows, actions.ends, actions.firsts, self.n_prev_actions)
            joined[self.PREV_ACTIONS_KEY] = recent.reshape(len(recent), -1)
        if self.n_prev_rewards:
            numbers = np.asarray(() if rewards.rows is None else rewards.rows, np.float32)
            joined[self.PREV_REWARDS_KEY] = windows(numbers, rewards.ends, rewards.firsts, self.n_prev_rewards)
        return joined


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Actions or rewards (A, ...), and which of them come right before each of K observations."""

    rows: Tree | None  # None: there are none
    ends: NDArray[np.int64]  # (K,)
    firsts: NDArray[np.int64] | int = 0  # (K,) where the episode of each observation begins

    @classmethod
    def of(cls, data: Any, ends: NDArray[np.int64]) -> _Steps:
        """Of one episode's data: a list of steps or arrays."""
        if not _length(data):
            return cls(None, ends)
        return cls(stack(data) if isinstance(data, list) else data, ends)

    @classmethod
    def until_now(cls, data: Any) -> _Steps:
        """All of `data`, before one observation."""
        return cls.of(data, np.array([_length(data) - 1]))


def _length(data: Any) -> int:
    return len(data) if isinstance(data, list) else row_count(data)
