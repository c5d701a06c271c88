"""A policy in a program (`load_policy`): observations in, actions for the environment out.

`act` takes one observation or a batch, which the observation space tells apart; pieces, action scale and memory are inside.
Rows are environments that play side by side, each with an episode of its own. `reset` begins the next episodes.

`names=True` gives the categories of choices as texts, where the data that the policy learned from names them.
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
    """One number of an action that is one of several choices."""

    place: str  # actions, actions[1], actions.gear
    name: str  # its own, else its place
    start: int  # the number of its first choice
    count: int
    texts: tuple[str, ...] | None  # of all choices; the number itself for one beyond the categories. None: there are none

    @property
    def labels(self) -> tuple[str, ...]:
        """A different text for each choice: its category, else its number."""
        numbers = tuple(str(self.start + choice) for choice in range(self.count))
        return numbers if self.texts is None or len(set(self.texts)) < self.count else self.texts


def discrete_elements(action_space: Space, meanings: Meanings) -> dict[str, list[DiscreteElement]]:
    """The elements of each leaf that is no Box, in C order, by the leaf's path (`actions`, `actions.gear`).

    The i-th category is the text of the i-th choice, whatever number the space gives it.
    """
    found: dict[str, list[DiscreteElement]] = {}
    for path, leaf in leaf_spaces(action_space, Columns.ACTIONS).items():
        if isinstance(leaf, spaces.Box):
            continue
        shape, known, elements = leaf.shape or (), meanings.by_path.get(path, ()), found.setdefault(path, [])
        starts, ends = (np.broadcast_to(bound, shape) for bound in category_bounds(leaf))
        for number, at in enumerate(np.ndindex(shape)):
            start, count = int(starts[at]), int(ends[at] - starts[at]) + 1
            said = known[number].categories if len(known) == starts.size else None
            texts = said and (*said[:count], *(str(start + choice) for choice in range(len(said), count)))
            place = f"{path}[{', '.join(map(str, at))}]" if at else path
            elements.append(DiscreteElement(place, meanings.named(path, at, shape), start, count, texts))
    return found


def with_names(actions: Tree, elements: Mapping[str, Sequence[DiscreteElement]]) -> Tree:
    """`actions`, leaves (B, ...), with the texts of choices in place of their numbers: leaves that have some are of objects."""

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
    """A policy to act with, greedily unless `explore`: a run folder, local or remote; `sb3:FILE`; `onnx:FILE`;
    `rllib:FOLDER` (`trust_pickle`: run the code that is pickled in it); `python:module:attribute`.

    `env`: the environment it acts in, by name, where its spaces are not known otherwise: for Python objects, for `random`, and
    for pipelines of yours. `seed`: of drawn actions: those of episode i, counted from 0, are those that `evaluate` draws in its
    episode i. `env_to_module`, `module_to_env`, `lookback`: as in `evaluate`. `plugins`: packages
    that the run folder may name; `network`: the code of its network, where it was trained with `network`.

    Of a run that is not finished, the last checkpoint's policy, and a note says so.

    Raises StorageNotFound, NoData, Uncommitted, BadData, MissingPackage for the run; BadConfig where the spaces are not known,
    and for a policy that was trained through other code; SpaceMismatch where `env` does not fit; UnknownEnvironment;
    MissingDevice.
    """
    given = dict(locals())
    name = policy.url if isinstance(policy, Location) else os.fspath(policy)
    loaded = None if is_named(name) else run_policy.load_policy(policy, storage_options, plugins=plugins, network=network)
    options = PolicyOptions.of(given, loaded)
    with nullcontext() if env is None else open_environment(env) as environment:
        return PolicyInUse(open_policy(name, environment, options), explore=explore, seed=seed, run=loaded)


class PolicyInUse:
    """A policy that is ready to act; `reset` where an episode begins. Its methods may be called by several threads in turn."""

    def __init__(self, policy: Policy, *, explore: bool = False, seed: int = 0, run: LoadedPolicy | None = None) -> None:
        """`run`: what it was read from, if that was a run folder."""
        self.observation_space, self.action_space = policy.spaces
        self.run = run  # `run.trained`: the pieces it was trained through, and what they learned
        self._policy, self._explore = policy, explore
        self._like = space_tree(self.observation_space)
        told = {} if run is None else run.description.get(run_policy.MEANINGS, {})
        self._names = discrete_elements(self.action_space, Meanings.of(told, POLICY))
        self._lock = threading.RLock()
        self._state: State | None = None  # None: new episodes begin with the next observations
        self.reset(seed=seed)

    @property
    def module(self) -> RLModule | None:
        """The network; None: the policy is not of a run folder."""
        return None if self.run is None else self.run.module

    @property
    def has_memory(self) -> bool:
        """Whether an action may depend on earlier observations of the episode: a state, stacked frames, last actions."""
        return self._policy.looks_back

    def act(self, observation: Any, *, reward: ArrayLike | None = None, info: Any = None, names: bool = False) -> Tree:
        """The action for one observation; actions (B, ...) for a batch, whose leaves have an axis of B rows before their own.

        Observations are as the environment gives them, actions as it takes them. `reward`, a number or (B,): what the last
        actions were answered with; needed by pieces that look at rewards. `info`, a mapping or B of them: for pieces of yours
        that read infos. With memory, each call continues the episode of each row, until `reset`. `names`: the category of each
        choice, as the data of a run folder names it, in place of its number: a text, or an array of objects with texts where
        categories are known and numbers elsewhere.

        Raises SpaceMismatch for observations of other structure, shape or dtype; BadData for NaN and infinity in those of a
        network, unless pieces of your own come before it; BadConfig where the number of rows changes in
        the middle of episodes that are remembered, without rewards that pieces look at, and for `names` of actions that have
        none; BadPiece for pieces that give no actions. What a user's pieces or function raise passes.
        """
        if names and not any(one.texts for elements in self._names.values() for one in elements):
            what = f"actions {describe(self.action_space)} have no names: the policy's data does not say what its choices mean"
            fix = (
                "a run folder trained on data with [categories] of a mapping, or write_dataset(..., meanings=...); or no names"
            )
            raise BadConfig(what, where="act(names=True)", fix=fix)
        rows, is_one = self._rows(observation)
        size = len(leaves(rows)[0])
        if not size:
            return zero_rows(self.action_space, 0)
        with self._lock:
            state = self._state = self._continued(size)
            if reward is None and self._policy.reads_rewards and state.t.any():
                what, fix = "no rewards, and what plays looks at them", "act(observation, reward=...), that of the last action"
                raise BadConfig(what, where=WHERE, fix=fix)
            known = np.nan if reward is None else np.asarray(reward, np.float64).reshape(size)  # NaN: pieces of the user's own
            state.rewards = np.where(state.t == 0, 0.0, known)
            state.infos = [info] if is_one and info is not None else info
            acted = self._policy.act(rows, state, self._explore)
            self._state = State(state.episodes, state.t + 1, state.rewards, state.key, memory=acted.memory)
        actions = with_names(acted.for_env, self._names) if names else acted.for_env
        return rows_of(actions, 0) if is_one else actions

    def reset(self, rows: ArrayLike | None = None, *, seed: int | None = None) -> None:
        """New episodes begin with the next observations: of all rows, however many come; or of `rows` alone, indices or a mask.

        `seed`: random numbers begin again, with those of this seed's first episode. Raises BadConfig for unknown rows.
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
                raise BadConfig(str(err), where="reset(rows)", fix=f"indices below {held}, or a mask of as many") from err
            self._state.episodes[new], self._state.t[new], self._state.key = self._numbers(len(new)), 0, self._key

    def _continued(self, size: int) -> State:
        """What the rows have come to. Raises BadConfig for another number of them, where they are remembered."""
        held = self._state
        if held is not None and len(held.t) == size:
            return held
        if held is not None and self.has_memory and held.t.any():
            what = f"{size} observations, and {len(held.t)} before: the policy remembers an episode for each"
            fix = f"{len(held.t)} observations in the same order, or reset() before another number"
            raise BadConfig(what, where=WHERE, fix=fix)
        return State(self._numbers(size), np.zeros(size, np.int64), np.zeros(size), self._key)

    def _numbers(self, count: int) -> NDArray[np.int64]:
        """Of the episodes that begin: what they draw follows from them, as in an evaluation."""
        self._begun += count
        return np.arange(self._begun - count, self._begun)

    def _rows(self, observation: Any) -> tuple[Tree, bool]:
        """Leaves (B, ...) in the space's dtypes, and whether it is one observation. Raises SpaceMismatch, BadData."""
        try:
            given = tree_from_lists(observation, self.observation_space)
            tree = map_leaves(lambda _, leaf: np.require(leaf, requirements=["C", "W"]), self._like, given)  # as torch takes it
            shapes = [(array.shape, space.shape) for array, space in zip(leaves(tree), leaves(self._like), strict=True)]
            is_one = all(found == wanted for found, wanted in shapes)
            sizes = {found[0] if found and found[1:] == wanted else None for found, wanted in shapes}
            if not is_one and (len(sizes) != 1 or None in sizes):
                raise ValueError("observations of shape " + ", ".join(f"{path} {leaf.shape}" for path, leaf in flatten(tree)))
            tree = map_leaves(lambda leaf, space: fitted(leaf[None] if is_one else leaf, space.dtype), tree, self._like)
        except (ValueError, TypeError) as err:
            what = f"{err}; the policy takes {describe(self.observation_space)}"
            fix = "one observation of that space, or a batch: each leaf with one more axis before its own, of the same length"
            raise SpaceMismatch(what, where=WHERE, fix=fix) from err
        for path, leaf in flatten(tree, "observation") if self._policy.needs_finite else ():
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.argmax(~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)))
                what = f"{path} holds NaN or infinity, first in row {row} of {len(leaf)}"
                raise BadData(what, where=WHERE, fix="finite numbers; or end the episode, where they come from the environment")
        return tree, is_one
