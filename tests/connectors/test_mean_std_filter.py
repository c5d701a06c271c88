"""The filter's statistics: what is counted, how runners' shares are merged, what is changed and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors import ConnectorPipelineV2, MeanStdFilter, learner_pipeline
from offline_cli.connectors.common.mean_std_filter import Moments
from offline_cli.connectors.connector_v2 import same_state
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.space_bounds import bound_to_text

SPACE, ACTIONS = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)
NESTED = spaces.Dict({"arm": SPACE, "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8), "door": spaces.Discrete(3)})


def begun(observation: Any, space: Any = SPACE, **options: Any) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observation_space=space, **options)
    episode.add_env_reset(observation)
    return episode


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(5, [1, 40], (count, 2)).astype(np.float32)


def fed(observations: np.ndarray[Any, Any], state: Any = None) -> dict[str, Any]:
    """The state of a runner that started from `state` and saw these."""
    piece = MeanStdFilter(SPACE, ACTIONS)
    if state:
        piece.set_state(state)
    for row in observations:
        piece(batch={}, episodes=[begun(row)])
    return piece.get_state()


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


def close(state: Any, observations: np.ndarray[Any, Any]) -> None:
    """Whether the state counts each of these once, to 1e-12."""
    known = state["shared"]["obs"]
    exact = observations.astype(np.float64)
    assert known["count"] == len(observations)
    np.testing.assert_allclose(known["mean"], exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(known["m2"] / (len(observations) - 1), exact.var(0, ddof=1), rtol=1e-12)


def test_runners_states_merge_to_the_statistics_of_all_observations() -> None:
    shares = [rows(30, 1), rows(1, 2), rows(400, 3)]
    merged = MeanStdFilter(SPACE, ACTIONS).merge_states([fed(share) for share in shares])
    close(merged, np.concatenate(shares))


def test_what_runners_shared_before_is_counted_once() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    start = piece.merge_states([fed(rows(50, 1)), fed(rows(20, 2))])
    second = piece.merge_states([fed(rows(10, seed), start) for seed in (3, 4, 5)])
    close(second, np.concatenate([rows(50, 1), rows(20, 2), rows(10, 3), rows(10, 4), rows(10, 5)]))


def test_merging_changes_neither_the_piece_nor_the_states() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    states = [fed(rows(5)), fed(rows(6, 1))]
    piece.merge_states(states)
    assert piece.get_state() == {}
    assert same_state(states, [fed(rows(5)), fed(rows(6, 1))])


def test_a_runner_that_saw_nothing_changes_nothing() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    start = piece.merge_states([fed(rows(50, 1))])
    assert same_state(piece.merge_states([start, fed(rows(0), start), {}]), start)


def test_states_that_did_not_start_from_the_same_one_are_refused() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    one, two = (piece.merge_states([fed(rows(9, seed))]) for seed in (1, 2))
    with pytest.raises(BadPiece, match="did not start from the same one"):
        piece.merge_states([fed(rows(3), one), fed(rows(3), two)])


def test_two_filters_in_one_pipeline_keep_two_states() -> None:
    pipeline = ConnectorPipelineV2(SPACE, ACTIONS, connectors=[MeanStdFilter(), MeanStdFilter(clip_by_value=None)])
    for row in rows(20):
        pipeline(episodes=[begun(row)])
    state = pipeline.get_state()
    assert not same_state(state["MeanStdFilter"], state["MeanStdFilter_2"])
    fresh = ConnectorPipelineV2(SPACE, ACTIONS, connectors=[MeanStdFilter(), MeanStdFilter(clip_by_value=None)])
    fresh.set_state(state)
    mine, theirs = begun(rows(1, 9)[0]), begun(rows(1, 9)[0])
    for piece in (*pipeline.connectors, *fresh.connectors):
        piece.freeze()
    pipeline(episodes=[mine])
    fresh(episodes=[theirs])
    np.testing.assert_allclose(mine.get_observations(-1), theirs.get_observations(-1), rtol=1e-6)


def test_another_piece_s_state_is_refused() -> None:
    with pytest.raises(BadPiece, match=r"a state with \['number'\]"):
        MeanStdFilter(SPACE, ACTIONS).set_state({"number": 1})


def test_a_reset_forgets_everything() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    piece.set_state(fed(rows(9)))
    piece.reset_state()
    assert piece.get_state() == {}


# ---- on the learner's side ----


def test_observations_that_were_acted_on_are_counted_and_all_are_changed() -> None:
    seen = rows(9)
    seen[4] = np.nan  # the observation after the last action may be anything
    pipeline = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
    batch = pipeline(episodes=batch_of(seen, 4, 3))
    acted = np.concatenate([seen[:4], seen[5:8]]).astype(np.float64)
    own = pipeline.get_state()["MeanStdFilter"]["own"]["obs"]
    np.testing.assert_allclose(own["mean"], acted.mean(0), rtol=1e-12)
    wanted = (acted - acted.mean(0)) / (acted.std(0, ddof=1) + 1e-6)
    np.testing.assert_allclose(batch[Columns.OBS], wanted, rtol=1e-5)


def test_episodes_one_by_one_give_the_same_as_a_batch_of_them() -> None:
    whole = batch_of(rows(9), 4, 3)
    found = []
    for episodes in (whole, list(whole)):
        pipeline = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
        found.append(pipeline(episodes=episodes)[Columns.OBS])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_a_frozen_filter_changes_held_out_data_by_what_it_knows() -> None:
    pipeline = learner_pipeline(SPACE, ACTIONS, custom=MeanStdFilter(as_learner_connector=True))
    pipeline(episodes=batch_of(rows(9), 4, 3))
    before = pipeline.get_state()
    pipeline.freeze()
    pipeline(episodes=batch_of(rows(9, 7), 4, 3))
    assert same_state(pipeline.get_state(), before)


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


def test_without_a_limit_the_space_has_none() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS, clip_by_value=None)
    assert piece.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_values_are_limited() -> None:
    piece = MeanStdFilter(SPACE, ACTIONS, clip_by_value=0.5)
    piece.set_state(fed(rows(9)))
    episode = begun(np.array([99, -99], np.float32))
    piece(batch={}, episodes=[episode])
    assert episode.get_observations(-1).tolist() == [0.5, -0.5]


def test_each_agent_has_statistics_of_its_own() -> None:
    both = spaces.Dict({"ann": SPACE, "bob": spaces.Box(0, 9, (1,), np.float64)})
    piece = MeanStdFilter(both, spaces.Dict({"ann": ACTIONS, "bob": ACTIONS}), multi_agent=True)
    for row in rows(4):
        ann = begun(row, SPACE, agent_id="ann", module_id="m")
        bob = begun(np.array([3.0]), both["bob"], agent_id="bob", module_id="m")
        piece(batch={}, episodes=[ann, bob])
    own = piece.get_state()["own"]
    assert {name: (part["count"], part["mean"].shape) for name, part in own.items()} == {"ann": (4, (2,)), "bob": (4, (1,))}
    assert bob.get_observations(-1).dtype == np.float64


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=6), min_size=1, max_size=6))
def test_moments_are_those_of_all_rows_however_they_come(shares: list[list[float]]) -> None:
    together = Moments.none(())
    for share in shares:
        together = together.with_(Moments.of(np.array(share)))
    every = np.array([x for share in shares for x in share])
    assert together.count == len(every)
    if len(every):
        scale = max(1.0, float(np.abs(every).max()))
        np.testing.assert_allclose(together.mean, every.mean(), atol=1e-12 * scale)
        np.testing.assert_allclose(together.m2, np.square(every - every.mean()).sum(), atol=1e-11 * scale**2)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12), st.integers(0, 11))
def test_moments_along_the_way_are_those_of_the_rows_so_far(values: list[float], known: int) -> None:
    before, after = np.array(values[:known]), np.array(values[known:])
    means, stds = Moments.of(before).along(after)
    for i in range(len(after)):
        so_far = np.array(values[: known + i + 1])
        np.testing.assert_allclose(means[i], so_far.mean(), atol=1e-9)
        np.testing.assert_allclose(stds[i], so_far.std(ddof=1) if len(so_far) > 1 else 0, atol=1e-6)


def rllib_state(*stats: dict[str, Any], agent: Any = None, **options: Any) -> dict[Any, Any]:
    """As RLlib's connector gives it."""
    return {agent: {"shape": None, "de_mean_to_zero": True, "clip_by_value": 10.0, "running_stats": list(stats), **options}}


