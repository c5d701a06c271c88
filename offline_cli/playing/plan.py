"""What determines the episodes of a recording (`Plan`) or an evaluation (`EvaluationPlan`), as one value sent to processes.

Every random choice of a policy is a function of uniform numbers in [0, 1) (`Chance`), so that episodes keep theirs whichever
slot and block they are played in.

Seeds of a recording. Episode i, counted from 0 over the whole recording, is reset with `environment_seed(seed, i)`, and the
policy's random numbers come from a generator of its own, seeded with `chance_key(i)`. Nothing else goes in, so the
number of slots and of runners cannot matter. Environment seeds of one recording never repeat, and their highest two bits keep
them apart from those that `evaluate` and `train_bc` play with. An environment's own vector class has one generator for all its
slots, seeded per runner; episodes then follow from the number of slots and runners too, and from where a resumed recording
continued.

Share of work. Runner r of R plays the episodes first + r, first + r + R, first + r + 2R, ...

An evaluation plays exactly the first N episodes, the same for any number of slots and runners. Episode i is the i-th started,
and each plays to its own end: "the first N to finish" would favour short ones.

* Single copies: each slot takes the next episode when its own ends, with that episode's own seed. A policy between connector
  pieces plays in these too: pieces see episodes, each from its beginning to its end.
* An environment's own vector class draws all its episodes from one generator. It plays rounds of a fixed number of slots, one
  seed per round; the number of slots asked for does not matter, and runners share the rounds. Episode i depends on how many
  are played, where those are fewer than a round has.

The policy sees blocks of a number of rows that follows from the number of episodes alone, since results differ with the shape
of a batch in the last digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.connectors.piece_options import piece_of
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.playing.actors import PolicyFailure
from offline_cli.playing.slots import BITS_BELOW_PURPOSE, Purpose, draw, episode_seed
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.policies.policy import BLOCK_ROWS, EVALUATION_ROWS
from offline_cli.policies.run_policy import RunFiles

__all__ = [
    "BLOCK",
    "OWN_CLASS",
    "ROUND",
    "Chance",
    "EpisodeChance",
    "EvaluationPlan",
    "Plan",
    "SharedChance",
    "environment_seed",
]

OWN_CLASS: Final = "vector_entry_point"
CHANCE, VECTOR = 1, 2  # what a seed is for, besides recording
Index = NDArray[np.int64]

BLOCK: Final = EVALUATION_ROWS  # that the policy sees at once, and
ROUND: Final = 128  # slots of an own vector class, in evaluations of as many episodes and more
AHEAD: Final = 64  # steps that numbers are drawn ahead: one call instead of so many, which gives the same


def environment_seed(seed: int, episode: int) -> int:
    """The seed, of 31 bits, that episode `episode` of a recording is reset with."""
    return (int(Purpose.RECORD) << BITS_BELOW_PURPOSE) | ((draw(seed, Purpose.RECORD) + episode) % (1 << BITS_BELOW_PURPOSE))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines the episodes, and how the work is shared."""

    env: str
    env_kwargs: Mapping[str, Any]  # plain JSON values
    wrappers: tuple[str, ...]
    policy: str
    explore: bool
    seed: int
    vectorize: str  # "sync" | "async" | "vector_entry_point"
    num_envs: int  # slots per runner
    runners: int  # at least 1
    device: str  # "cpu" | "cuda"
    first: int = 0  # index of the first episode to play
    episodes: int | None = None  # how many to play from there; None: see steps
    steps: int | None = None  # play the fewest episodes that have so many
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # for the run folder of a policy
    pieces: PlaySpec = field(default_factory=PlaySpec)  # pipelines that the user gave
    plugins: tuple[str, ...] = ()  # packages whose code the policy's run folder may name
    trust_pickle: bool = False  # run what is pickled in the policy's checkpoint
    threads: int | None = 1  # of torch, per runner; None: as many as there are
    files: RunFiles | None = None  # the policy, where its run folder has been read already
    policies: tuple[str, ...] = ()  # of several agents: `AGENT=POLICY`, or one for all; empty: `policy` alone

    records: ClassVar[bool] = True  # whether steps are kept, and not returns and lengths alone

    @property
    def own_class(self) -> bool:
        """Whether the environment's own vector class plays, so that episodes have no seed of their own."""
        return self.vectorize == OWN_CLASS

    @property
    def block(self) -> int:
        """Rows that the policy sees at once."""
        return BLOCK_ROWS

    # ---- episodes ----

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """What episodes follow from, by option: the same where one recording is a prefix of another; `fingerprint`: the
        policy's. Texts and numbers.
        """
        given = self.pieces.described()
        pieces = {f"--{name.replace('_', '-')}": given.get(name) for name in ("env_to_module", "module_to_env", "lookback")}
        known = {"ENV": self.env, "--env-kwargs": dict(self.env_kwargs), "--wrapper": self.wrappers, **pieces}
        texts = {name: json.dumps(value, sort_keys=True) for name, value in known.items()}
        plain = {"--policy": fingerprint, "--explore": self.explore, "--seed": self.seed}
        slots = {"--num-envs": self.num_envs, "--num-env-runners": self.runners} if self.own_class else {}
        return {**texts, **plain, "--vectorize": OWN_CLASS if self.own_class else "copies", **slots}

    def share(self, runner: int) -> int | None:
        """How many episodes runner `runner` plays; None: as many as it takes."""
        return None if self.episodes is None else dealt(self.episodes, runner, self.runners)

    def slots(self, runner: int) -> int:
        """Slots of a runner: no more than there are episodes, unless their number changes the episodes."""
        share = self.share(runner)
        return self.num_envs if self.own_class or share is None else max(1, min(self.num_envs, share))

    def indices(self, runner: int, own: Index) -> Index:
        """Indices of the episodes that runner `runner` counts as 0, 1, 2, ..."""
        return self.first + runner + own * self.runners

    def ids(self, fingerprint: str, episodes: Index) -> tuple[str, ...]:
        """An id for each episode index: 32 hex digits that follow from policy, environment, seeds and index."""
        known = json.dumps([self.identity(fingerprint), self.first if self.own_class else None])
        base = hashlib.blake2b(known.encode(), digest_size=16)
        return tuple(_extended(base, index) for index in episodes.tolist())

    # ---- seeds ----

    def reset_seeds(self, episodes: Index) -> list[int]:
        """What the environment is reset with for each of these; none where an own vector class plays."""
        return [] if self.own_class else [environment_seed(self.seed, index) for index in episodes.tolist()]

    @property
    def example_seed(self) -> int:
        """What an environment is reset with to show what its observations look like: the first episode's."""
        return environment_seed(self.seed, self.first)

    def chance_key(self, episode: int) -> list[int]:
        """Entropy of the generator of the policy's random numbers in an episode."""
        return [self.seed, int(Purpose.RECORD), CHANCE, episode]

    def vector_seed(self, runner: int) -> int:
        """The seed, of 31 bits, of runner `runner`'s own vector class, from episode `first` on."""
        return draw(self.seed, Purpose.RECORD, VECTOR, runner, self.first) >> 32

    # ---- failures ----

    def policy_failed(self, failure: PolicyFailure, where: str, seed: str) -> Exception:
        """The error for a policy, or a piece around it, that raised; `seed`: of the fix."""
        what, fix = f"{failure.who} raised {failure.cause!r}", f"check {failure.who} with this environment"
        if isinstance(failure.cause, OfflineCliError):
            what, fix = f"{failure.who}: {failure.cause.what_in_one_line}", failure.cause.fix
        return BadData(what, where=where, fix=f"{fix}{seed}")


