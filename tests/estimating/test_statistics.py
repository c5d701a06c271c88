"""Aggregates and intervals, beside rliable's stored answers (tests/testdata/rliable/make.py)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import compare
from offline_cli.estimating import statistics

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "testdata/rliable/answers.json").read_text())
SCORES = {name: [np.array(task) for task in zip(*rows, strict=True)] for name, rows in ANSWERS["scores"].items()}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("aggregate", ["mean", "median", "iqm"])
def test_aggregates_equal_those_of_rliable(name: str, aggregate: str) -> None:
    found = getattr(statistics, aggregate)(SCORES[name])
    assert found == pytest.approx(ANSWERS[aggregate][name], abs=1e-12, rel=0)


@pytest.mark.parametrize(("one", "other", "expected"), ANSWERS["probability_of_improvement"])
def test_the_probability_of_improvement_equals_that_of_rliable(one: str, other: str, expected: float) -> None:
    assert statistics.improvement(SCORES[one], SCORES[other]) == pytest.approx(expected, abs=1e-12, rel=0)


@pytest.mark.parametrize("name", SCORES)
def test_performance_profiles_equal_those_of_rliable(name: str) -> None:
    found = statistics.profile(SCORES[name], np.array(ANSWERS["thresholds"]))
    assert found == pytest.approx(np.array(ANSWERS["profile"][name]), abs=1e-12, rel=0)


@pytest.mark.parametrize("name", ["small", "one task"])
def test_bootstrap_intervals_equal_those_of_rliable_but_for_their_draws(name: str) -> None:
    aggregates = (statistics.mean, statistics.median, statistics.iqm)
    for aggregate, (low, high) in zip(aggregates, ANSWERS["intervals"][name], strict=True):
        found = statistics.interval(aggregate, SCORES[name])
        assert found.low == pytest.approx(low, abs=0.03 * (high - low))
        assert found.high == pytest.approx(high, abs=0.03 * (high - low))


def test_the_interval_of_the_probability_of_improvement_equals_rliables_but_for_its_draws() -> None:
    found = statistics.interval(statistics.improvement, SCORES["better"], SCORES["small"])
    assert [found.low, found.high] == pytest.approx(ANSWERS["intervals"]["better over small"][0], abs=0.02)


def test_the_command_equals_rliable(tmp_path: Path) -> None:
    """`compare` of files of scores."""
    files = {name: str(tmp_path / f"{name}.json") for name in ("small", "better")}
    for name, file in files.items():
        Path(file).write_text(json.dumps({f"task {number}": list(task) for number, task in enumerate(SCORES[name])}))
    found = compare([*files.values()])
    for name, aggregate in itertools.product(files, ("mean", "median", "iqm")):
        assert found.runs[files[name]][aggregate]["value"] == pytest.approx(ANSWERS[aggregate][name], abs=1e-12, rel=0)
    one, other, expected = ANSWERS["probability_of_improvement"][0]
    told = found.probability_of_improvement[files[one]][files[other]]
    assert told["value"] == pytest.approx(expected, abs=1e-12, rel=0)


def test_tasks_may_have_different_numbers_of_runs() -> None:
    scores = [np.array([0.0, 2.0]), np.array([4.0])]
    assert statistics.mean(scores) == 2.5
    assert statistics.iqm(scores) == 2.0
    found = statistics.interval(statistics.mean, scores)
    assert (found.low, found.high) == (2.0, 3.0)


def test_a_single_run_has_no_interval() -> None:
    found = statistics.interval(statistics.mean, [np.array([3.0])])
    assert found == statistics.Interval(3.0, None, None)
    pair = statistics.interval(statistics.iqm_difference, [np.array([1.0])], [np.array([0.0, 1.0, 2.0])])
    assert pair == statistics.Interval(0.0, None, None)


def test_the_success_rate_has_the_interval_of_wilson() -> None:
    found = statistics.success_rate([np.array([1.0] * 8 + [0.0] * 2)], 0.5)
    z, n, p = 1.959963984540054, 10, 0.8
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert found.value == p
    assert (found.low, found.high) == pytest.approx(((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)))


def test_bootstrap_intervals_cover_the_mean_about_as_often_as_they_say() -> None:
    chance, covered = np.random.default_rng(0), 0
    for number in range(100):
        found = statistics.interval(statistics.mean, [chance.normal(5, 1, 30)], seed=number, draws=500)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 5 <= found.high
    assert 88 <= covered <= 99
