"""EpisodeBatch, the unit of bulk work: many episodes as arrays (`batch_arrays.py`), and as a sequence of single episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from offline_cli.episodes.batch_arrays import BatchArrays, Infos
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.views import arrays_of_episodes, episode_of_arrays

__all__ = ["EpisodeBatch", "Infos"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EpisodeBatch(BatchArrays):
    """E episodes of T_1 ... T_E steps, N in all: one array per leaf, and numpy'ized episodes on demand, over views of these."""

    def __getitem__(self, episode: int) -> SingleAgentEpisode:
        """Episode `episode` as a numpy'ized SingleAgentEpisode over views of the batch; its setters copy before they write."""
        return episode_of_arrays(self, range(len(self))[episode])

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return (self[e] for e in range(len(self)))

    @classmethod
    def from_episodes(cls, episodes: Iterable[SingleAgentEpisode]) -> EpisodeBatch:
        """The batch of `episodes`, lookback buffers left out. Raises BadEpisode where structures differ or are ragged."""
        return arrays_of_episodes(episodes, cls)
