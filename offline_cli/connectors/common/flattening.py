"""Pieces that transform observations, and flattening of values of any space to one vector.

The order is that of dm_tree, which RLlib's modules use: Dict leaves by sorted key, Tuple leaves by position.

`ObservationTransform` is the base class of pieces that replace the observations of episodes. In an env-to-module pipeline it
overwrites the last observation of each episode, as in RLlib. Recordings hold raw observations, so a learner pipeline needs the
same piece with `as_learner_connector=True`: there it replaces every observation of each episode, the last one and the lookback
buffer included, so that later pieces (frame stacking, next observations) see transformed observations only. An `EpisodeBatch`
is not changed; later pieces get a transformed copy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.frame_stacking import windows
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.connectors.torch_forms import Flat, Previous
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import one_hot
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import row_count, stack, unstack
from offline_cli.modules.encoders import columns_of
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "FlattenObservations",
    "ObservationTransform",
    "PrevActionsPrevRewards",
    "change_observations",
    "check_no_obs",
    "flat_rows",
    "flat_size",
]


class ObservationTransform(TwoSidedPiece):
    """Base class: subclasses define how rows of observations change (`transform`) and their new space (`transformed_space`).

    `multi_agent`: the spaces are Dicts by agent; each agent's observations are transformed by its own space.
    """

    whole_arrays = True
    writes_episodes = True

    def __init__(self, *spaces: Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        self._multi_agent = multi_agent
        super().__init__(*spaces, **kwargs)

    @abstractmethod
    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Leaves (N, ...) for one agent's observations (N, ...) of `space`."""

    @abstractmethod
    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """The space of one agent's observations after this piece. Raises SpaceMismatch."""

    def takes_arrays(self) -> bool:
        """True in single-agent learner pipelines."""
        return self._as_learner_connector and not self._multi_agent

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The transformed space; a Dict by agent with `multi_agent`."""
        if not self._multi_agent:
            return self.transformed_space(input_observation_space, input_action_space)
        if not isinstance(input_observation_space, spaces.Dict):
            got = f"observations of {input_observation_space}"
            raise self.misfit(got, "a Dict by agent", fix="set multi_agent=False for a single agent")
        actions = input_action_space.spaces if isinstance(input_action_space, spaces.Dict) else {}
        every = input_observation_space.spaces.items()
        return spaces.Dict({agent: self.transformed_space(space, actions.get(agent)) for agent, space in every})  # type: ignore[arg-type]

    # ---- arrays ----

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, EpisodeBatch]:
        """The unchanged batch, and episodes with transformed observations. Raises BadPiece like `__call__`."""
        check_no_obs(self, batch)
        return batch, replace(episodes, obs=self.transformed_batch(episodes), observation_space=self.observation_space)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Transformed observations (N+E, ...) of a batch of single-agent episodes."""
        return self.transform(episodes.obs, self.space_before(None), None)

    # ---- a list of episodes ----

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """Transform the episodes in place and return the unchanged batch. Raises BadPiece if the batch already has `obs`."""
        check_no_obs(self, batch)
        assert not isinstance(episodes, EpisodeBatch), "arrays are read-only: call on_episode_batch, or a pipeline"
        groups: dict[Any, list[SingleAgentEpisode]] = {}  # transformed together: all episodes, or each agent's
        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            groups.setdefault(episode.agent_id if self._multi_agent else None, []).append(episode)
        for agent_id, own in groups.items():
            (self.change_all if self._as_learner_connector else self.change_last)(own, agent_id)
        return batch

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite the last observation of each episode."""
        space = self.space_before(agent_id)
        rows = stack([episode.get_observations(-1) for episode in episodes], space)
        changed = unstack(self.transform(rows, space, agent_id))
        for episode, observation in zip(episodes, changed, strict=True):
            episode.observation_space = self.space_after(
                agent_id
            )  # first, because the old space may not contain the new observation
            episode.set_observations(at_indices=-1, new_data=observation)

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite all observations of each episode."""
        before, after = self.space_before(agent_id), self.space_after(agent_id)
        for episode in episodes:
            change_observations(episode, lambda rows: self.transform(rows, before, agent_id), after)

    # ---- spaces ----

    def space_before(self, agent_id: Any) -> Any:
        """The space of one agent's observations before this piece; for a single agent the whole space."""
        return self._of_agent(self.input_observation_space, agent_id)

    def space_after(self, agent_id: Any) -> Any:
        """The space of one agent's observations after this piece; for a single agent the whole space."""
        return self._of_agent(self.observation_space, agent_id)

    def _of_agent(self, space: Any, agent_id: Any) -> Any:
        if space is None:
            fix = "put the piece in a pipeline, or set its input spaces"
            raise self.misfit("no spaces", "its input spaces before any data", fix=fix)
        if not self._multi_agent:
            return space
        if agent_id not in space.spaces:
            raise self.misfit(f"an observation of agent {agent_id!r}", f"one of {list(space.spaces)}", fix="correct the space")
        return space[agent_id]


def check_no_obs(piece: ConnectorV2, batch: Batch) -> None:
    """Raise BadPiece if a piece before `piece`, which changes episodes, has already added `obs` to the batch."""
    if Columns.OBS in batch:
        fix = f"put {type(piece).__name__} before pieces that fill obs, such as FrameStacking"
        raise piece.bad("the batch already has obs, which this piece would not change", fix=fix)


