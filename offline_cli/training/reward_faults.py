"""NaN and infinite rewards among the episodes of a run: counted and named by an algorithm that uses no rewards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.training.lesson import place_of_first

__all__ = ["RewardFaults"]


@dataclass(slots=True)
class RewardFaults:
    """How many there are, held-out episodes included."""

    nan: int = 0
    infinite: int = 0
    first: str = ""  # episode and step

    def see(self, episodes: EpisodeBatch) -> None:
        """Look at the rewards of `episodes`, each once."""
        finite = np.isfinite(episodes.rewards)
        if finite.all():
            return
        nan = int(np.count_nonzero(np.isnan(episodes.rewards)))
        self.nan += nan
        self.infinite += int(np.count_nonzero(~finite)) - nan
        self.first = self.first or place_of_first(episodes, ~finite)

    def counts(self) -> dict[str, int]:
        """By kind, as `validate` calls them; what there is none of has no key."""
        found = {"nan-in-rewards": self.nan, "infinite-in-rewards": self.infinite}
        return {kind: count for kind, count in found.items() if count}

    def notes(self) -> list[str]:
        """In words; empty: there are none."""
        named = ", ".join(f"{kind} {count:,}" for kind, count in self.counts().items())
        return [f"rewards that are no finite numbers, first in {self.first}: {named}; bc does not use them"] if named else []
