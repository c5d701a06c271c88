"""What determines the episodes of an evaluation: exactly the first N, the same for any number of slots and runners.

Episode i is the i-th started, and each plays to its own end: "the first N to finish" would favour short ones.

* Single copies: each slot takes the next episode when its own ends, with that episode's own seed. A policy between connector
  pieces plays in these too: pieces see episodes, each from its beginning to its end.
* An environment's own vector class draws all its episodes from one generator. It plays rounds of a fixed number of slots, one
  seed per round; the number of slots asked for does not matter, and runners share the rounds. Episode i depends on how many
  are played, where those are fewer than a round has.

The policy sees blocks of a number of rows that follows from the number of episodes alone, since results differ with the shape
of a batch in the last digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from offline_cli.connectors.piece_errors import piece_of
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.playing.blocks import PolicyFailure
from offline_cli.playing.plan import Index, Plan, dealt
from offline_cli.playing.slots import Purpose, episode_seed

__all__ = ["BLOCK", "ROUND", "EvaluationPlan"]

BLOCK: Final = 16  # rows that the policy sees at once, and
ROUND: Final = 128  # slots of an own vector class, in evaluations of as many episodes and more
CHANCE: Final = 1


@dataclass(frozen=True, slots=True)
class EvaluationPlan(Plan):
    """See Plan; `episodes` is not None, and `first` is 0."""

    purpose: Purpose = Purpose.EVALUATE
    round_: int = 0  # tells apart the checks of one run

    @property
    def count(self) -> int:
        """How many episodes."""
        assert self.episodes is not None, "an evaluation is of episodes"
        return self.episodes

    @property
    def records(self) -> bool:
        """See Plan: returns and lengths are all that is kept."""
        return False

    @property
    def block(self) -> int:
        """Rows that the policy sees at once."""
        return min(self.count, BLOCK)

    @property
    def round_slots(self) -> int:
        """Slots that an own vector class plays in."""
        return min(self.count, ROUND)

    @property
    def keeps_what_is_whole(self) -> bool:
        """Whether episodes that are whole count where playing is broken off: only all of them do."""
        return False

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
        fix = f"mend the piece; --debug shows the line that raised{seed}"
        return BadData(f"connector piece {piece} raised {cause!r}", where=where, fix=fix)
