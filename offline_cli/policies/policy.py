"""Policy: `act(observations, state, explore)` for B episodes at a time. `record`, `evaluate`, the checks of training and
`load_policy` all ask policies this way.

The caller keeps the `State` of the episodes, with what the policy remembers of them (`memory`), and hands it back in the rows
of the observations; a policy that puts out no memory remembers nothing.

Seeds of episodes and random numbers of policies follow from (--seed, purpose, episode, step), so a resumed recording draws what
an uninterrupted one draws. A seed for an environment has 31 bits, since some environments take no more; its highest two bits
are the purpose, so that no two purposes ever play the same episode.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.connector_v2 import piece_of
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.errors import BadConfig, BadData, BadPiece, OfflineCliError, SpaceMismatch
from offline_cli.modules.python_network import choose_device, seed_generators
from offline_cli.plugins import with_network
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves, stacked_rows, unflatten_like

if TYPE_CHECKING:
    from offline_cli.policies.run_policy import LoadedPolicy

__all__ = [
    "RAISED",
    "Acted",
    "Policy",
    "PolicyOptions",
    "Purpose",
    "RandomPolicy",
    "State",
    "blamed",
    "chance_key",
    "draw",
    "fitting",
    "for_torch",
    "reset_seed",
    "sampled",
    "seeded",
    "stand_in",
    "uniform",
]


BITS_BELOW_PURPOSE: Final = 29
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MIXING: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


class Purpose(IntEnum):
    """What episodes are played for."""

    EVALUATE = 0
    CHECK = 1
    CONFIRM = 2
    RECORD = 3


def draw(*key: int) -> int:
    """63 bits that follow from `key`, whose parts are not negative."""
    return int(np.random.SeedSequence([int(part) for part in key]).generate_state(1, np.uint64)[0]) >> 1


def for_torch(seed: int) -> int:
    """`seed`, which is not negative, as torch takes one: itself where it fits into 64 bits, else bits that follow from it."""
    return seed if seed < 1 << 64 else draw(seed)


def reset_seed(seed: int, episode: int, purpose: Purpose = Purpose.RECORD, round_: int = 0) -> int:
    """What episode `episode`, from 0 on, is reset with: no two of a command alike. `round_` tells checks of a run apart."""
    first = draw(seed, purpose, round_) if round_ else draw(seed, purpose)
    return (int(purpose) << BITS_BELOW_PURPOSE) | ((first + episode) % (1 << BITS_BELOW_PURPOSE))


def chance_key(seed: int, purpose: Purpose, round_: int = 0) -> int:
    """The key of the random numbers of policies: see `uniform`."""
    return draw(seed, purpose, round_, 1)


def uniform(key: int, episodes: NDArray[np.int64], steps: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """(B, size) numbers in [0, 1) for steps (B,) of episodes (B,), by hashing. Source: Steele et al. 2014 (SplitMix64)."""
    with np.errstate(over="ignore"):
        rows = _mixed(np.uint64(key) + episodes.astype(np.uint64) * GOLDEN)
        rows = _mixed(rows + steps.astype(np.uint64) * GOLDEN)
        numbers = _mixed(rows[:, None] + np.arange(1, size + 1, dtype=np.uint64) * GOLDEN)
    found: NDArray[np.float64] = (numbers >> np.uint64(11)) * np.float64(2.0**-53)
    return found


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits


RAISED: Final = (Exception, SystemExit)  # by environments, policies and pieces, which may be a user's code


@dataclass(slots=True, eq=False)  # not frozen: one is made at every step, which that would slow down threefold
class State:
    """What B episodes have come to, beside their observations."""

    episodes: NDArray[np.int64]  # (B,) their numbers
    t: NDArray[np.int64]  # (B,) steps so far; 0: the episode begins, and what is remembered of that row is of another one
    rewards: NDArray[np.float64]  # (B,) of the last action; 0 where the episode begins
    key: int = 0  # what is drawn follows from it, the episode and the step
    infos: Sequence[Mapping[str, Any]] | None = None  # (B,) that came with the observations; None: there are none
    memory: dict[str, Tree] = field(default_factory=dict)  # leaves (B, ...), which may hold objects; as `Acted.memory` was

    def chance(self, size: int) -> NDArray[np.float64]:
        """(B, size) uniform numbers in [0, 1)."""
        return uniform(self.key, self.episodes, self.t, size)

    def seeds(self) -> list[int]:
        """A seed of 53 bits for each row."""
        return [int(chance * 2.0**53) for chance in self.chance(1)[:, 0].tolist()]


@dataclass(slots=True, eq=False)
class Acted:
    """The actions of a policy for B episodes."""

    actions: Tree  # leaves (B, ...): as they are recorded
    for_env: Tree  # leaves (B, ...): as the environment takes them
    extras: Mapping[str, Tree] = field(default_factory=dict)  # extra model outputs by name: leaves (B, ...)
    memory: dict[str, Tree] = field(default_factory=dict)  # for the next call


class Policy(ABC):
    """A policy ready to play in one environment."""

    action_scale = "env"  # or "normalized": of the recorded actions
    looks_back = False  # whether actions may depend on earlier observations of the episode
    reads_rewards = False
    needs_finite = False  # whether NaN and infinity among observations would go into a network

    def __init__(self, environment: Environment, fingerprint: str) -> None:
        """`fingerprint`: distinguishes it from others by content, where the content can be known."""
        self.spaces, self.fingerprint = (environment.observation_space, environment.action_space), fingerprint

    @abstractmethod
    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """Actions for observations, leaves (B, ...), of the environment. What a user's code raises passes."""

    def tried(self, observation: Tree, *, explore: bool, where: str) -> dict[str, Tree]:
        """Act once on an observation that an episode may begin with; rows (1, ...) of zeros of the extra model outputs.

        Raises BadData, naming `where`, for what a user's code raises, and for a piece; BadConfig for what does not fit.
        """
        zero = np.zeros(1, np.int64)
        try:
            extras = self.act(stacked_rows([observation]), State(zero, zero, np.zeros(1)), explore).extras
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """How a policy is opened, whatever kind it is of."""

    explore: bool = False  # whether it will sample actions: an ONNX file cannot
    device: str = "cpu"
    pieces: PlaySpec = field(default_factory=PlaySpec)  # pipelines that the user gave
    storage_options: Mapping[str, Any] | None = None
    plugins: Sequence[str] = ()  # packages whose code a run folder may name
    trust_pickle: bool = False  # run the code that is pickled in a checkpoint of RLlib's
    loaded: LoadedPolicy | None = None  # the policy of the run folder that is named, where it has been read

    @classmethod
    def of(cls, options: Mapping[str, Any], loaded: LoadedPolicy | None = None) -> PolicyOptions:
        """From keywords of a public function. Raises MissingDevice, UsageError for a network that is not code, and as
        `PlaySpec.of` does."""
        return cls(
            explore=options["explore"],
            device=choose_device(options["device"]).type,
            pieces=PlaySpec.of(options["env_to_module"], options["module_to_env"], options["lookback"]),
            storage_options=options["storage_options"],
            plugins=with_network(options["plugins"], options["network"]),
            trust_pickle=options["trust_pickle"],
            loaded=loaded,
        )

    def refuse_pieces(self, name: str) -> None:
        """Raise BadConfig where the user gave pipelines, and no RLModule plays."""
        if not self.pieces.is_default:
            fix = "--wrapper changes what it sees and does; or an RLModule: a run folder, python:package.module:attribute"
            raise BadConfig("pipelines go around an RLModule, which this policy is not", where=f"--policy {name}", fix=fix)


