"""Our MultiAgentEpisode does what RLlib's does, in games in which RLlib meets none of its own faults (docs/rllib.md)."""

from __future__ import annotations

from multi_agent_games import played
from rllib_answers import Answers, assert_trail

from offline_cli import MultiAgentEpisode

GAMES = (5, 8, 16, 23, 27, 30, 35, 37, 38, 39, 40, 45, 56, 58, 62, 93, 105, 109, 129, 144)  # most are cut while actions hang


def test_games_of_several_agents_give_what_rllib_gives(answers: Answers) -> None:
    def asked() -> list[str]:
        from ray.rllib.env import multi_agent_episode

        trails = [played(multi_agent_episode.MultiAgentEpisode, seed) for seed in GAMES]
        return [" ".join(word for _, word in trail) for trail in trails]

    for seed, trail in zip(GAMES, answers(asked), strict=True):
        assert_trail(played(MultiAgentEpisode, seed), trail, f"game {seed}")
