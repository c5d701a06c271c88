"""Values of any space as one row of numbers, and the pieces that make observations of such rows.

The order is that of dm_tree, which RLlib's modules are trained in: Dict leaves by sorted key, Tuple leaves by place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.frame_stacking import windows
from offline_cli.connectors.common.observation_transform import ObservationTransform, change_observations
from offline_cli.connectors.torch_forms import Flat, Previous
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import hot_size, one_hot
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import row_count, stack
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, map_leaves

__all__ = ["FlattenObservations", "PrevActionsPrevRewards", "flat_rows", "flat_size"]


def flat_rows(rows: Tree, space: Space) -> NDArray[np.float32]:
    """(N, size) of leaves (N, ...): Discrete and MultiDiscrete one-hot (`start` honoured), other numbers as they are.

    Raises BadEpisode for a choice outside the space.
    """
    count = row_count(rows)
    parts = [np.asarray(leaf).reshape(count, -1).astype(np.float32, copy=False) for leaf in _in_order(one_hot(rows, space))]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def flat_size(space: Space) -> int:
    """How many numbers a row has."""
    counted = (spaces.Discrete, spaces.MultiDiscrete)
    parts = leaf_spaces(space).values()
    return sum(hot_size(part) if isinstance(part, counted) else math.prod(part.shape or ()) for part in parts)


def _in_order(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _in_order(tree[key])]
    return [leaf for part in tree for leaf in _in_order(part)] if isinstance(tree, tuple) else [tree]


class FlattenObservations(ObservationTransform):
    """(size,) float32: Dict leaves by sorted key, Discrete and MultiDiscrete one-hot, everything else as it is.

    Args:
        keys_to_remove: Keys of a Dict space that are left out; with several agents, of those whose space is a Dict.
        agent_ids: With `multi_agent`, the agents whose observations are flattened; None: all of them.
        multi_agent, as_learner_connector: As in ObservationTransform.
    """

    def __init__(
        self,
        *spaces: Space | None,
        agent_ids: Collection[Any] | None = None,
        keys_to_remove: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.keys_to_remove = list(keys_to_remove or ())
        self._agent_ids = agent_ids
        super().__init__(*spaces, **kwargs)

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """Box(size,). Raises SpaceMismatch where keys to remove do not exist."""
        flat = super().recompute_output_observation_space(input_observation_space, input_action_space)
        if not self._multi_agent or self._agent_ids is None or not isinstance(flat, spaces.Dict):
            return flat
        before: Any = input_observation_space
        return spaces.Dict({agent: flat[agent] if agent in self._agent_ids else before[agent] for agent in flat.spaces})

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(size,) of one agent."""
        size = flat_size(self._kept_space(observations))
        self.check_size((size,))
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """(N, size)."""
        if self._multi_agent and self._agent_ids is not None and agent_id not in self._agent_ids:
            return rows
        kept = self._kept_space(space)
        if kept is not space:
            rows = {key: rows[key] for key in kept.spaces}
        return flat_rows(rows, kept)

    def to_torch(self) -> Any:
        return Flat(self.space_before(None), self.keys_to_remove)

    def _kept_space(self, space: Space) -> Any:
        if not self.keys_to_remove or (self._multi_agent and not isinstance(space, spaces.Dict)):
            return space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        if not self._multi_agent and not parts.keys() >= set(self.keys_to_remove):
            raise self.misfit(f"observations of {space}", f"a Dict with the keys {self.keys_to_remove} to remove")
        return spaces.Dict({key: part for key, part in parts.items() if key not in self.keys_to_remove})


class PrevActionsPrevRewards(ObservationTransform):
    """Observations become Dicts: `_orig_obs`, `prev_n_actions` (n * size,), `prev_n_rewards` (n,), float32, the oldest first.

    Actions of any space are one row of `size` numbers each, Discrete and MultiDiscrete one-hot. Before the first step there are
    zeros. With n = 0 the key is left out.
    """

    ORIG_OBS_KEY: ClassVar[str] = "_orig_obs"
    PREV_ACTIONS_KEY: ClassVar[str] = "prev_n_actions"
    PREV_REWARDS_KEY: ClassVar[str] = "prev_n_rewards"

    def __init__(self, *spaces: Space | None, n_prev_actions: int = 1, n_prev_rewards: int = 1, **kwargs: Any) -> None:
        self.n_prev_actions, self.n_prev_rewards = n_prev_actions, n_prev_rewards
        super().__init__(*spaces, **kwargs)

    @property
    def looks_back(self) -> int:
        return max(self.n_prev_actions, self.n_prev_rewards)

    def to_torch(self) -> Any:
        """See ConnectorV2. Integer boxes have other units in networks, and no form."""
        actions = self._of_agent(self.input_action_space, None)
        boxes = [leaf for leaf in leaf_spaces(actions).values() if isinstance(leaf, spaces.Box)]
        if self.n_prev_actions and any(np.dtype(leaf.dtype).kind in "iu" for leaf in boxes):
            return None
        keys = self.ORIG_OBS_KEY, self.PREV_ACTIONS_KEY, self.PREV_REWARDS_KEY
        return Previous(actions, flat_size(actions), self.n_prev_actions, self.n_prev_rewards, keys)

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
        """Overwrite the last observation of each."""
        count = self.looks_back
        for episode in episodes:
            last = stack([episode.get_observations(-1)])
            actions, rewards = episode.get_actions(slice(-count, None)), episode.get_rewards(slice(-count, None))
            done, paid = (_Steps.of(data, np.array([_length(data) - 1])) for data in (actions, rewards))
            changed = self._joined(last, done, paid, agent_id)
            episode.observation_space = self.space_after(agent_id)
            episode.set_observations(at_indices=-1, new_data=map_leaves(lambda leaf: leaf[0], changed))

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite all observations of each."""
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


def _length(data: Any) -> int:
    return len(data) if isinstance(data, list) else row_count(data)
