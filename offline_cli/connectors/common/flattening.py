"""Flattening: values of any space as one vector of numbers, and the pieces that turn observations into such vectors.

The order is that of dm_tree, which RLlib's modules are trained in: Dict leaves by sorted key, Tuple leaves by place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.frame_stacking import windows
from offline_cli.connectors.common.observation_transform import ObservationTransform, change_observations
from offline_cli.connectors.torch_forms import Flat, Previous
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import one_hot
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import row_count, stack
from offline_cli.modules.encoders import columns_of
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
    return sum(map(columns_of, leaf_spaces(space).values()))


def _in_order(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _in_order(tree[key])]
    return [leaf for part in tree for leaf in _in_order(part)] if isinstance(tree, tuple) else [tree]


class FlattenObservations(ObservationTransform):
    """Flattens observations to (size,) float32: Dict leaves by sorted key, Discrete and MultiDiscrete one-hot.

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
        return flat_rows(rows if kept is space else {key: rows[key] for key in kept.spaces}, kept)

    def to_torch(self) -> Any:
        return Flat(self.space_before(None), self.keys_to_remove)

    def _kept_space(self, space: Space) -> Any:
        if not self.keys_to_remove or (self._multi_agent and not isinstance(space, spaces.Dict)):
            return space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        if not self._multi_agent and not parts.keys() >= set(self.keys_to_remove):
            raise self.misfit(f"observations of {space}", f"a Dict with the keys {self.keys_to_remove} to remove")
        return spaces.Dict({key: part for key, part in parts.items() if key not in self.keys_to_remove})


Steps = tuple[Tree | None, NDArray[np.int64], NDArray[np.int64] | int]
"""Actions or rewards (A, ...), None for none; (K,) which of them comes right before each of K observations; and where the
episode of each observation begins."""


class PrevActionsPrevRewards(ObservationTransform):
    """Adds the last n actions and rewards to observations: a Dict of `_orig_obs`, `prev_n_actions` (n * size,) and
    `prev_n_rewards` (n,), float32, oldest first.

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
        sizes = {self.PREV_REWARDS_KEY: self.n_prev_rewards}
        if self.n_prev_actions:
            if actions is None:
                raise self.misfit("no action space", "to know how long an action is", fix="give the pipeline its action space")
            sizes = {self.PREV_ACTIONS_KEY: flat_size(actions) * self.n_prev_actions, **sizes}
        parts: dict[str, Space] = {self.ORIG_OBS_KEY: observations}
        for key, size in sizes.items():
            self.check_size((size,))
            parts |= {key: spaces.Box(-np.inf, np.inf, (size,), np.float32)} if size else {}
        return spaces.Dict(parts)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Not for observations alone. Raises TypeError."""
        raise TypeError("actions and rewards are in episodes, not in rows of observations")

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite the last observation of each."""
        recent = slice(-self.looks_back, None)
        for episode in episodes:
            done, paid = (_rows_of(data) for data in (episode.get_actions(recent), episode.get_rewards(recent)))
            last = [np.array([0 if one is None else row_count(one) - 1]) for one in (done, paid)]
            seen = stack([episode.get_observations(-1)])
            changed = self._joined(seen, (done, last[0], 0), (paid, last[1], 0), agent_id)
            episode.observation_space = self.space_after(agent_id)
            episode.set_observations(at_indices=-1, new_data=map_leaves(lambda leaf: leaf[0], changed))

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite all observations of each."""
        for episode in episodes:
            seen = episode.observations
            ends = np.arange(seen.len_incl_lookback()) - seen.lookback - 1
            # Lookback buffers may differ in length: what counts is where the first step after them is.
            both = (episode.actions, episode.rewards)
            steps: list[Steps] = [(_rows_of(one.shared()), ends + one.lookback, 0) for one in both]
            joined = partial(self._joined, actions=steps[0], rewards=steps[1], agent_id=agent_id)
            change_observations(episode, joined, None)
            episode.observation_space = self.space_after(agent_id)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Leaves (N+E, ...)."""
        firsts = np.repeat(episodes.starts[:-1], episodes.lengths + 1)
        ends = np.arange(len(firsts)) - np.repeat(np.arange(len(episodes)), episodes.lengths + 1) - 1
        return self._joined(episodes.obs, (episodes.actions, ends, firsts), (episodes.rewards, ends, firsts), None)

    def _joined(self, observations: Tree, actions: Steps, rewards: Steps, agent_id: Any) -> Tree:
        """Observations (K, ...) with the actions and rewards before each."""
        joined = {self.ORIG_OBS_KEY: observations}
        if self.n_prev_actions:
            space, (rows, ends, firsts) = self._of_agent(self.input_action_space, agent_id), actions
            flat = np.zeros((0, flat_size(space)), np.float32) if rows is None else flat_rows(rows, space)
            recent = windows(flat, ends, firsts, self.n_prev_actions)
            joined[self.PREV_ACTIONS_KEY] = recent.reshape(len(recent), -1)
        if self.n_prev_rewards:
            rows, ends, firsts = rewards
            joined[self.PREV_REWARDS_KEY] = windows(
                np.asarray(() if rows is None else rows, np.float32), ends, firsts, self.n_prev_rewards
            )
        return joined


def _rows_of(data: Any) -> Tree | None:
    """One episode's data, a list of steps or arrays, as arrays; None where there are no steps."""
    count = len(data) if isinstance(data, list) else row_count(data)
    return (stack(data) if isinstance(data, list) else data) if count else None
