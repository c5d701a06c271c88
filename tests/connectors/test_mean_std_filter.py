"""The filter's statistics: what is counted, how states are merged, what is changed and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors import ConnectorPipelineV2, MeanStdFilter, learner_pipeline
from offline_cli.connectors.common.mean_std_filter import Moments
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.episodes.batch import EpisodeBatch

SPACE, ACTIONS = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)
NESTED = spaces.Dict({"arm": SPACE, "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8), "door": spaces.Discrete(3)})


def begun(observation: Any, space: Any = SPACE, **options: Any) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observation_space=space, **options)
    episode.add_env_reset(observation)
    return episode


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(5, [1, 40], (count, 2)).astype(np.float32)


def batch_of(observations: np.ndarray[Any, Any], *lengths: int) -> EpisodeBatch:
    n, e = sum(lengths), len(lengths)
    return EpisodeBatch(
        ids=tuple(map(str, range(e))),
        starts=np.cumsum([0, *lengths]),
        obs=observations,
        actions=np.zeros(n, int),
        rewards=np.zeros(n),
        terminated=np.ones(e, bool),
        truncated=np.zeros(e, bool),
        observation_space=SPACE,
        action_space=ACTIONS,
    )


def test_states_after_many_calls_are_the_statistics_of_all_observations() -> None:
    shares, piece = [rows(30, 1), rows(1, 2), rows(400, 3)], MeanStdFilter(SPACE, ACTIONS)
    for row in np.concatenate(shares):
        piece(batch={}, episodes=[begun(row)])
    known, exact = piece.get_state()["obs"], np.concatenate(shares).astype(np.float64)
    assert known["count"] == len(exact)
    np.testing.assert_allclose(known["mean"], exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(known["m2"] / (len(exact) - 1), exact.var(0, ddof=1), rtol=1e-12)


def test_two_filters_in_one_pipeline_keep_two_states() -> None:
    pipeline = ConnectorPipelineV2(SPACE, ACTIONS, connectors=[MeanStdFilter(), MeanStdFilter(clip_by_value=None)])
    for row in rows(20):
        pipeline(episodes=[begun(row)])
    state = pipeline.get_state()
    assert state["MeanStdFilter"]["obs"]["mean"].tolist() != state["MeanStdFilter_2"]["obs"]["mean"].tolist()
    fresh = ConnectorPipelineV2(SPACE, ACTIONS, connectors=[MeanStdFilter(), MeanStdFilter(clip_by_value=None)])
    fresh.set_state(state)
    mine, theirs = begun(rows(1, 9)[0]), begun(rows(1, 9)[0])
    for piece in (*pipeline.connectors, *fresh.connectors):
        piece.freeze()
    pipeline(episodes=[mine])
    fresh(episodes=[theirs])
    np.testing.assert_allclose(mine.get_observations(-1), theirs.get_observations(-1), rtol=1e-6)


# ---- on the learner's side ----


def test_observations_that_were_acted_on_are_counted_and_all_are_changed() -> None:
    seen = rows(9)
    seen[4] = np.nan  # the observation after the last action may be anything
    pipeline = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
    batch = pipeline(episodes=batch_of(seen, 4, 3))
    acted = np.concatenate([seen[:4], seen[5:8]]).astype(np.float64)
    own = pipeline.get_state()["MeanStdFilter"]["obs"]
    np.testing.assert_allclose(own["mean"], acted.mean(0), rtol=1e-12)
    wanted = (acted - acted.mean(0)) / (acted.std(0, ddof=1) + 1e-6)
    np.testing.assert_allclose(batch[Columns.OBS], wanted, rtol=1e-5)


def test_a_frozen_filter_changes_held_out_data_by_what_it_knows() -> None:
    pipeline = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
    pipeline(episodes=batch_of(rows(9), 4, 3))
    before = state_to_bytes(pipeline.get_state(), where="before")
    pipeline.freeze()
    pipeline(episodes=batch_of(rows(9, 7), 4, 3))
    assert state_to_bytes(pipeline.get_state(), where="after") == before


def test_what_was_learned_from_data_filters_alike_beside_the_environment() -> None:
    learner = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
    trained = learner(episodes=batch_of(rows(9), 8))[Columns.OBS]
    piece = MeanStdFilter(SPACE, ACTIONS, update_stats=False)
    piece.set_state(learner.get_state()["MeanStdFilter"])
    for row, wanted in zip(rows(9), trained, strict=False):
        episode = begun(row)
        piece(batch={}, episodes=[episode])
        np.testing.assert_allclose(episode.get_observations(-1), wanted, rtol=1e-6)


# ---- what is changed ----


def test_choices_stay_and_whole_numbers_become_float32() -> None:
    piece = MeanStdFilter(NESTED, ACTIONS)
    NESTED.seed(0)
    episode = begun(NESTED.sample(), NESTED)
    door = episode.get_observations(-1)["door"]
    for _ in range(3):
        piece(batch={}, episodes=[begun(NESTED.sample(), NESTED)])
    piece(batch={}, episodes=[episode])
    changed = episode.get_observations(-1)
    assert changed["door"] == door
    assert changed["camera"].dtype == np.float32
    assert changed["camera"].any()
    assert piece.observation_space is not None
    assert piece.observation_space.contains(changed)


def test_each_agent_has_statistics_of_its_own() -> None:
    both = spaces.Dict({"ann": SPACE, "bob": spaces.Box(0, 9, (1,), np.float64)})
    piece = MeanStdFilter(both, spaces.Dict({"ann": ACTIONS, "bob": ACTIONS}), multi_agent=True)
    for row in rows(4):
        ann = begun(row, SPACE, agent_id="ann", module_id="m")
        bob = begun(np.array([3.0]), both["bob"], agent_id="bob", module_id="m")
        piece(batch={}, episodes=[ann, bob])
    own = piece.get_state()
    assert {name: (part["count"], part["mean"].shape) for name, part in own.items()} == {"ann": (4, (2,)), "bob": (4, (1,))}
    assert bob.get_observations(-1).dtype == np.float64


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=6), min_size=1, max_size=6))
def test_moments_are_those_of_all_rows_however_they_come(shares: list[list[float]]) -> None:
    together = Moments.of(np.zeros(0))
    for share in shares:
        together = together.with_(Moments.of(np.array(share)))
    every = np.array([x for share in shares for x in share])
    assert together.count == len(every)
    if len(every):
        scale = max(1.0, float(np.abs(every).max()))
        np.testing.assert_allclose(together.mean, every.mean(), atol=1e-12 * scale)
        np.testing.assert_allclose(together.m2, np.square(every - every.mean()).sum(), atol=1e-11 * scale**2)
