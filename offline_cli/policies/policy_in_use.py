"""A policy in a program: observations in, actions for the environment out, with the numbers of `evaluate`.

`load_policy` (`by_name.py`) opens what `record` plays: a run folder, a model of stable-baselines3, a Python object.
`act` takes one observation or a batch, which the observation space tells apart; pieces, action scale and memory are inside. A
policy sees blocks of the size that `evaluate` has for 16 episodes and more, so that results agree to the bit.

Rows are environments that play side by side. Each has an episode with a number, as the episodes of an evaluation have, and the
random numbers that follow from it. `reset` begins the next episodes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from offline_cli.connectors.pipeline_player import frames_looked_at, steps_looked_at
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.connectors.slot_player import SlotError, SlotPlayer
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.module_policy import ModelPolicy, ModulePolicy
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import EVALUATION_ROWS, Policy, block_rows, fitted, rows_of
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space, describe
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["PolicyInUse"]

WHERE: Final = "act(observation)"
OF_EVALUATION: Final = (
    0,
    1,
    0,
)  # purpose, use and round in the key of an episode's random numbers (`EvaluationPlan.chance_key`)
FRESH: Final = -1
Index = NDArray[np.int64]


class PolicyInUse:
    """A policy that is ready to act; `reset` where an episode begins. Its methods may be called by several threads in turn."""

    def __init__(
        self, policy: Policy | PipedPolicy, spaces: tuple[Space, Space], *, seed: int = 0, run: LoadedPolicy | None = None
    ) -> None:
        """`spaces`: the environment's, of observations and actions. `run`: what it was read from, if that was a run folder."""
        self.observation_space, self.action_space = spaces
        self.run = run
        self._like = _tree_of(spaces[0])  # the leaf spaces of observations, in their structure
        self._leaves = leaves(self._like)
        self._floats = [np.dtype(space.dtype).kind == "f" for space in self._leaves] if _takes_finite(policy) else []
        self._player = _Slots(policy) if isinstance(policy, PipedPolicy) else _Blocks(policy, spaces[0])
        self._chance_size, self._seed = policy.chance_size, seed
        self._next = 0  # number of the next episode
        self._numbers: Index = np.zeros(
            0, np.int64
        )  # (rows,) of each row's episode; FRESH: one begins with its next observation
        self._chance: list[np.random.Generator] = []  # of each row's episode
        self._lock = threading.Lock()

    @property
    def module(self) -> RLModule | None:
        """The network; None: the policy is not of a run folder."""
        return None if self.run is None else self.run.module

    @property
    def description(self) -> Mapping[str, Any]:
        """policy.json of the run folder; empty: the policy is not of one."""
        return {} if self.run is None else self.run.description

    @property
    def trained(self) -> PipelineSpec | None:
        """The pieces it was trained through, and what they learned; None: it plays without pieces."""
        return None if self.run is None else self.run.trained

    @property
    def checkpoint(self) -> int | None:
        """The update of the checkpoint it is from, in a run that is not finished; else None."""
        return None if self.run is None else self.run.checkpoint

    @property
    def has_memory(self) -> bool:
        """Whether an action depends on earlier observations of the episode: a state, stacked frames, last actions."""
        return isinstance(self._player, _Slots) and self._player.looks_back

    def act(self, observation: Any, *, reward: ArrayLike | None = None, info: Any = None) -> Tree:
        """The action for one observation; actions (B, ...) for a batch, whose leaves have an axis of B rows before their own.

        Observations are as the environment gives them, actions as it takes them. `reward`, a number or (B,): what the last
        actions were answered with; needed by pieces that look at rewards. `info`, a mapping or B of them: for pieces of yours
        that read infos. With memory, each call continues the episode of each row, until `reset`.

        Raises SpaceMismatch for observations of other structure, shape or dtype; BadData for NaN and infinity in those of a
        network, unless pieces of your own come before it; BadConfig where the number of rows changes in
        the middle of episodes that are remembered, and without rewards that pieces look at; BadPiece for pieces that give no
        actions. What a user's pieces or function raise passes.
        """
        rows, count = self._rows(observation)
        self._check_finite(rows)
        alone = count is None
        size = 1 if count is None else count
        with self._lock:
            if isinstance(self._player, _Blocks):
                if self._chance_size:
                    self._begun(size)
                actions = self._player.act(rows, size, self._drawn(size)) if size else zero_rows(self.action_space, 0)
            else:
                new = self._begun(size)
                infos = None if info is None else _infos([info] if alone else info, size)
                rewards = None if reward is None else np.asarray(reward, np.float64).reshape(size)
                actions = self._player.act(rows, size, self._drawn(size), new, self._numbers, rewards, infos)
        return rows_of(actions, 0) if alone else actions

    def reset(self, rows: ArrayLike | None = None, *, seed: int | None = None) -> None:
        """New episodes begin with the next observations: of all rows, however many come; or of `rows` alone, indices or a mask.

        `seed`: random numbers begin again, with those of this seed's first episode. Raises BadConfig for unknown rows.
        """
        with self._lock:
            if seed is not None:
                self._seed, self._next = seed, 0
            if rows is None:
                self._numbers, self._chance = np.zeros(0, np.int64), []
            elif len(self._numbers):
                self._numbers[_chosen(rows, len(self._numbers))] = FRESH

    # ---- rows ----

    def _rows(self, observation: Any) -> tuple[Tree, int | None]:
        """Leaves (B, ...) in the space's dtypes, and B; None: it is one observation. Raises SpaceMismatch."""
        try:
            tree = _arrays(observation, self.observation_space)
            pairs = list(zip(leaves(tree), self._leaves, strict=True))
            if all(array.shape == space.shape for array, space in pairs):
                return map_leaves(lambda array, space: fitted(array[None], space.dtype), tree, self._like), None
            sizes = {len(array) if array.ndim and array.shape[1:] == space.shape else None for array, space in pairs}
            if len(sizes) == 1 and None not in sizes:
                return map_leaves(lambda array, space: fitted(array, space.dtype), tree, self._like), sizes.pop()
            found = ", ".join(f"{path} {array.shape}".strip() for path, array in flatten(tree))
            raise ValueError(f"observations of shape {found}")
        except (ValueError, TypeError) as err:
            what = f"{err}; the policy takes {describe(self.observation_space)}"
            fix = "one observation of that space, or a batch: each leaf with one more axis before its own, of the same length"
            raise SpaceMismatch(what, where=WHERE, fix=fix) from err

    def _check_finite(self, rows: Tree) -> None:
        """Raise BadData, naming leaf and row, for NaN or infinity."""
        for (path, leaf), is_float in zip(flatten(rows, "observation"), self._floats, strict=False):
            if is_float and not np.isfinite(leaf).all():
                row = int(np.argmax(~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)))
                what = f"{path} holds NaN or infinity, first in row {row} of {len(leaf)}"
                raise BadData(what, where=WHERE, fix="finite numbers; or end the episode, where they come from the environment")

    def _begun(self, size: int) -> Index:
        """The rows whose episodes begin now; they get their numbers. Raises BadConfig."""
        held = len(self._numbers)
        if self.has_memory and held and size != held and (self._numbers >= 0).any():
            what = f"{size} observations, and {held} before: the policy remembers an episode for each"
            raise BadConfig(what, where=WHERE, fix=f"{held} observations in the same order, or reset() before another number")
        if self.has_memory and size < held:
            self._numbers, self._chance = self._numbers[:size], self._chance[:size]
        if size > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.full(size - len(self._numbers), FRESH)])
        new = np.flatnonzero(self._numbers[:size] < 0)
        if len(new):
            self._numbers[new] = np.arange(self._next, self._next + len(new))
            self._next += len(new)
            self._chance += [np.random.default_rng()] * (len(self._numbers) - len(self._chance)) if self._chance_size else []
            for row in new.tolist() if self._chance_size else ():
                key = [self._seed, *OF_EVALUATION, int(self._numbers[row])]
                self._chance[row] = np.random.Generator(np.random.PCG64(key))
        return new

    def _drawn(self, size: int) -> NDArray[np.float64]:
        """(size, chance_size) uniform numbers of the next step."""
        drawn = np.zeros((size, self._chance_size))
        for row in range(size) if self._chance_size else ():
            self._chance[row].random(out=drawn[row])
        return drawn


