"""Policy: batches of observations in, actions out. `record`, `evaluate`, the checks of training and programs all call one so.

A policy acts for B episodes at a time. What it remembers of them is `State`: arrays with a row for each episode, which the
caller keeps and hands back, in the rows of the observations. A policy with an empty state remembers nothing.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.piece_options import piece_of
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.errors import BadConfig, BadData, BadPiece, OfflineCliError, SpaceMismatch
from offline_cli.modules.devices import seed_generators
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.spaces import Space, check_supported, describe, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

if TYPE_CHECKING:
    from offline_cli.policies.run_policy import LoadedPolicy

__all__ = [
    "RAISED",
    "ActInput",
    "ActOutput",
    "Policy",
    "PolicyOptions",
    "RandomPolicy",
    "State",
    "blamed",
    "category_check",
    "check_fits",
    "fitted",
    "fitter",
    "put_state",
    "rows_of",
    "sampled",
    "seed_of",
    "seeded",
    "stacked_rows",
    "state_rows",
]

RAISED: Final = (Exception, SystemExit)  # by environments, policies and pieces, which may be a user's code
Index = NDArray[np.int64]
State = dict[str, NDArray[Any]]  # (B, ...) by name; arrays may hold objects


@dataclass(slots=True, eq=False)  # neither is frozen: one is made at every step, which that would slow down threefold
class ActInput:
    """What B episodes have come to."""

    obs: Tree  # leaves (B, ...): the latest observations, of the environment
    episodes: Index  # (B,) numbers of the episodes
    t: Index  # (B,) steps of the episodes so far; 0: it begins
    rewards: NDArray[np.float64]  # (B,) of the last action; 0 where the episode begins
    infos: Sequence[Mapping[str, Any]] | None = None  # (B,) that came with the observations; None: there are none
    chance: NDArray[np.float64] | None = None  # (B, chance_size) uniform in [0, 1): what is drawn follows from it


@dataclass(slots=True, eq=False)
class ActOutput:
    """The actions of a policy for B episodes."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)
    state: State = field(default_factory=dict)


class Policy(ABC):
    """A policy ready to play in one environment, greedily or exploring, as it was opened."""

    fingerprint: str  # distinguishes it from others by content, where the content can be known
    action_scale = "env"  # or "normalized": of the recorded actions
    chance_size = 0  # uniform numbers that a row takes per step; 0: it draws nothing
    looks_back = False  # whether actions may depend on earlier observations of the episode
    reads_rewards = False
    needs_finite = False  # whether NaN and infinity among observations would go into a network

    @abstractmethod
    def act(self, given: ActInput, state: State) -> ActOutput:
        """Actions, and the state for the next call. What a user's code raises passes."""

    def tried(self, observation: Tree, *, where: str) -> dict[str, Tree]:
        """Act once on an observation that an episode may begin with; rows (1, ...) of zeros of the extra model outputs.

        Raises BadData, naming `where`, for what a user's code raises, and for a piece; BadConfig for what does not fit.
        """
        rows = stacked_rows([observation])
        zero, chance = np.zeros(1, np.int64), np.full((1, self.chance_size), 0.5)
        try:
            extras = self.act(ActInput(rows, zero, zero, np.zeros(1), None, chance), {}).extras
        except RAISED as err:
            if isinstance(err, OfflineCliError) and not isinstance(err, BadPiece) and piece_of(err) is None:
                raise
            raise blamed(err, where=where) from err
        return {name: map_leaves(np.zeros_like, tree) for name, tree in extras.items()}


def blamed(error: BaseException, *, where: str, more: str = "") -> BaseException:
    """The error for a policy, or a piece around it, that raised; `more`: at the end of its fix."""
    if isinstance(error, MemoryError):
        return error
    piece = piece_of(error)
    who = f"piece {piece}" if piece is not None else "the policy"
    if isinstance(error, OfflineCliError):
        return BadData(f"{who}: {error.what_in_one_line}", where=where, fix=f"{error.fix}{more}")
    return BadData(f"{who} raised {error!r}", where=where, fix=f"check {who} with this environment{more}")


class RandomPolicy(Policy):
    """Samples actions as the space does, and ignores observations; of each episode from a generator of its own."""

    fingerprint = "random"
    chance_size = 1

    def __init__(self, action_space: Space) -> None:
        check_supported(action_space, where="a space to draw from")
        self._space = space_tree(action_space)

    def act(self, given: ActInput, state: State) -> ActOutput:
        """See Policy."""
        assert given.chance is not None, "it always draws"
        generators = state.get("generator", np.empty(len(given.t), object)).copy()
        for row in np.flatnonzero(given.t == 0).tolist():
            generators[row] = np.random.default_rng(seed_of(given.chance[row, 0]))
        drawn = [map_leaves(lambda leaf: _sample(leaf, generator), self._space) for generator in generators]  # noqa: B023
        actions = stacked_rows(drawn)
        return ActOutput(actions, actions, state={"generator": generators})


