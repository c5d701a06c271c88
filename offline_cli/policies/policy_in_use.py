"""A policy in a program (`load_policy`): observations in, actions for the environment out.

`act` takes one observation or a batch, which the observation space tells apart; pieces, action scale and memory are inside.
Rows are environments that play side by side. Each has an episode with a number, as the episodes of an evaluation have, and the
random numbers that follow from it. `reset` begins the next episodes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_cli.connectors.pipeline_spec import Given, PipelineSpec
from offline_cli.environments import Environment, open_environment
from offline_cli.episodes.episode_spaces import space_tree, zero_rows
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.modules.devices import choose_device
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies import run_policy
from offline_cli.policies.by_name import ONNX, SB3, PolicyOptions, is_named, open_policy, stand_in
from offline_cli.policies.module_policy import ModulePolicy
from offline_cli.policies.onnx_model import read_model
from offline_cli.policies.piece_policy import PolicyForPieces
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Policy, Seen, fitted, rows_of
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.policies.sb3_policy import ModelPolicy, load_model
from offline_cli.policies.seeds import Purpose, chance_key, uniform
from offline_cli.spaces import Space, describe
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["PolicyInUse", "load_policy"]

WHERE: Final = "act(observation)"
FRESH: Final = -1
Index = NDArray[np.int64]


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
    name = policy.url if isinstance(policy, Location) else os.fspath(policy)
    pieces = PlaySpec.of(env_to_module, module_to_env, lookback)
    target = choose_device(device).type
    loaded = None if is_named(name) else run_policy.load_policy(policy, storage_options, plugins=plugins, network=network)
    options = PolicyOptions(
        explore=explore,
        device=target,
        pieces=pieces,
        storage_options=storage_options,
        plugins=plugins,
        trust_pickle=trust_pickle,
        loaded=loaded,
    )
    with _environment(name, env, loaded, options) as environment:
        opened = open_policy(name, environment, options, lambda: environment.singles(1)[0].reset(seed=0)[0])
        spaces = environment.observation_space, environment.action_space
        return PolicyInUse(opened, spaces, explore=explore, seed=seed, run=loaded)


@contextmanager
def _environment(name: str, env: str | None, loaded: LoadedPolicy | None, options: PolicyOptions) -> Iterator[Environment]:
    """The one of that name; without one, a stand-in of the spaces that are known of the policy's. Raises BadConfig."""
    if env is None and loaded is not None:
        if options.pieces.is_default or loaded.trained is not None:
            yield stand_in("the spaces it was trained with", run_policy.environment_spaces(loaded, name))
            return
        env = loaded.description["environment"]
        env = None if env is not None and ":" in env else env  # code, which a run folder does not get to choose
    elif env is None:
        yield stand_in("the spaces it was trained with", _spaces_of_model(name, options))
        return
    if env is None:
        what = "what observations its environment gives is not known: the policy plays between pieces, and the run names none"
        raise BadConfig(what, where=name, fix="load_policy(..., env=...) with the environment it was trained for")
    with open_environment(env) as environment:
        yield environment


def _spaces_of_model(name: str, options: PolicyOptions) -> tuple[Space, Space]:
    if name.startswith(ONNX):
        told = read_model(name.removeprefix(ONNX), options.storage_options)
        observations, actions = told.space("observation_space"), told.space("action_space")
        if observations is not None and actions is not None:
            return observations, actions
    if name.startswith(SB3):
        model, _ = load_model(name.removeprefix(SB3), device=options.device)
        return model.observation_space, model.action_space
    fix = "load_policy(..., env=...) with the environment it acts in"
    raise BadConfig("it does not say for which spaces it is", where=name, fix=fix)