class _Blocks:
    """A policy that looks at observations alone."""

    def __init__(self, policy: Policy, space: Space) -> None:
        self._policy, self._space = policy, space
        self._sizes: dict[int, int] = {}  # of a block, by what holds the rows

    def act(self, observations: Tree, count: int, chance: NDArray[np.float64]) -> Tree:
        """Actions (count, ...) as the environment takes them."""
        size = self._size(count)
        missing = -count % size
        observations = map_leaves(lambda leaf: _padded(leaf, missing), observations)
        chance = _padded(chance, missing)
        if count + missing == size:
            actions = self._policy.act(observations, chance).for_env
        else:
            blocks = [slice(first, first + size) for first in range(0, count, size)]
            parts = [self._policy.act(rows_of(observations, block), chance[block]).for_env for block in blocks]
            actions = map_leaves(lambda *found: np.concatenate(found), *parts)
        return rows_of(actions, slice(0, count)) if missing else actions

    def _size(self, count: int) -> int:
        if self._policy.rows_alike:
            return count
        held = 1 << (count - 1).bit_length()
        if held not in self._sizes:
            self._sizes[held] = block_rows(self._policy, self._space, held, EVALUATION_ROWS)
        return self._sizes[held]


def _padded(leaf: NDArray[Any], missing: int) -> NDArray[Any]:
    """With copies of the first row; an array that torch takes as it is."""
    if not missing:
        return leaf if leaf.flags.writeable and leaf.flags.c_contiguous else leaf.copy()
    return np.concatenate([leaf, np.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])


