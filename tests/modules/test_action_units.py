"""Box actions in the environment's units and in those of networks: the same formulas as RLlib's, and what it leaves open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from rllib_answers import Answers

from offline_cli.modules.distributions import ForEnvironment, in_network_units, span_of

LARGEST = np.finfo(np.float32).max
ASYMMETRIC = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))
WIDE = spaces.Box(1e6, 1e6 + 1, (2, 3), np.float64)


def test_actions_of_the_environment_come_to_lie_in_minus_one_to_one() -> None:
    actions = np.array([[-2.0, 0.0], [0.5, 10.0], [-0.75, 5.0], [3.0, -5.0]], np.float32)
    found = in_network_units(actions, ASYMMETRIC, action_scale="env")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[-1, -1], [1, 1], [0, 0], [3, -2]])


def test_normalized_actions_stay_as_they_were_recorded_beyond_the_bounds_too() -> None:
    actions = np.array([[-1.7, 0.2]], np.float32)
    assert in_network_units(actions, ASYMMETRIC, action_scale="normalized") is actions


def test_float64_actions_are_scaled_before_they_lose_digits() -> None:
    actions = 1e6 + np.random.default_rng(0).random((100, 2, 3))
    found = in_network_units(actions, WIDE, action_scale="env")
    np.testing.assert_allclose(found, 2 * (actions - 1e6) - 1, atol=1e-7)


@pytest.mark.parametrize("scale", ["env", "normalized"])
def test_integer_boxes_are_in_the_units_of_the_environment_at_either_scale(scale: str) -> None:
    box = spaces.Box(-3, 5, (1,), np.int32)
    found = in_network_units(np.array([[-3], [1], [5]], np.int32), box, action_scale=scale)
    np.testing.assert_array_equal(found, [[-1], [0], [1]])
    played = ForEnvironment(box)(np.array([[-1.0], [0.1], [0.2], [2.0]], np.float32))
    assert played.dtype == np.int32
    np.testing.assert_array_equal(played, [[-3], [1], [2], [5]])


@pytest.mark.parametrize(
    "box",
    [
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([0.0, -1.0]), np.array([1.0, np.inf]), dtype=np.float64),
        spaces.Box(-LARGEST, LARGEST, (2,), np.float32),
        spaces.Box(-float(LARGEST), float(LARGEST), (2,), np.float64),
        spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    ],
    ids=str,
)
def test_a_box_without_a_bound_somewhere_is_not_scaled(box: spaces.Box) -> None:
    assert span_of(box) is None
    actions = np.array([[0, 100]], box.dtype)
    np.testing.assert_array_equal(in_network_units(actions, box, action_scale="env"), actions)
    played = ForEnvironment(box)(actions.astype(np.float64))
    np.testing.assert_array_equal(played, np.clip(actions, box.low, box.high))


def test_parts_of_a_nested_space_are_scaled_each_by_its_own_bounds() -> None:
    space = spaces.Dict({"aim": ASYMMETRIC, "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 4.0, ())])})
    actions = {"aim": np.array([[0.5, 5.0]]), "pair": (np.array([2]), np.array([3.0]))}
    found = in_network_units(actions, space, action_scale="env")
    assert (found["aim"].tolist(), found["pair"][0].tolist(), found["pair"][1].tolist()) == ([[1.0, 0.0]], [2], [0.5])


@pytest.mark.parametrize(
    "box", [ASYMMETRIC, WIDE, spaces.Box(-np.inf, np.inf, (2,))], ids=["asymmetric", "float64", "unbounded"]
)
def test_both_ways_are_those_of_rllib(answers: Answers, box: Any) -> None:
    def asked() -> Any:
        from ray.rllib.utils.spaces.space_utils import normalize_action, unsquash_action

        there = np.stack([unsquash_action(row, box) for row in raw])
        return there, np.stack([normalize_action(row, box) for row in there]) if bounded else None

    bounded = np.isfinite(box.high).all()
    raw = np.random.default_rng(0).normal(scale=1.5, size=(200, *box.shape)).astype(box.dtype)
    theirs, back = answers(asked)
    np.testing.assert_allclose(ForEnvironment(box)(raw), theirs, rtol=1e-5, atol=1e-6)
    if bounded:
        np.testing.assert_allclose(in_network_units(theirs, box, action_scale="env"), back, atol=1e-5)
