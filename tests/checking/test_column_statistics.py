"""Figures of columns agree with exact arithmetic, whatever the offset and however the data was cut."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_cli.checking.column_statistics import PARTS, ColumnsBuilder, ColumnStatistics, Spread
from offline_cli.errors import BadEpisode


def merged(values: NDArray[Any], cuts: list[int]) -> dict[str, Any]:
    places = [0, *cuts, len(values)]
    parts = [ColumnStatistics.of(values[a:b]) for a, b in pairwise(places) if b > a]
    total = parts[0]
    for part in parts[1:]:
        total = total.merged(part)
    return total.as_json()


def exact(values: NDArray[Any]) -> tuple[float, float]:
    """Mean and std in rational arithmetic."""
    numbers = [Fraction(value) for value in values.tolist()]
    mean = sum(numbers, Fraction(0)) / len(numbers)
    variance = sum(((number - mean) ** 2 for number in numbers), Fraction(0)) / len(numbers)
    return float(mean), math.sqrt(variance)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("cuts", [[], [1], list(range(100, 3000, 100))])
def test_mean_and_std_are_right_to_nine_digits_far_from_zero_and_for_any_cuts(offset: float, cuts: list[int]) -> None:
    values = np.random.default_rng(1).normal(size=3000) + offset
    figures = merged(values, cuts)
    mean, std = exact(values)
    assert figures["std"] == pytest.approx(std, rel=1e-9)
    assert figures["mean"] == pytest.approx(mean, rel=1e-9, abs=1e-12)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.data())
def test_count_min_and_max_of_integers_are_exact(values: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    figures = merged(np.array(values, np.int64), cuts)
    assert (figures["count"], figures["min"], figures["max"]) == (len(values), min(values), max(values))


def test_figures_of_vectors_are_per_element_and_nested_like_a_value() -> None:
    values = np.random.default_rng(0).normal(size=(50, 2, 3)).astype(np.float32)
    figures = merged(values, [7])
    np.testing.assert_allclose(figures["mean"], values.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(figures["std"], values.astype(np.float64).std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(figures["min"], values.min(axis=0))
    assert (figures["shape"], figures["dtype"], figures["pooled"]) == ([2, 3], "float32", False)


def test_large_leaves_have_one_figure_for_all_elements() -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 32, 33), np.uint8)
    figures = merged(values, [13])
    assert figures["pooled"]
    assert figures["count"] == values.size
    assert figures["mean"] == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
    assert figures["std"] == pytest.approx(values.std(dtype=np.float64), rel=1e-12)


def test_nan_and_infinities_are_counted_and_left_out_of_mean_and_std() -> None:
    values = np.array([[np.nan, 1.0], [2.0, np.inf], [4.0, 3.0], [np.nan, -np.inf]])
    figures = merged(values, [1])
    assert figures["nan"] == [2, 0]
    assert figures["infinite"] == [0, 2]
    assert figures["mean"] == [3.0, 2.0]
    assert figures["std"] == [1.0, 1.0]
    assert figures["min"] == [2.0, "-inf"]
    assert figures["max"] == [4.0, "inf"]


def test_a_column_of_nothing_but_nan_has_no_figures_and_stays_json() -> None:
    figures = merged(np.full((4, 2), np.nan), [2])
    assert figures["min"] == figures["mean"] == figures["std"] == [None, None]
    json.dumps(figures, allow_nan=False)


def test_the_builder_names_columns_by_path_and_counts_acted_observations(make: Any) -> None:
    batch = make.batch((3, 1), extra={"out": {"logp": np.arange(4.0), "best": np.array([True, False, True, True])}})
    builder = ColumnsBuilder()
    builder.add(batch)
    columns = builder.as_json()
    assert list(columns) == ["obs", "actions", "rewards", "out.logp", "out.best"]
    assert columns["obs"]["count"] == 4
    assert (columns["out.best"]["min"], columns["out.best"]["mean"], columns["out.best"]["dtype"]) == (0, 0.75, "bool")
    np.testing.assert_allclose(columns["obs"]["mean"], batch.acted_obs().astype(np.float64).mean(axis=0), rtol=1e-12)


def test_a_column_that_changes_its_shape_is_refused_by_name(make: Any) -> None:
    builder = ColumnsBuilder()
    builder.add(make.batch((2,), extra={"h": np.zeros((2, 3))}))
    with pytest.raises(BadEpisode, match="'h'"):
        builder.add(make.batch((2,), extra={"h": np.zeros((2, 4))}))


# ---- how values are spread ----


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_the_parts_of_many_values_are_quantiles(offset: float) -> None:
    values = offset + np.random.default_rng(0).normal(size=20_000)
    found = Spread()
    for block in np.array_split(values, 7):
        found.add(block)
    told = found.as_json()
    assert len(told["counts"]) == PARTS
    assert np.abs(np.array(told["counts"]) - len(values) / PARTS).max() < len(values) / PARTS / 10
    assert np.abs(np.array(told["high"]) - np.quantile(values, np.arange(1, PARTS + 1) / PARTS)).max() < 0.02
