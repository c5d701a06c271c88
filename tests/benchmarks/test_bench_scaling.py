"""Cost grows linearly: 16 times the data takes 16 times the time, and no more memory where memory is promised."""

from __future__ import annotations

import pytest

from benchmarks import scaling

PART, RUNS = 200_000, 3


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    return [*scaling.converting(folder, PART, RUNS), *scaling.training(folder, PART, RUNS)]


@pytest.mark.big
def test_convert_and_training_keep_their_pace_at_sixteen_times_the_data(rows):
    slower = {
        row.question: row.ratio for row in rows if row.target is scaling.CONSTANT and row.ratio < scaling.CONSTANT.at_least
    }
    assert not slower


@pytest.mark.big
def test_convert_keeps_its_memory_and_streaming_its_limit_at_sixteen_times_the_data(rows):
    more = {row.question: row.ratio for row in rows if row.target in (scaling.FLAT, scaling.WITHIN) and not row.met()}
    assert not more
