"""Our MultiAgentEpisode does what RLlib's does, but for the differences named: each of those is met, and is one."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multi_agent_compared import difference, outcome, whole
from multi_agent_differences import DIFFERENCES
from multi_agent_driver import Driver, module_of
from multi_agent_scripts import SCRIPTS
from rllib_answers import Answers, assert_trail

from offline_cli.episodes.multi_agent.multi_agent_episode import MultiAgentEpisode
from offline_cli.errors import OfflineCliError

SEQUENCES, STORED, OPERATIONS = 150, 60, 50


@pytest.fixture
def classes() -> tuple[Any, Any]:
    """Our class and RLlib's."""
    rllib = pytest.importorskip("ray.rllib.env.multi_agent_episode", reason="needs the extra [ray]")
    return MultiAgentEpisode, rllib.MultiAgentEpisode


CONSTRUCTIONS: dict[str, dict[str, Any]] = {
    "flags for all": {
        "observations": [{"a": 0}, {"a": 1}],
        "actions": [{"a": 0}],
        "rewards": [{"a": 1.0}],
        "terminateds": True,
    },
    "last actions count": {"observations": [{"a": 0}, {"a": 1}], "actions": [{"a": 0}] * 2, "rewards": [{"a": 1.0}] * 2},
    "acts later": {
        "observations": [{"a": 0, "b": 0}, {"b": 1}, {"a": 1, "b": 2}],
        "actions": [{"b": 0}, {"a": 0, "b": 0}],
        "rewards": [{"b": 1.0}, {"a": 1.0, "b": 1.0}],
    },
    "short timelines": {
        "observations": [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"b": 2}],
        "actions": [{"a": 0, "b": 0}, {"b": 0}],
        "rewards": [{"a": 1.0, "b": 1.0}, {"b": 1.0}],
        "terminateds": {"a": True},
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_lists_that_rllib_constructs_otherwise(classes: tuple[Any, Any], name: str) -> None:
    lists = {"id_": "e", "len_lookback_buffer": 0, "agent_to_module_mapping_fn": module_of, **CONSTRUCTIONS[name]}
    ours, theirs = (outcome(lambda cls=cls: whole(cls(**copy.deepcopy(lists)))) for cls in classes)
    assert ours[0] == "returns"
    assert theirs[0] == "raises" or difference(ours[1], theirs[1])


@pytest.mark.nightly
def test_rllib_forgets_which_module_it_mapped_an_agent_to(classes: tuple[Any, Any]) -> None:
    def is_remembered(cls: Any) -> bool:
        answers = iter(range(9))
        episode = cls(observations=[{"a": 0}], agent_to_module_mapping_fn=lambda agent, episode: f"m{next(answers)}")
        return bool(episode.module_for("a") == episode.agent_episodes["a"].module_id)

    assert list(map(is_remembered, classes)) == [True, False]


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_rllib_plays_otherwise(classes: tuple[Any, Any], name: str) -> None:
    ours, theirs = (outcome(lambda cls=cls: SCRIPTS[name](cls)) for cls in classes)
    assert ours[0] == "returns" or isinstance(ours[1], OfflineCliError)
    assert ours[0] != theirs[0] or difference(ours[1], theirs[1])


def test_random_sequences_of_operations_give_what_rllib_gives_but_for_the_differences_named_and_each_of_them_is_real(
    answers: Answers, request: pytest.FixtureRequest
) -> None:
    met: Counter[str] = Counter()
    if not answers.live:
        for seed, (trail, foreseen) in enumerate(answers(lambda: None)):
            driver = Driver(random.Random(seed), met, MultiAgentEpisode, foreseen)
            driver.run(OPERATIONS)
            assert_trail(driver.trail, trail, f"sequence {seed}")
        return
    _, theirs = request.getfixturevalue("classes")
    drivers = [Driver(random.Random(seed), met, theirs) for seed in range(SEQUENCES)]
    for driver in drivers:
        driver.run(OPERATIONS)
    answers(lambda: [[" ".join(word for _, word in driver.trail), driver.foresight] for driver in drivers[:STORED]])
    assert {name for name in DIFFERENCES if not met[name]} <= {*CONSTRUCTIONS, *SCRIPTS, "modules forgotten"}
    assert min(met["(slices compared)"], met["(concats compared)"], met["(constructions compared)"]) > 50


@pytest.mark.nightly
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(rng=st.randoms(use_true_random=False))
def test_sequences_that_hypothesis_draws_give_what_rllib_gives(classes: tuple[Any, Any], rng: random.Random) -> None:
    Driver(rng, Counter(), classes[1]).run(25)