class _Slots:
    """A module between its pieces, a slot for each row."""

    def __init__(self, policy: PipedPolicy) -> None:
        self._policy = policy
        self._slots: SlotPlayer | None = None
        self._plays = np.zeros(0, np.bool_)  # (slots,)
        pipelines = policy.pipelines
        sides = pipelines.sides().values()
        self._with_episodes = any(side.wants_episodes for side in sides)
        self.looks_back = (
            self._with_episodes or policy.is_stateful or frames_looked_at(pipelines) > 1 or steps_looked_at(pipelines) > 0
        )
        self._reads_rewards = any(getattr(piece, "n_prev_rewards", 0) for piece in pipelines.env_to_module.pieces())

    def act(
        self,
        observations: Tree,
        count: int,
        chance: NDArray[np.float64],
        new: Index,
        numbers: Index,
        rewards: NDArray[np.float64] | None,
        infos: NDArray[Any] | None,
    ) -> Tree:
        """Actions (count, ...) as the environment takes them; `new`: rows whose episodes begin."""
        if not count:
            raise SpaceMismatch("a batch of no observations", where=WHERE, fix="a row for each environment")
        player = self._player_for(count)
        self._plays[new] = False
        going, begins = np.flatnonzero(self._plays[:count]), np.flatnonzero(~self._plays[:count])
        for slot in np.flatnonzero(self._plays[count:]).tolist():
            player.drop(count + slot)
        self._plays[count:] = False
        try:
            if len(going):
                player.step(going, rows_of(observations, going), self._rewards(rewards, going), _of(infos, going))
            if len(begins):
                ids = [f"episode-{number}" for number in numbers[begins].tolist()]
                player.begin(begins, rows_of(observations, begins), _of(infos, begins), ids=ids)
        except SlotError as err:
            raise err.cause from None
        self._plays[:count] = True
        drawn = torch.zeros(len(self._plays), chance.shape[1])
        drawn[:count] = torch.from_numpy(chance)
        acts = player.act(chance=drawn.to(self._policy.device) if chance.shape[1] else None)
        return rows_of(acts.actions_for_env, slice(0, count))

    def _rewards(self, rewards: NDArray[np.float64] | None, going: Index) -> NDArray[np.float64]:
        if rewards is not None:
            return rewards[going]
        if self._reads_rewards:
            what = "no rewards, and a piece before the policy looks at them"
            raise BadConfig(what, where=WHERE, fix="act(observation, reward=...) with what the last action was rewarded with")
        return np.full(len(going), np.nan)  # for pieces of the user's own: not known

    def _player_for(self, count: int) -> SlotPlayer:
        slots = len(self._plays)
        if self._slots is None or count > slots or (self.looks_back and count != slots):
            self._slots = self._policy.slot_player(count, block=EVALUATION_ROWS)
            self._plays = np.zeros(count, np.bool_)
        return self._slots