def rllib_stat(count: int, mean: Any, m2: Any) -> dict[str, Any]:
    arrays = {"mean_array": np.asarray(mean, float), "sum_sq_diff_array": np.asarray(m2, float)}
    return {"num_pushes": count, "num_pushes_delta": 1, **{name: bound_to_text(array) for name, array in arrays.items()}}


def test_leaves_of_rllibs_filter_come_by_sorted_key() -> None:
    space = spaces.Dict([("z", SPACE), ("a", spaces.Box(-1, 1, ())), ("door", spaces.Discrete(2))])
    piece = MeanStdFilter(space, ACTIONS)
    piece.set_state(rllib_state(rllib_stat(3, 0.5, 2.0), rllib_stat(4, [1, 2], [3, 4])))
    shared = piece.get_state()["shared"]
    assert {name: (part["count"], part["mean"].tolist(), part["m2"].tolist()) for name, part in shared.items()} == {
        "obs.a": (3, 0.5, 2.0),
        "obs.z": (4, [1, 2], [3, 4]),
    }


def test_sums_of_squares_are_known_by_their_name_before_2_48() -> None:
    stat = rllib_stat(3, [1, 2], [3, 4])
    stat["std_array"] = stat.pop("sum_sq_diff_array")
    piece = MeanStdFilter(SPACE, ACTIONS)
    piece.set_state(rllib_state(stat))
    (shared,) = piece.get_state()["shared"].values()
    assert (shared["count"], shared["mean"].tolist(), shared["m2"].tolist()) == (3, [1, 2], [3, 4])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (rllib_state(rllib_stat(3, [1, 2, 3], [1, 2, 3])), "shape"),
        (rllib_state(), "with 0 leaves"),
        (rllib_state(rllib_stat(3, [1, 2], [1, 2]), agent="ann"), "for agent 'ann', and multi_agent=False"),
        (rllib_state(rllib_stat(-3, [1, 2], [1, 2])), "below zero"),
        (
            rllib_state({**rllib_stat(3, [1, 2], [1, 2]), "mean_array": "gASVCQAAAAAAAACMBXB3bmVklC4="}),
            "not a state of RLlib's",
        ),
        (rllib_state({"num_pushes": 3}), "not a state of RLlib's"),
        (rllib_state(rllib_stat(3, [1, 2], [1, 2]), clip_by_value=None), "with clip_by_value=None, here clip_by_value=10.0"),
    ],
)
def test_states_of_rllibs_filter_that_do_not_fit_are_refused(state: Any, said: str) -> None:
    piece = MeanStdFilter(SPACE, ACTIONS)
    with pytest.raises(BadPiece, match=said):
        piece.set_state(state)
    assert piece.get_state() == {}
