"""PolicyInUse, a policy for user programs (`load_policy`): observations in, actions for the environment out.

`act` takes one observation or a batch, told apart by the observation space; it applies pieces, action scale and memory. Each
row is one of several parallel environments. `reset` starts new episodes.

`names=True` returns category names of choices if the training data names them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.environments import open_environment
from offline_cli.episodes.episode_spaces import category_bounds, space_tree, zero_rows
from offline_cli.episodes.fit import fitted
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.meanings import Meanings
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies import run_policy
from offline_cli.policies.by_name import is_named, open_policy
from offline_cli.policies.policy import Policy, PolicyOptions, Purpose, State, chance_key
from offline_cli.policies.run_policy import POLICY, LoadedPolicy
from offline_cli.spaces import Space, describe, leaf_spaces, tree_from_lists
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, flatten, leaves, map_leaves, rows_of, unflatten_like

__all__ = ["DiscreteElement", "PolicyInUse", "discrete_elements", "load_policy", "with_names"]


@dataclass(frozen=True, slots=True)
class DiscreteElement:
    """One discrete component of an action."""

    place: str  # actions, actions[1], actions.gear
    name: str  # from the data, else the place
    start: int  # number of the first choice
    count: int
    texts: tuple[str, ...] | None  # category names of all choices, numbers for unnamed ones; None without categories

    @property
    def labels(self) -> tuple[str, ...]:
        """A distinct label for each choice: its category, else its number."""
        numbers = tuple(str(self.start + choice) for choice in range(self.count))
        return numbers if self.texts is None or len(set(self.texts)) < self.count else self.texts


def discrete_elements(action_space: Space, meanings: Meanings) -> dict[str, list[DiscreteElement]]:
    """The elements of each non-Box leaf, in C order, by the leaf's path (`actions`, `actions.gear`).

    The i-th category names the i-th choice, regardless of `start`.
    """
    found: dict[str, list[DiscreteElement]] = {}
    for path, leaf in leaf_spaces(action_space, Columns.ACTIONS).items():
        if isinstance(leaf, spaces.Box):
            continue
        shape, known, elements = leaf.shape or (), meanings.by_path.get(path, ()), found.setdefault(path, [])
        starts, ends = (np.broadcast_to(bound, shape) for bound in category_bounds(leaf))
        for number, at in enumerate(np.ndindex(shape)):
            start, count = int(starts[at]), int(ends[at] - starts[at]) + 1
            names = known[number].categories if len(known) == starts.size else None
            texts = names and (*names[:count], *(str(start + choice) for choice in range(len(names), count)))
            place = f"{path}[{', '.join(map(str, at))}]" if at else path
            elements.append(DiscreteElement(place, meanings.named(path, at, shape), start, count, texts))
    return found


def with_names(actions: Tree, elements: Mapping[str, Sequence[DiscreteElement]]) -> Tree:
    """`actions`, leaves (B, ...), with category names in place of numbers; named leaves have dtype object."""

    def named(path: str, leaf: NDArray[Any]) -> NDArray[Any]:
        known = elements.get(path, ())
        if all(one.texts is None for one in known):
            return leaf
        numbers = leaf.reshape(len(leaf), len(known))
        found = numbers.astype(object)
        for column, one in enumerate(known):
            if one.texts is not None:
                found[:, column] = np.array(one.texts, object)[numbers[:, column] - one.start]
        return found.reshape(leaf.shape)

    return unflatten_like(actions, [named(path, leaf) for path, leaf in flatten(actions, Columns.ACTIONS)])


WHERE: Final = "act(observation)"


def load_policy(
    policy: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    env: str | None = None,
    explore: bool = False,
    seed: int = 0,
    device: str = "cpu",
    env_to_module: Given = None,
    module_to_env: Given = None,
    lookback: int | None = None,
    plugins: Sequence[str] = (),
    trust_pickle: bool = False,
    network: str | None = None,
) -> PolicyInUse:
    """Load a policy to act with, greedily unless `explore`: a run folder, local or remote; `sb3:FILE`; `onnx:FILE`;
    `rllib:FOLDER` (`trust_pickle`: unpickle it, which runs its code); `python:module:attribute`.

    `env`: name of the environment, needed if the policy does not declare its spaces: for Python objects, `random`, and your own
    pipelines. `seed`: of sampled actions; episode i (0-based) samples like episode i of `evaluate`. `env_to_module`,
    `module_to_env`, `lookback`: as in `evaluate`. `plugins`: packages that the run folder may import; `network`: the code of
    its network, if it was trained with `network`.

    For an unfinished run, load the last checkpoint's policy and log a note.

    Raises StorageNotFound, NoData, Uncommitted, BadData, MissingPackage for the run; BadConfig if the spaces are unknown, and
    for a policy trained with other code; SpaceMismatch if `env` does not fit; UnknownEnvironment; MissingDevice.
    """
    given = dict(locals())
    name = policy.url if isinstance(policy, Location) else os.fspath(policy)
    loaded = None if is_named(name) else run_policy.load_policy(policy, storage_options, plugins=plugins, network=network)
    options = PolicyOptions.of(given, loaded)
    with nullcontext() if env is None else open_environment(env) as environment:
        return PolicyInUse(open_policy(name, environment, options), explore=explore, seed=seed, run=loaded)


class PolicyInUse:
    """A policy to act with; call `reset` when an episode starts. Methods are thread-safe."""

    def __init__(self, policy: Policy, *, explore: bool = False, seed: int = 0, run: LoadedPolicy | None = None) -> None:
        """`run`: the run folder's policy, if it comes from one."""
        self.observation_space, self.action_space = policy.spaces
        self.run = run  # `run.trained`: its pieces with their learned state
        self._policy, self._explore = policy, explore
        self._like = space_tree(self.observation_space)
        meanings = {} if run is None else run.description.get(run_policy.MEANINGS, {})
        self._names = discrete_elements(self.action_space, Meanings.of(meanings, POLICY))
        self._lock = threading.RLock()
        self._state: State | None = None  # None: the next observations start new episodes
        self.reset(seed=seed)

    def __repr__(self) -> str:
        return f"<PolicyInUse: {describe(self.observation_space)} to {describe(self.action_space)}>"

    @property
    def module(self) -> RLModule | None:
        """The network; None unless the policy comes from a run folder."""
        return None if self.run is None else self.run.module

    @property
    def has_memory(self) -> bool:
        """Whether actions may depend on earlier steps of the episode: recurrent state, stacked frames, last actions."""
        return self._policy.looks_back

    def act(self, observation: Any, *, reward: ArrayLike | None = None, info: Any = None, names: bool = False) -> Tree:
        """The action for one observation; actions (B, ...) for a batch, whose leaves have a batch axis of B rows first.

        Observations are raw, actions for the environment. `reward`, a number or (B,): of the last actions; required by pieces
        that read rewards. `info`, a mapping or B of them: for your pieces that read infos. With memory, each call continues the
        episode of each row, until `reset`. `names`: return each choice's category, as named in the run's training data, in
        place of its number: a string, or an object array with strings for known categories and numbers elsewhere.

        Raises SpaceMismatch for observations of another structure, shape or dtype; BadData for NaN and infinity in observations
        of a network, unless your own pieces precede it; BadConfig if the number of rows changes in the middle of episodes with
        memory, if pieces need rewards, and for `names` of unnamed actions; BadPiece for pieces that return no actions.
        Exceptions of user pieces or functions pass through.
        """
        if names and not any(one.texts for elements in self._names.values() for one in elements):
            what = f"actions {describe(self.action_space)} have no names: the policy's training data names no categories"
            fix = "leave out names, or train on data with [categories] of a mapping, or write_dataset(..., meanings=...)"
            raise BadConfig(what, where="act(names=True)", fix=fix)
        rows, is_one = self._rows(observation)
        size = len(leaves(rows)[0])
        if not size:
            return zero_rows(self.action_space, 0)
        with self._lock:
            state = self._state = self._continued(size)
            if reward is None and self._policy.reads_rewards and state.t.any():
                what, fix = "the policy's pieces need rewards", "pass the last action's reward: act(observation, reward=...)"
                raise BadConfig(what, where=WHERE, fix=fix)
            known = (
                np.nan if reward is None else np.asarray(reward, np.float64).reshape(size)
            )  # NaN: the user's pieces may not read it
            state.rewards = np.where(state.t == 0, 0.0, known)
            state.infos = [info] if is_one and info is not None else info
            acted = self._policy.act(rows, state, self._explore)
            self._state = State(state.episodes, state.t + 1, state.rewards, state.key, memory=acted.memory)
        actions = with_names(acted.for_env, self._names) if names else acted.for_env
        return rows_of(actions, 0) if is_one else actions

    def reset(self, rows: ArrayLike | None = None, *, seed: int | None = None) -> None:
        """Start new episodes with the next observations: in all rows (their number may change), or only in `rows`, indices or
        a mask.

        `seed`: restart random numbers with this seed's first episode. Raises BadConfig for unknown rows.
        """
        with self._lock:
            if seed is not None:
                self._key, self._begun = chance_key(seed, Purpose.EVALUATE), 0
            if rows is None or self._state is None:
                self._state = None
                return
            held = len(self._state.t)
            try:
                new = np.atleast_1d(np.arange(held)[np.asarray(rows, None if np.size(rows) else np.int64)])
            except IndexError as err:
                raise BadConfig(
                    str(err), where="reset(rows)", fix=f"use indices below {held}, or a mask of length {held}"
                ) from err
            self._state.episodes[new], self._state.t[new], self._state.key = self._numbers(len(new)), 0, self._key

    def _continued(self, size: int) -> State:
        """The state of `size` rows. Raises BadConfig if their number changes in the middle of episodes with memory."""
        held = self._state
        if held is not None and len(held.t) == size:
            return held
        if held is not None and self.has_memory and held.t.any():
            what = f"got {size} observations after {len(held.t)}, but the policy has a memory for each row"
            fix = f"pass {len(held.t)} observations in the same order, or call reset() before changing the number"
            raise BadConfig(what, where=WHERE, fix=fix)
        return State(self._numbers(size), np.zeros(size, np.int64), np.zeros(size), self._key)

    def _numbers(self, count: int) -> NDArray[np.int64]:
        """Numbers of new episodes, which determine their random numbers, as in `evaluate`."""
        self._begun += count
        return np.arange(self._begun - count, self._begun)

    def _rows(self, observation: Any) -> tuple[Tree, bool]:
        """Leaves (B, ...) in the space's dtypes, and whether it was one observation. Raises SpaceMismatch, BadData."""
        try:
            given = tree_from_lists(observation, self.observation_space)
            tree = map_leaves(lambda _, leaf: np.require(leaf, requirements=["C", "W"]), self._like, given)  # for torch
            shapes = [(array.shape, space.shape) for array, space in zip(leaves(tree), leaves(self._like), strict=True)]
            is_one = all(found == wanted for found, wanted in shapes)
            sizes = {found[0] if found and found[1:] == wanted else None for found, wanted in shapes}
            if not is_one and (len(sizes) != 1 or None in sizes):
                raise ValueError(
                    "observations of shape " + ", ".join(f"{path} {leaf.shape}".strip() for path, leaf in flatten(tree))
                )
            tree = map_leaves(lambda leaf, space: fitted(leaf[None] if is_one else leaf, space.dtype), tree, self._like)
        except (ValueError, TypeError) as err:
            what = f"{err}; the policy takes {describe(self.observation_space)}"
            fix = "pass one observation of that space, or a batch, in which each leaf has one more axis first"
            if isinstance(observation, tuple) and not isinstance(self._like, tuple):
                fix = "pass only the observation: env.reset() returns (observation, info), and env.step(action) more"
            raise SpaceMismatch(what, where=WHERE, fix=fix) from err
        for path, leaf in flatten(tree, "observation") if self._policy.needs_finite else ():
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.argmax(~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)))
                what = f"{path} holds NaN or infinity, first in row {row} of {len(leaf)}"
                raise BadData(what, where=WHERE, fix="pass finite numbers, or end the episode if the environment returned them")
        return tree, is_one