# ---- what is given ----


def _takes_finite(policy: Policy | PipedPolicy) -> bool:
    """Whether it is a network that sees the observations as they are, or after pieces of ours: yours may fill in NaN."""
    if not isinstance(policy, PipedPolicy):
        return isinstance(policy, ModulePolicy | ModelPolicy)
    return all(type(piece).__module__.startswith("offline_cli.") for piece in policy.pipelines.env_to_module.pieces())


def _arrays(value: Any, space: Space, path: str = "") -> Tree:
    """`value` with arrays for leaves, in the structure and order of `space`. Raises ValueError."""
    at = f" in {path}" if path else ""
    if isinstance(space, gym.spaces.Dict):
        keys = set(value) if isinstance(value, Mapping) else None
        if keys != set(space.spaces):
            told = type(value).__name__ if keys is None else f"the keys {sorted(map(str, keys))}"
            raise ValueError(f"an observation with {told}{at}")
        return {key: _arrays(value[key], part, f"{path}.{key}".strip(".")) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            told = f"{len(value)} parts" if isinstance(value, (tuple, list)) else type(value).__name__
            raise ValueError(f"an observation with {told}{at}")
        return tuple(
            _arrays(part, own, f"{path}.{i}".strip(".")) for i, (part, own) in enumerate(zip(value, space, strict=True))
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"an observation of {array.dtype}{at}, which is not numeric")
    return array


def _tree_of(space: Space) -> Tree:
    """The leaf spaces of `space`, in its structure."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _tree_of(part) for key, part in space.spaces.items()}
    return tuple(map(_tree_of, space.spaces)) if isinstance(space, gym.spaces.Tuple) else space


def _chosen(rows: ArrayLike, held: int) -> Index:
    """Indices of rows. Raises BadConfig."""
    given = np.atleast_1d(np.asarray(rows))
    if given.dtype == np.bool_ and given.shape == (held,):
        return np.flatnonzero(given)
    if not given.size:
        return np.zeros(0, np.int64)
    if given.dtype.kind not in "iu" or given.ndim != 1 or given.min() < 0 or given.max() >= held:
        fix = f"indices from 0 to {held - 1}, or a mask of {held}"
        raise BadConfig(f"rows {np.asarray(rows).tolist()}, of {held}", where="reset(rows)", fix=fix)
    return given.astype(np.int64)


def _infos(infos: Sequence[Mapping[str, Any]], size: int) -> NDArray[Any]:
    """(size,) mappings. Raises BadConfig."""
    if isinstance(infos, Mapping) or len(infos) != size or not all(isinstance(info, Mapping) for info in infos):
        raise BadConfig("infos that are not one mapping for each observation", where=WHERE, fix="a list of mappings")
    found = np.empty(size, object)
    found[:] = [dict(info) for info in infos]
    return found


def _of(infos: NDArray[Any] | None, rows: Index) -> NDArray[Any] | None:
    return None if infos is None else infos[rows]
