"""Figures of columns, as `inspect --deep` shows them, agree with exact arithmetic however the data was cut."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from offline_cli.checking.column_statistics import ColumnsBuilder
from offline_cli.errors import BadEpisode


@pytest.fixture
def builder(make: Any) -> Any:
    """Figures of an extra output `x` with these values, a step each, in batches that begin at `cuts`."""

    def build(values: np.ndarray[Any, Any], cuts: list[int]) -> ColumnsBuilder:
        found = ColumnsBuilder()
        for part in np.split(values, cuts):
            found.add(make.batch((len(part),), extra={"x": part}))
        return found

    return build


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("cuts", [[1], list(range(100, 3000, 100))])
def test_mean_and_std_are_right_to_nine_digits_far_from_zero(builder: Any, offset: float, cuts: list[int]) -> None:
    values = np.random.default_rng(1).normal(size=3000) + offset
    figures, numbers = builder(values, cuts).as_json()["x"], [Fraction(value) for value in values.tolist()]
    mean = sum(numbers, Fraction(0)) / len(numbers)
    variance = sum(((number - mean) ** 2 for number in numbers), Fraction(0)) / len(numbers)
    assert figures["std"] == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert figures["mean"] == pytest.approx(float(mean), rel=1e-9, abs=1e-12)


def test_integers_are_exact_and_figures_nested_like_a_value(builder: Any) -> None:
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (50, 2, 3))
    figures = builder(values, [7]).as_json()["x"]
    np.testing.assert_array_equal(figures["min"], values.min(axis=0))
    np.testing.assert_array_equal(figures["max"], values.max(axis=0))
    assert (figures["shape"], figures["dtype"], figures["pooled"], figures["count"]) == ([2, 3], "int64", False, 50)


def test_large_leaves_have_one_figure_for_all_elements(builder: Any) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 32, 33), np.uint8)
    figures = builder(values, [13]).as_json()["x"]
    assert (figures["pooled"], figures["count"]) == (True, values.size)
    assert figures["mean"] == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
    assert figures["std"] == pytest.approx(values.std(dtype=np.float64), rel=1e-12)


def test_nan_and_infinities_are_counted_and_left_out_of_mean_and_std(builder: Any) -> None:
    values = np.array([[np.nan, 1.0, np.nan], [2.0, np.inf, np.nan], [4.0, 3.0, np.nan], [np.nan, -np.inf, np.nan]])
    figures = builder(values, [1]).as_json()["x"]
    assert (figures["nan"], figures["infinite"]) == ([2, 0, 4], [0, 2, 0])
    assert (figures["mean"], figures["std"]) == ([3.0, 2.0, None], [1.0, 1.0, None])
    assert (figures["min"], figures["max"]) == ([2.0, "-inf", None], [4.0, "inf", None])
    json.dumps(figures, allow_nan=False)


def test_columns_are_named_by_path_and_observations_are_those_acted_on(make: Any) -> None:
    batch = make.batch((3, 1), extra={"out": {"logp": np.arange(4.0), "best": np.array([True, False, True, True])}})
    found = ColumnsBuilder()
    found.add(batch)
    columns = found.as_json()
    assert list(columns) == ["obs", "actions", "rewards", "out.logp", "out.best"]
    assert columns["obs"]["count"] == 4
    assert (columns["out.best"]["min"], columns["out.best"]["mean"], columns["out.best"]["dtype"]) == (0, 0.75, "bool")
    with pytest.raises(BadEpisode, match="'out"):
        found.add(make.batch((2,), extra={"out": {"logp": np.zeros((2, 3)), "best": np.zeros(2, np.bool_)}}))
