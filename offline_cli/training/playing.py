"""Plays whole episodes of a policy in an environment, many at a time; refuses to count by who finishes first.

Episode i is the i-th started, and exactly the episodes 0 to N-1 count, each to its own end: "the first N to finish" would
favour short ones. No slot is ever read after its episode's end, so the environment's way of resetting itself does not matter.

* Single copies: each slot takes the next episode when its own ends, with that episode's own seed.
* A policy between connector pieces plays in single copies too: pieces see episodes, each from its beginning to its end.
* An environment's own vector class, which plays where it has the environment's spaces, draws all its episodes from one
  generator: rounds of N slots, one seed per round. Results are the same for the same seed and number of episodes, but episode
  i depends on how many are played.

The forward pass always sees the same number of rows, since results differ with the shape of a batch in the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import Environment
from offline_cli.errors import BadData
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.step_values import flag_of, flags_of, reward_of, rewards_of
from offline_cli.training.choosers import Chance, Chooser, Policy, PolicyBetweenPieces
from offline_cli.training.play_pieces import PlayPieces
from offline_cli.training.seeds import Purpose, draw, episode_seed
from offline_cli.trees import Tree, map_leaves
from offline_cli.waiting import current

__all__ = ["Played", "play"]

MAX_SLOTS, MAX_VECTOR_SLOTS = 16, 128
Each = Callable[[int], None]
Key = tuple[int, Purpose, int]  # what all seeds follow from: the run's seed, what is played for, the round


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """N whole episodes, in the order in which they were started."""

    returns: NDArray[np.float64]  # (N,) undiscounted, in the environment's units
    lengths: NDArray[np.int64]  # (N,) steps

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns; 0 for one episode."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def ci95(self) -> float:
        """Half the width of the 95% confidence interval of the mean, by the normal approximation."""
        return 1.96 * self.std / math.sqrt(len(self.returns))


def play(
    module: RLModule,
    environment: Environment,
    episodes: int,
    *,
    seed: int,
    purpose: Purpose,
    round_: int = 0,
    explore: bool = False,
    pieces: PlayPieces | None = None,
    on_step: Callable[[], None] = lambda: None,
    on_episodes: Each = lambda done: None,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are.
    `on_step` is called at every step and may raise to stop; `on_episodes` gets the number of episodes that have ended.
    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, and where a piece raises; BadConfig where the pieces cannot play there.
    """
    key = seed, purpose, round_
    chance: Chance = {"seed": draw(*key), "explore": explore}
    was_training = module.training
    module.eval()
    try:
        if pieces is not None:
            chooser: Chooser = PolicyBetweenPieces(module, pieces, environment, slots=min(episodes, MAX_SLOTS), **chance)
            played = _in_slots(chooser, environment, episodes, key, on_step, on_episodes)
        else:
            module.action_head.play_in(environment.action_space)
            playing = _in_rounds if environment.vector_class_fits else _in_slots
            played = playing(Policy(module, **chance), environment, episodes, key, on_step, on_episodes)
    finally:
        module.train(was_training)
    bad = np.flatnonzero(~np.isfinite(played.returns))
    if len(bad):
        place, fix = f"{environment.name}, episode {bad[0]}", "mend the environment's rewards"
        raise BadData(f"a return of {played.returns[bad[0]]}", where=place, fix=fix)
    return played


