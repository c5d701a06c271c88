"""Statistics agree with exact arithmetic, whatever the offset and however the data was cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_cli.datasets.statistics import PARTS, ColumnStatistics, Spread, StatisticsBuilder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode

Make = Callable[..., EpisodeBatch]


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


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6, 1e9, -1e12])
@pytest.mark.parametrize("cuts", [[], [1], [1500, 1501], list(range(100, 3000, 100))])
def test_mean_and_std_are_right_to_1e_12_for_any_offset_and_any_cuts(offset: float, cuts: list[int]) -> None:
    values = np.random.default_rng(1).normal(size=3000) + offset
    figures = merged(values, cuts)
    mean, std = exact(values)
    assert figures["std"] == pytest.approx(std, rel=1e-12)
    assert figures["mean"] == pytest.approx(mean, rel=1e-12, abs=1e-15)


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


def test_bools_count_as_zeros_and_ones() -> None:
    figures = merged(np.array([True, False, True, True]), [])
    assert (figures["min"], figures["max"], figures["mean"], figures["dtype"]) == (0, 1, 0.75, "bool")


def test_the_builder_names_columns_by_path_and_counts_acted_observations(make_batch: Make) -> None:
    batch = make_batch((3, 1), extra={"out": {"logp": np.arange(4.0)}})
    builder = StatisticsBuilder()
    builder.add(batch)
    columns = builder.as_json()["columns"]
    assert list(columns) == ["obs", "actions", "rewards", "out.logp"]
    assert columns["obs"]["count"] == 4
    np.testing.assert_allclose(columns["obs"]["mean"], batch.acted_obs().astype(np.float64).mean(axis=0), rtol=1e-12)


def test_quantiles_of_return_and_length_are_exact(make_batch: Make) -> None:
    lengths = np.random.default_rng(3).integers(0, 40, 101)
    batch = make_batch(lengths.tolist())
    builder = StatisticsBuilder()
    for part in (batch.select(slice(0, 30)), batch.select(slice(30, 101))):
        builder.add(part)
    statistics = builder.as_json()
    percents = [0, 1, 5, 25, 50, 75, 95, 99, 100]
    assert list(statistics["return"]["quantiles"]) == list(map(str, percents))
    assert list(statistics["return"]["quantiles"].values()) == np.percentile(batch.returns, percents).tolist()
    assert list(statistics["length"]["quantiles"].values()) == np.percentile(lengths, percents).tolist()
    assert (statistics["length"]["min"], statistics["length"]["max"]) == (lengths.min(), lengths.max())


def test_flags_are_counted(make_batch: Make) -> None:
    batch = make_batch((1, 1, 1))
    batch.terminated[:], batch.truncated[:] = [True, False, False], [False, True, False]
    builder = StatisticsBuilder()
    builder.add(batch)
    assert (builder.terminated, builder.truncated, builder.unfinished, builder.steps) == (1, 1, 1, 3)


def test_a_column_that_changes_its_shape_is_refused_by_name(make_batch: Make) -> None:
    builder = StatisticsBuilder()
    builder.add(make_batch((2,), extra={"h": np.zeros((2, 3))}))
    with pytest.raises(BadEpisode, match="'h'"):
        builder.add(make_batch((2,), extra={"h": np.zeros((2, 4))}))


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
