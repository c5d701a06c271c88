"""Our MultiAgentEpisode does what RLlib's does, but for the differences named: each of those is met, and is one."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_cli.episodes.multi_agent.multi_agent_episode import MultiAgentEpisode
from offline_cli.errors import OfflineCliError

pytestmark = pytest.mark.ray
rllib = pytest.importorskip("ray.rllib.env.multi_agent_episode", reason="needs the extra [ray]")

from multi_agent_compared import difference, outcome, whole  # noqa: E402
from multi_agent_differences import DIFFERENCES  # noqa: E402
from multi_agent_driver import Driver, module_of  # noqa: E402
from multi_agent_scripts import SCRIPTS  # noqa: E402

CLASSES = (MultiAgentEpisode, rllib.MultiAgentEpisode)

SEQUENCES, OPERATIONS = 150, 50

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


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_lists_that_rllib_constructs_otherwise(name: str) -> None:
    lists = {"id_": "e", "len_lookback_buffer": 0, "agent_to_module_mapping_fn": module_of, **CONSTRUCTIONS[name]}
    ours, theirs = (outcome(lambda cls=cls: whole(cls(**copy.deepcopy(lists)))) for cls in CLASSES)
    assert ours[0] == "returns"
    assert theirs[0] == "raises" or difference(ours[1], theirs[1])


def test_rllib_forgets_which_module_it_mapped_an_agent_to() -> None:
    def is_remembered(cls: Any) -> bool:
        answers = iter(range(9))
        episode = cls(observations=[{"a": 0}], agent_to_module_mapping_fn=lambda agent, episode: f"m{next(answers)}")
        return bool(episode.module_for("a") == episode.agent_episodes["a"].module_id)

    assert list(map(is_remembered, CLASSES)) == [True, False]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_rllib_plays_otherwise(name: str) -> None:
    ours, theirs = (outcome(lambda cls=cls: SCRIPTS[name](cls)) for cls in CLASSES)
    assert ours[0] == "returns" or isinstance(ours[1], OfflineCliError)
    assert ours[0] != theirs[0] or difference(ours[1], theirs[1])


def test_random_sequences_of_operations_give_what_rllib_gives_but_for_the_differences_named_and_each_of_them_is_real() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEQUENCES):
        Driver(random.Random(seed), met).run(OPERATIONS)
    assert {name for name in DIFFERENCES if not met[name]} <= {*CONSTRUCTIONS, *SCRIPTS, "modules forgotten"}
    assert min(met["(slices compared)"], met["(concats compared)"], met["(constructions compared)"]) > 50


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rng=st.randoms(use_true_random=False))
def test_sequences_that_hypothesis_draws_give_what_rllib_gives(rng: random.Random) -> None:
    Driver(rng, Counter()).run(25)