class PolicyInUse:
    """A policy that is ready to act; `reset` where an episode begins. Its methods may be called by several threads in turn."""

    def __init__(
        self,
        policy: Policy,
        spaces: tuple[Space, Space],
        *,
        explore: bool = False,
        seed: int = 0,
        run: LoadedPolicy | None = None,
    ) -> None:
        """`spaces`: the environment's, of observations and actions. `run`: what it was read from, if that was a run folder."""
        self.observation_space, self.action_space = spaces
        self.run = run
        self._policy, self._explore, self._seed = policy, explore, seed
        self._like = space_tree(spaces[0])
        self._leaves = leaves(self._like)
        self._floats = [np.dtype(space.dtype).kind == "f" for space in self._leaves] if _takes_finite(policy) else []
        self._next = 0  # number of the next episode
        self._numbers: Index = np.zeros(0, np.int64)  # (rows,) of episodes; FRESH: one begins with its next observation
        self._t: Index = np.zeros(0, np.int64)  # (rows,) steps of these
        self._state: Any = None
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
        """Whether an action may depend on earlier observations of the episode: a state, stacked frames, last actions."""
        return bool(getattr(self._policy, "looks_back", False))

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
        size = 1 if count is None else count
        with self._lock:
            if not size and not self.has_memory:
                return zero_rows(self.action_space, 0)
            seen = self._seen(rows, size, reward, [info] if count is None and info is not None else info)
            acted = self._policy.act(seen, self._state, self._explore)
            self._state = acted.state
            self._t[:size] += 1
        return rows_of(acted.for_env, 0) if count is None else acted.for_env

    def _seen(self, rows: Tree, size: int, reward: ArrayLike | None, infos: Any) -> Seen:
        """Raises BadConfig, SpaceMismatch."""
        if not size:
            raise SpaceMismatch("a batch of no observations", where=WHERE, fix="a row for each environment")
        self._begin(size)
        begins = self._t[:size] == 0
        if reward is not None:
            rewards = np.where(begins, 0.0, np.asarray(reward, np.float64).reshape(size))
        elif self._reads_rewards and not begins.all():
            what = "no rewards, and what plays looks at them"
            raise BadConfig(what, where=WHERE, fix="act(observation, reward=...) with what the last action was rewarded with")
        else:
            rewards = np.where(begins, 0.0, np.nan)  # for pieces of the user's own: not known
        if infos is not None and (len(infos) != size or not all(isinstance(one, Mapping) for one in infos)):
            raise BadConfig("infos that are not one mapping for each observation", where=WHERE, fix="a list of mappings")
        numbers, draws = self._numbers[:size].copy(), self._policy.chance_size
        chance = uniform(chance_key(self._seed, Purpose.EVALUATE), numbers, self._t[:size], draws) if draws else None
        return Seen(rows, np.arange(size), begins, rewards, infos, numbers, chance)

    @property
    def _reads_rewards(self) -> bool:
        if isinstance(self._policy, PolicyForPieces):
            pieces = getattr(self._policy.player.env_to_module, "connectors", ())
            return any(getattr(piece, "n_prev_rewards", 0) for piece in pieces)
        return bool(getattr(self._policy, "reads_rewards", False))

    def reset(self, rows: ArrayLike | None = None, *, seed: int | None = None) -> None:
        """New episodes begin with the next observations: of all rows, however many come; or of `rows` alone, indices or a mask.

        `seed`: random numbers begin again, with those of this seed's first episode. Raises BadConfig for unknown rows.
        """
        with self._lock:
            if seed is not None:
                self._seed, self._next = seed, 0
            if rows is None:
                self._numbers = self._t = np.zeros(0, np.int64)
                self._state = None
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

    def _begin(self, size: int) -> None:
        """Give the rows whose episodes begin now their numbers. Raises BadConfig."""
        held = len(self._numbers)
        if self.has_memory and held and size != held and (self._numbers >= 0).any():
            what = f"{size} observations, and {held} before: the policy remembers an episode for each"
            raise BadConfig(what, where=WHERE, fix=f"{held} observations in the same order, or reset() before another number")
        if size > held:
            self._numbers = np.concatenate([self._numbers, np.full(size - held, FRESH)])
            self._t = np.concatenate([self._t, np.zeros(size - held, np.int64)])
        new = np.flatnonzero(self._numbers[:size] < 0)
        self._numbers[new] = np.arange(self._next, self._next + len(new))
        self._t[new] = 0
        self._next += len(new)


# ---- what is given ----


def _takes_finite(policy: Policy) -> bool:
    """Whether it is a network that sees the observations as they are, or after pieces of ours: yours may fill in NaN."""
    if isinstance(policy, PolicyForPieces):
        pieces = getattr(policy.player.env_to_module, "connectors", ())
        return all(type(piece).__module__.startswith("offline_cli.") for piece in pieces)
    return isinstance(policy, ModulePolicy | ModelPolicy)


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
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()  # as torch takes it


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