def fitting(theirs: tuple[Any, Any], name: str, environment: Environment | None) -> Environment:
    """The environment of a policy of these spaces (observations, actions), which may be None; without one, a stand-in.

    Raises SpaceMismatch, with every difference, and BadConfig where neither says the spaces.
    """
    known = [isinstance(space, gym.Space) for space in theirs]
    if environment is None:
        if not all(known):
            fix = "load_policy(..., env=...) with the environment it acts in"
            raise BadConfig("it does not say which observations its environment gives", where=name, fix=fix)
        return stand_in("the spaces it was trained with", theirs)
    ours = environment.observation_space, environment.action_space
    if problems := [
        text.replace("the data has", "the policy has", 1)
        for is_known, space, own, what in zip(known, theirs, ours, ("observations", "actions"), strict=True)
        if is_known
        for text in misfits(space, own, inferred=False, what=what)
    ]:
        fix = "an environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=f"--policy {name} in {environment.name}", fix=fix)
    return environment


class _SpacesAlone(gym.Env[Any, Any]):
    def __init__(self, spaces: tuple[Space, Space]) -> None:
        self.observation_space, self.action_space = spaces


def stand_in(name: str, spaces: tuple[Space, Space]) -> Environment:
    """For an environment that is not here, or one agent of several."""
    return Environment(name, lambda: _SpacesAlone(spaces))