def dealt(episodes: int, runner: int, runners: int) -> int:
    """How many of `episodes` episodes runner `runner` gets where they are assigned in turn."""
    return max(0, -(-(episodes - runner) // runners))


def _extended(base: Any, index: int) -> str:
    digest = base.copy()
    digest.update(index.to_bytes(8, "little"))
    text: str = digest.hexdigest()
    return text


@dataclass(frozen=True, slots=True)
class EvaluationPlan(Plan):
    """See Plan; `episodes` is not None, and `first` is 0."""

    purpose: Purpose = Purpose.EVALUATE
    round_: int = 0  # distinguishes the checks of one run

    records: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """How many episodes."""
        assert self.episodes is not None, "an evaluation is of episodes"
        return self.episodes

    @property
    def block(self) -> int:
        """Rows that the policy sees at once."""
        return min(self.count, BLOCK)

    @property
    def round_slots(self) -> int:
        """Slots that an own vector class plays in."""
        return min(self.count, ROUND)

    # ---- episodes ----

    def share(self, runner: int) -> int:
        """How many episodes runner `runner` plays."""
        if not self.own_class:
            return dealt(self.count, runner, self.runners)
        rounds = np.arange(runner, -(-self.count // self.round_slots), self.runners)
        return int(np.minimum(self.round_slots, self.count - rounds * self.round_slots).sum())

    def slots(self, runner: int) -> int:
        """See Plan."""
        return self.round_slots if self.own_class else max(1, min(self.num_envs, self.share(runner)))

    def indices(self, runner: int, own: Index) -> Index:
        """See Plan."""
        if not self.own_class:
            return Plan.indices(self, runner, own)  # super() does not know a class that slots have made anew
        rounds, slots = np.divmod(own, self.round_slots)
        return (runner + rounds * self.runners) * self.round_slots + slots

    def ids(self, fingerprint: str, episodes: Index) -> tuple[str, ...]:
        """See Plan."""
        return tuple(f"episode-{index}" for index in episodes.tolist())

    # ---- seeds ----

    def reset_seeds(self, episodes: Index) -> list[int]:
        """What each is reset with; an own vector class with the first of them, its round's."""
        seeded = episodes[:1] // self.round_slots if self.own_class else episodes
        return [episode_seed(self.seed, self.purpose, index, self.round_) for index in seeded.tolist()]

    def chance_key(self, episode: int) -> list[int]:
        """See Plan; of an own vector class the round's."""
        number = episode // self.round_slots if self.own_class else episode
        return [self.seed, int(self.purpose), CHANCE, self.round_, number]

    # ---- failures ----

    def policy_failed(self, failure: PolicyFailure, where: str, seed: str) -> Exception:
        """Pieces are named. Our own errors get the place as well; what no piece raised, a lack of memory and a missing package
        stay what they are."""
        cause = failure.cause
        if isinstance(cause, OfflineCliError):
            cause.where = f"{where}: {cause.where}"
            return cause
        piece = piece_of(cause)
        if isinstance(cause, Exception) and (piece is None or isinstance(cause, (MemoryError, ImportError))):
            return cause
        fix = f"fix the piece; --debug shows the line that raised{seed}"
        return BadData(f"connector piece {piece} raised {cause!r}", where=where, fix=fix)


class EpisodeChance:
    """One generator per episode."""

    def __init__(self, plan: Plan, slots: int, size: int) -> None:
        self._plan = plan
        self._generators: list[Any] = [None] * slots
        self._ahead = np.zeros((slots, AHEAD, size))
        self._t = np.ones(slots, np.int64)  # steps into the numbers drawn; a slot that has not begun never gets to 0
        self._slots = np.arange(slots)
        self._none = None if size else np.zeros((slots, 0))

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Actor: these slots begin these episodes."""
        if self._none is not None:
            return
        for slot, episode in zip(slots.tolist(), episodes.tolist(), strict=True):
            self._generators[slot] = np.random.Generator(np.random.PCG64(self._plan.chance_key(episode)))
        self._t[slots] = 0

    def draw(self) -> NDArray[np.float64]:
        """(slots, size) for the next step."""
        if self._none is not None:
            return self._none
        at = self._t % AHEAD
        for slot in np.flatnonzero(at == 0).tolist():
            if self._generators[slot] is not None:
                self._generators[slot].random(out=self._ahead[slot])
        self._t += 1
        drawn: NDArray[np.float64] = self._ahead[self._slots, at]
        return drawn


class SharedChance:
    """One generator for all slots of an environment's own vector class, which share its own chance too; of an evaluation one
    for each round.
    """

    def __init__(self, plan: Plan, runner: int, slots: int, size: int) -> None:
        self._plan, self._shape = plan, (AHEAD, slots, size)
        self._ahead = _ahead(plan.vector_seed(runner), self._shape)

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Actor; of an evaluation, these are all the episodes of the next round."""
        if not self._plan.records:
            self._ahead = _ahead(self._plan.chance_key(int(episodes[0])), self._shape)

    def draw(self) -> NDArray[np.float64]:
        """(slots, size) for the next step."""
        return next(self._ahead)


def _ahead(seed: int | list[int], shape: tuple[int, int, int]) -> Iterator[NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.random(shape)


Chance = EpisodeChance | SharedChance
"""A policy's uniform numbers for each step."""