def _in_rounds(
    chooser: Chooser, environment: Environment, episodes: int, key: Key, on_step: Callable[[], None], on_episodes: Each
) -> Played:
    slots = min(episodes, MAX_VECTOR_SLOTS)
    vector = environment.vector(slots)
    returns, lengths = np.zeros((2, -(-episodes // slots), slots))
    for turn in range(len(returns)):
        live = np.arange(slots) + turn * slots < episodes
        with _blaming(environment, f"round {turn}"):
            observations, _ = vector.reset(seed=episode_seed(key[0], key[1], turn, key[2]))
        while live.any():
            on_step()
            actions = _chosen(chooser, observations)
            with _blaming(environment, f"round {turn}, step {int(lengths[turn].max())}"):
                observations, rewards, terminated, truncated, _ = vector.step(actions)
                returns[turn] += np.where(live, _numbers(rewards, reward_of, rewards_of), 0.0)
                ended = _numbers(terminated, flag_of, flags_of) | _numbers(truncated, flag_of, flags_of)
            lengths[turn] += live
            live &= ~ended
        on_episodes(min(episodes, (turn + 1) * slots))
    return Played(returns.ravel()[:episodes], lengths.ravel()[:episodes].astype(np.int64))


def _in_slots(
    chooser: Chooser, environment: Environment, episodes: int, key: Key, on_step: Callable[[], None], on_episodes: Each
) -> Played:
    envs = environment.singles(min(episodes, MAX_SLOTS))
    observations = _rows(environment.observation_space, len(envs))
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    playing: list[int | None] = [None] * len(envs)
    waiting = iter(range(episodes))

    def start(slot: int) -> None:
        playing[slot] = episode = next(waiting, None)
        if episode is not None:
            with _blaming(environment, f"episode {episode}, reset"):
                first, info = envs[slot].reset(seed=episode_seed(key[0], key[1], episode, key[2]))
                _write_row(observations, slot, first)
            chooser.begin(slot, episode, observations, info)

    for slot in range(len(envs)):
        start(slot)
    ended = 0
    while ended < episodes:
        on_step()
        actions = _chosen(chooser, observations)
        for slot, episode in enumerate(playing):
            if episode is None:
                continue
            with _blaming(environment, f"episode {episode}, step {lengths[episode]}"):
                action = map_leaves(lambda leaf, row=slot: leaf[row], actions)
                observation, reward, terminated, truncated, info = envs[slot].step(action)
                _write_row(observations, slot, observation)
                reward, ends = reward_of(reward), {"terminated": flag_of(terminated), "truncated": flag_of(truncated)}
            chooser.step(slot, observations, reward, info, **ends)
            returns[episode] += reward
            lengths[episode] += 1
            if any(ends.values()):
                ended += 1
                on_episodes(ended)
                start(slot)
    return Played(returns, lengths)


def _numbers(given: Any, one: Callable[[Any], Any], all_of: Callable[[Any, int], NDArray[Any] | None]) -> NDArray[Any]:
    """What the copies of a vector gave. Raises ValueError for what is none."""
    found = all_of(given, len(given))
    return np.array([one(value) for value in given]) if found is None else found


def _chosen(chooser: Chooser, observations: Tree) -> Tree:
    waiting = current()
    waiting.words = lambda: "the policy"
    waiting.enter("policy")
    try:
        return chooser.choose(observations)
    finally:
        waiting.leave()


@contextmanager
def _blaming(environment: Environment, where: str) -> Iterator[None]:
    waiting, place = current(), f"{environment.name}, {where}"
    waiting.words = lambda: place
    waiting.enter("step")
    try:
        yield
    except Exception as err:
        raise BadData(f"the environment raised {err!r}", where=place, fix="check the environment with this policy") from err
    finally:
        waiting.leave()


def _rows(space: Space, count: int) -> Tree:
    """Zeros for `count` observations."""
    parts = {path: np.zeros((count, *(leaf.shape or ())), leaf.dtype) for path, leaf in leaf_spaces(space).items()}
    return _shaped_like(space, iter(parts.values()))


def _shaped_like(space: Space, parts: Iterator[Any]) -> Tree:
    inner = getattr(space, "spaces", None)
    if isinstance(inner, dict):
        return {key: _shaped_like(part, parts) for key, part in inner.items()}
    return tuple(_shaped_like(part, parts) for part in inner) if inner is not None else next(parts)


def _write_row(rows: Tree, row: int, observation: Tree) -> None:
    """Put one observation in its place. Raises ValueError for another structure or shape: numpy alone would repeat values."""

    def put(target: NDArray[Any], value: Any) -> None:
        if np.shape(value) != target.shape[1:]:
            raise ValueError(f"an observation of shape {np.shape(value)}, and the space says {target.shape[1:]}")
        target[row] = value

    map_leaves(put, rows, observation)
