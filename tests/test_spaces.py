"""Spaces to JSON and to RLlib's form and back, and spaces guessed from data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given, settings
from json_schemas import mistakes

from offline_cli.errors import UnsupportedSpace
from offline_cli.spaces import (
    Space,
    describe,
    infer_space,
    leaf_spaces,
    same_space,
    space_from_json,
    space_from_rllib,
    space_to_json,
    space_to_rllib,
)
from offline_cli.testing import spaces

bounded = settings(deadline=None, max_examples=40)
INT64 = np.iinfo(np.int64)


@bounded
@given(spaces())
def test_a_space_written_as_json_and_read_again_is_the_same(space: Space) -> None:
    document = json.loads(json.dumps(space_to_json(space), allow_nan=False))
    assert mistakes(document, "spaces.v1.json") == []
    again = space_from_json(document, where="test")
    assert again == space
    assert same_space(again, space)


@bounded
@given(spaces())
def test_a_space_written_in_rllibs_form_and_read_again_is_the_same(space: Space) -> None:
    again = space_from_rllib(space_to_rllib(space), where="test")
    assert again == space
    assert same_space(again, space)


@pytest.mark.integration
@bounded
@given(spaces())
def test_rllib_reads_the_spaces_that_were_written_and_they_are_read_as_it_writes_them(space: Space) -> None:
    rllib = pytest.importorskip("ray.rllib.utils.serialization")
    assert rllib.gym_space_from_dict(space_to_rllib(space)) == space
    if not any(isinstance(leaf, gym_spaces.MultiDiscrete) and leaf.start.any() for leaf in leaf_spaces(space).values()):
        assert same_space(space_from_rllib(rllib.gym_space_to_dict(space), where="test"), space)


UNEVEN = gym_spaces.Box(np.array([[-1, -np.inf], [0, 3]]), np.array([[1, np.inf], [0.1, 4]]), dtype=np.float64)
WIDE = gym_spaces.Box(np.array([0, 1 << 63], np.uint64), np.array([7, (1 << 64) - 1], np.uint64), dtype=np.uint64)


@pytest.mark.parametrize("space", [UNEVEN, WIDE, gym_spaces.Box(0, 1, (0, 3)), gym_spaces.MultiBinary([2, 3])], ids=describe)
def test_bounds_keep_every_digit_in_both_forms(space: Space) -> None:
    document = json.loads(json.dumps(space_to_json(space), allow_nan=False))
    assert mistakes(document, "spaces.v1.json") == []
    for again in (space_from_json(document, where="test"), space_from_rllib(space_to_rllib(space), where="test")):
        assert again == space
        for side in ("low", "high") if isinstance(space, gym_spaces.Box) else ():
            np.testing.assert_array_equal(getattr(again, side), getattr(space, side), strict=True)


@pytest.mark.parametrize(
    "node",
    [
        {"type": "Text"},
        {"type": "Box", "shape": [1 << 40], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0], "high": 1},
        {"type": "MultiBinary", "n": [1 << 40, 1 << 40]},
        {"type": "Discrete", "n": 0},
        {},
    ],
    ids=str,
)
def test_what_is_no_space_is_refused_by_place(node: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        space_from_json(node, where="manifest.json")
    assert caught.value.where == "manifest.json"


def test_spaces_that_differ_in_one_bound_or_in_the_order_of_keys_are_not_the_same() -> None:
    one, two = (gym_spaces.Box(np.array([0.0, low]), np.array([1.0, 1.0]), dtype=np.float64) for low in (0.0, 1e-9))
    assert not same_space(one, two)
    pairs = [("a", one), ("b", gym_spaces.Discrete(2))]
    assert not same_space(gym_spaces.Dict(pairs), gym_spaces.Dict(pairs[::-1]))
    assert not same_space(one, None)
    assert same_space(None, None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 2, 1]), gym_spaces.Discrete(3)),
        (np.array([[0, 2], [1, 0]]), gym_spaces.MultiDiscrete([2, 3])),
        (np.array([-1, 2]), gym_spaces.Box(INT64.min, INT64.max, (), np.int64)),
        (np.array([0, INT64.max]), gym_spaces.Box(INT64.min, INT64.max, (), np.int64)),
        (np.array([0, 1 << 63], np.uint64), gym_spaces.Box(0, (1 << 64) - 1, (), np.uint64)),
        (np.zeros((2, 0), np.int64), gym_spaces.Box(INT64.min, INT64.max, (0,), np.int64)),
        (np.zeros((2, 3), bool), gym_spaces.MultiBinary(3)),
        (np.zeros(2, bool), gym_spaces.Discrete(2)),
        (np.zeros((2, 3), np.float16), gym_spaces.Box(-np.inf, np.inf, (3,), np.float16)),
        ({"x": (np.array([0, 1]),)}, gym_spaces.Dict({"x": gym_spaces.Tuple([gym_spaces.Discrete(2)])})),
    ],
    ids=str,
)
def test_a_space_is_guessed_that_holds_the_values(values: Any, expected: Space) -> None:
    assert infer_space(values, discrete=True) == expected


def test_choices_are_read_where_gymnasium_has_them_without_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    class Discrete(gym_spaces.Discrete):
        """As in gymnasium 1.1."""

        def __init__(self, n: int, seed: Any = None, start: int = 0) -> None:
            super().__init__(n, seed, start)

    told = space_to_json(gym_spaces.Discrete(3, start=1))
    monkeypatch.setattr(gym_spaces, "Discrete", Discrete)
    assert space_from_json(told, where="test") == gym_spaces.Discrete(3, start=1)