@contextmanager
def seeded(state: State) -> Iterator[int]:
    """Within it the generators of Python, numpy and torch, which libraries draw from, follow from the first row's episode and
    step. Gives that seed."""
    seed, before = state.seeds()[0], (random.getstate(), np.random.get_state())
    with torch.random.fork_rng(devices=[]):
        seed_generators(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


# ---- what is drawn ----


class RandomPolicy(Policy):
    """Ignores observations. What it draws follows from the episode and its step."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, "random")
        self._like = space_tree(environment.action_space)
        sizes = [math.prod(leaf.shape or ()) for leaf in leaves(self._like)]
        self._total, self._cuts = sum(sizes), np.cumsum(sizes)[:-1]

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy."""
        parts = np.split(state.chance(self._total), self._cuts, axis=1)
        drawn = [_drawn(leaf, part) for leaf, part in zip(leaves(self._like), parts, strict=True)]
        actions = unflatten_like(self._like, drawn)
        return Acted(actions, actions)


def _drawn(space: Space, chance: NDArray[np.float64]) -> NDArray[Any]:
    """Values (B, *shape) of a leaf space from uniform numbers (B, n): uniform between two bounds, exponential from one, else
    normal."""
    bounds = (space.low, space.high) if isinstance(space, spaces.Box) else category_bounds(space)
    low, high = (np.asarray(bound, np.float64) for bound in bounds)
    chance = chance.reshape(-1, *(space.shape or ()))
    if np.dtype(space.dtype).kind != "f":
        return np.floor(low + chance * (high - low + 1.0)).astype(space.dtype)
    from_low, from_high = np.isfinite(low), np.isfinite(high)
    with np.errstate(invalid="ignore", over="ignore"):
        choices = [low + chance * (high - low), low - np.log1p(-chance), high + np.log1p(-chance)]
        normal = torch.special.ndtri(torch.from_numpy(np.maximum(chance, 2.0**-54))).numpy()
    values = np.select([from_low & from_high, from_low & ~from_high, from_high & ~from_low], choices, normal)
    found: NDArray[Any] = np.clip(values.astype(space.dtype), *bounds)
    return found


def sampled(space: Space, count: int) -> Tree:
    """`count` typical values of `space`, always the same: floats within a few units of 0 where the bounds allow it."""
    rng = np.random.default_rng(0)

    def typical(leaf: Space) -> NDArray[Any]:
        if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            return np.clip(rng.normal(size=(count, *leaf.shape)), leaf.low, leaf.high).astype(leaf.dtype)
        return _drawn(leaf, rng.random((count, math.prod(leaf.shape or ()))))

    return map_leaves(typical, space_tree(space))
