"""Our SingleAgentEpisode does what RLlib's does, but for the differences named: each of those is met, and is one."""

from __future__ import annotations

from collections import Counter

from rllib_answers import Answers, assert_trail
from single_agent_driver import DIFFERENCES, Driver

from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.spaces import space_from_rllib

SEQUENCES, STORED, OPERATIONS = 300, 60, 60


def test_random_sequences_of_operations_give_what_rllib_gives_but_for_the_differences_named_and_each_of_them_is_real(
    answers: Answers,
) -> None:
    met: Counter[str] = Counter()
    if not answers.live:
        for seed, trail in enumerate(answers(lambda: None)):
            driver = Driver(seed, met, SingleAgentEpisode, lambda state: space_from_rllib(state, where="test"))
            driver.run(OPERATIONS)
            assert_trail(driver.trail, trail, f"sequence {seed}")
        return
    from ray.rllib.env import single_agent_episode
    from ray.rllib.utils.serialization import gym_space_from_dict

    drivers = [Driver(seed, met, single_agent_episode.SingleAgentEpisode, gym_space_from_dict) for seed in range(SEQUENCES)]
    for driver in drivers:
        driver.run(OPERATIONS)
    answers(lambda: [" ".join(word for _, word in driver.trail) for driver in drivers[:STORED]])
    assert {name for name in DIFFERENCES if not met[name]} == set()