def _sample(space: Space, generator: np.random.Generator) -> NDArray[Any]:
    """A value of a leaf space by gymnasium's own rule, drawn from `generator`."""
    if type(space) is spaces.Discrete:  # the usual one, at every step
        return np.asarray(int(space.start) + generator.integers(int(space.n)), space.dtype)
    space._np_random = generator  # seeding the space would cost more than the draw
    return np.asarray(space.sample())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """How a policy is opened, whatever kind it is of."""

    explore: bool = False  # sample actions, where the policy can; `random` always does
    device: str = "cpu"
    pieces: PlaySpec = field(default_factory=PlaySpec)  # pipelines that the user gave
    storage_options: Mapping[str, Any] | None = None
    plugins: Sequence[str] = ()  # packages whose code a run folder may name
    trust_pickle: bool = False  # run the code that is pickled in a checkpoint of RLlib's
    loaded: LoadedPolicy | None = None  # the policy of the run folder that is named, where it has been read

    def refuse_pieces(self, what: str, name: str) -> None:
        """Raise BadConfig where the user gave pipelines, which need a network between them; `what` plays."""
        if not self.pieces.is_default:
            fix = "--wrapper changes what it sees and does; or an RLModule: a run folder, python:package.module:attribute"
            raise BadConfig(f"{what} plays, and pipelines go around an RLModule", where=f"--policy {name}", fix=fix)


def state_rows(state: State, rows: Any) -> State:
    """The state of these rows."""
    return {name: array[rows] for name, array in state.items()}


def put_state(state: State, rows: Any, new: State, count: int) -> None:
    """Write the state of these rows of `count` into `state`, which may be empty as yet."""
    for name, array in new.items():
        if name not in state:
            state[name] = np.zeros((count, *array.shape[1:]), array.dtype)
        state[name][rows] = array


# ---- seeds of libraries ----


def seed_of(chance: NDArray[np.float64]) -> int:
    """A seed of 53 bits that follows from one uniform number."""
    return int(chance * 2.0**53)


@contextmanager
def seeded(chance: NDArray[np.float64] | None) -> Iterator[int | None]:
    """Within it the generators of Python, numpy and torch, which libraries draw from, follow from the first row of `chance`.

    Gives that seed; None without `chance`: nothing is seeded.
    """
    if chance is None or not chance.size:
        yield None
        return
    seed = seed_of(chance[0, 0])
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_generators(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


# ---- what fits ----


def check_fits(theirs: tuple[Any, Any], name: str, environment: Environment) -> None:
    """Raise SpaceMismatch, with every difference, for a policy of these spaces (observations, actions), where it has any."""
    ours = environment.observation_space, environment.action_space
    problems = [
        text.replace("the data has", "the policy has", 1)
        for space, own, what in zip(theirs, ours, ("observations", "actions"), strict=True)
        if isinstance(space, gym.Space)
        for text in misfits(space, own, inferred=False, what=what)
    ]
    if problems:
        fix = "an environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=f"--policy {name} in {environment.name}", fix=fix)


# ---- rows ----


def rows_of(tree: Tree, rows: Any) -> Tree:
    """These rows of every leaf."""
    return tree[rows] if isinstance(tree, np.ndarray) else map_leaves(lambda leaf: leaf[rows], tree)


def stacked_rows(values: Sequence[Tree]) -> Tree:
    """Leaves (B, ...) of B values of one structure."""
    return np.array(values) if isinstance(values[0], np.ndarray) else map_leaves(lambda *parts: np.stack(parts), *values)


def fitter(space: Space, noun: str = "an observation") -> Callable[[Any], Tree]:
    """What turns one value of `space`, `noun` in messages, into arrays in the space's dtypes.

    It raises ValueError for another structure or shape, and for numbers that the leaf's dtype cannot hold.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        like = space_tree(space)
        return lambda value: map_leaves(lambda leaf, part: _fitted_value(part, leaf.shape or (), leaf.dtype, noun), like, value)
    shape, dtype = space.shape or (), np.dtype(space.dtype)

    def fit(value: Any) -> Tree:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:  # the usual case, and quick
            return value
        return _fitted_value(value, shape, dtype, noun)

    return fit


def _fitted_value(value: Any, shape: tuple[int, ...], dtype: Any, noun: str) -> NDArray[Any]:
    value = np.asarray(value)
    if value.shape != shape:
        raise ValueError(f"{noun} of shape {value.shape}, and the space says {shape}")
    return fitted(value, dtype, noun)


def fitted(values: NDArray[Any], dtype: Any, noun: str = "an observation") -> NDArray[Any]:
    """`values` as `dtype`, rounded where both are floats. Raises ValueError where that changes what they say."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufO":
        raise ValueError(f"{noun} of {values.dtype}, which is not numeric")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN is not an integer, which the comparison finds
        turned = values.astype(dtype)
    rounded = values.dtype.kind == turned.dtype.kind == "f"
    if not rounded and not np.array_equal(turned, values):
        raise ValueError(f"{noun} of {values.dtype}, and the space's {np.dtype(dtype)} cannot hold its values")
    return turned


def category_check(space: Space, noun: str) -> Callable[[Tree], None]:
    """What raises ValueError where a value in rows of `space` is none of its categories: no dataset can hold it."""
    bounds = [
        (at, part, *category_bounds(part))
        for at, part in enumerate(leaf_spaces(space).values())
        if isinstance(part, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    ]

    def check(rows: Tree) -> None:
        found = leaves(rows)
        for at, part, low, high in bounds:
            bad = (found[at] < low) | (found[at] > high)
            if bad.any():
                raise ValueError(f"{noun} {found[at][bad].flat[0]}, which is no category of {describe(part)}")

    return check if bounds else lambda rows: None


def sampled(space: Space, count: int) -> Tree:
    """`count` typical values of `space`, always the same: floats within a few units of 0 where the bounds allow it."""
    rng = np.random.default_rng(0)

    def typical(leaf: Space) -> NDArray[Any]:
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            return np.clip(rng.normal(size=(count, *leaf.shape)), leaf.low, leaf.high).astype(leaf.dtype)
        return np.stack([_sample(leaf, rng) for _ in range(count)])

    return map_leaves(typical, space_tree(space))