def change_observations(episode: SingleAgentEpisode, change: Callable[[Tree], Tree], space: Space | None) -> None:
    """Replace all observations (N, ...) of an episode, lookback buffer included, by `change(rows)`."""
    held = episode.observations
    if held.len_incl_lookback():
        rows = change(held.shared() if held.finalized else stack(held.data, held.space))
        if held.finalized:
            held.replace(rows)
            held.shared()  # unchanged leaves are still shared
        else:
            held.data = unstack(rows)
    episode.observation_space = space


def flat_rows(rows: Tree, space: Space) -> NDArray[np.float32]:
    """Flatten leaves (N, ...) to (N, size): Discrete and MultiDiscrete one-hot (counted from `start`), other numbers unchanged.

    Raises BadEpisode for a choice outside the space.
    """
    count = row_count(rows)
    parts = [np.asarray(leaf).reshape(count, -1).astype(np.float32, copy=False) for leaf in _in_order(one_hot(rows, space))]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def flat_size(space: Space) -> int:
    """The width of a row of `flat_rows`."""
    return sum(map(columns_of, leaf_spaces(space).values()))


def _in_order(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _in_order(tree[key])]
    return [leaf for part in tree for leaf in _in_order(part)] if isinstance(tree, tuple) else [tree]


class FlattenObservations(ObservationTransform):
    """Flatten observations to (size,) float32: Dict leaves by sorted key, Discrete and MultiDiscrete one-hot.

    Args:
        keys_to_remove: Keys of a Dict space to drop; with several agents, only from spaces that are a Dict.
        multi_agent, as_learner_connector: As in ObservationTransform.
    """

    def __init__(self, *spaces: Space | None, keys_to_remove: Sequence[str] | None = None, **kwargs: Any) -> None:
        self.keys_to_remove = list(keys_to_remove or ())
        super().__init__(*spaces, **kwargs)

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(size,). Raises SpaceMismatch if a key to remove does not exist."""
        return spaces.Box(-np.inf, np.inf, (flat_size(self._kept_space(observations)),), np.float32)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """(N, size)."""
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
"""Actions or rewards (A, ...), or None; the index (K,) of the one right before each of K observations; and the index of the
first one of each observation's episode."""


class PrevActionsPrevRewards(ObservationTransform):
    """Add the last n actions and rewards to observations: a Dict of `_orig_obs`, `prev_n_actions` (n * size,) and
    `prev_n_rewards` (n,), float32, oldest first.

    Each action is flattened to `size` numbers, Discrete and MultiDiscrete one-hot. Zeros stand in before the first step. With
    n = 0 the key is omitted.
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
        """See ConnectorV2. None for integer boxes, because networks use other units for them."""
        actions = self._of_agent(self.input_action_space, None)
        boxes = [leaf for leaf in leaf_spaces(actions).values() if isinstance(leaf, spaces.Box)]
        if self.n_prev_actions and any(np.dtype(leaf.dtype).kind in "iu" for leaf in boxes):
            return None
        keys = self.ORIG_OBS_KEY, self.PREV_ACTIONS_KEY, self.PREV_REWARDS_KEY
        return Previous(actions, flat_size(actions), self.n_prev_actions, self.n_prev_rewards, keys)

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """A Dict of the three keys. Raises SpaceMismatch if the action space is unknown."""
        sizes = {self.PREV_REWARDS_KEY: self.n_prev_rewards}
        if self.n_prev_actions:
            if actions is None:
                raise self.misfit("no action space", "the size of an action", fix="set the pipeline's action space")
            sizes = {self.PREV_ACTIONS_KEY: flat_size(actions) * self.n_prev_actions, **sizes}
        parts: dict[str, Space] = {self.ORIG_OBS_KEY: observations}
        for key, size in sizes.items():
            parts |= {key: spaces.Box(-np.inf, np.inf, (size,), np.float32)} if size else {}
        return spaces.Dict(parts)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Raises TypeError: rows of observations contain no actions or rewards."""
        raise TypeError("rows of observations contain no actions or rewards")

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite the last observation of each episode."""
        recent = slice(-self.looks_back, None)
        for episode in episodes:
            done, paid = (_rows_of(data) for data in (episode.get_actions(recent), episode.get_rewards(recent)))
            last = [np.array([0 if one is None else row_count(one) - 1]) for one in (done, paid)]
            seen = stack([episode.get_observations(-1)])
            changed = self._joined(seen, (done, last[0], 0), (paid, last[1], 0), agent_id)
            episode.observation_space = self.space_after(agent_id)
            episode.set_observations(at_indices=-1, new_data=map_leaves(lambda leaf: leaf[0], changed))

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite all observations of each episode."""
        for episode in episodes:
            seen = episode.observations
            ends = np.arange(seen.len_incl_lookback()) - seen.lookback - 1
            # Lookback buffers may differ in length, so indices count from the first step after each.
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
        """Join observations (K, ...) with the actions and rewards before each."""
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
    """One episode's data, a list of steps or arrays, as arrays; None without steps."""
    count = len(data) if isinstance(data, list) else row_count(data)
    return (stack(data) if isinstance(data, list) else data) if count else None
