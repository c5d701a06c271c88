"""Our episodes do what RLlib's do, in sequences and games without its own faults (docs/explanation/rllib.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import multi_agent_games
import single_agent_sequences
from rllib_answers import Answers, Trail, assert_trail

from offline_cli import MultiAgentEpisode, SingleAgentEpisode

SEQUENCES = [seed for seed in range(40) if seed not in (8, 16, 23, 38)]
GAMES = [5, 8, 16, 23, 27, 30, 35, 37, 38, 39, 40, 45, 56, 58, 62, 93, 105, 109, 129, 144]  # most are cut while actions hang


def words(played: Callable[[Any, int], Trail], cls: Any, seeds: list[int]) -> list[str]:
    return [" ".join(word for _, word in played(cls, seed)) for seed in seeds]


def test_sequences_of_operations_on_an_episode_give_what_rllib_gives(answers: Answers) -> None:
    def asked() -> list[str]:
        from ray.rllib.env import single_agent_episode

        return words(single_agent_sequences.played, single_agent_episode.SingleAgentEpisode, SEQUENCES)

    for seed, trail in zip(SEQUENCES, answers(asked), strict=True):
        assert_trail(single_agent_sequences.played(SingleAgentEpisode, seed), trail, f"sequence {seed}")


def test_games_of_several_agents_give_what_rllib_gives(answers: Answers) -> None:
    def asked() -> list[str]:
        from ray.rllib.env import multi_agent_episode

        return words(multi_agent_games.played, multi_agent_episode.MultiAgentEpisode, GAMES)

    for seed, trail in zip(GAMES, answers(asked), strict=True):
        assert_trail(multi_agent_games.played(MultiAgentEpisode, seed), trail, f"game {seed}")
