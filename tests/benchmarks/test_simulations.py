"""The simulations behind docs/scaling.md: their limits are known, and the order that streaming learns in is a shuffled one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulations.failures import conversion, training
from benchmarks.simulations.shuffle import quality, streamed


@pytest.mark.parametrize("share", [0.1, 0.01])
def test_streaming_shuffles_as_well_as_a_permutation(share: float) -> None:
    order = streamed(40_000, share)
    assert sorted(order) == list(range(40_000))
    assert quality(order) >= 0.99


def test_an_order_that_is_not_shuffled_or_in_small_windows_alone_has_no_such_quality() -> None:
    rows = np.arange(40_000)
    windows = np.concatenate([np.random.default_rng(0).permutation(part) for part in np.split(rows, 100)])
    assert quality(rows) == 0
    assert quality(windows) < 0.5


def test_another_epoch_has_another_order_of_the_same_steps() -> None:
    one, other = streamed(5_000, 0.1), streamed(5_000, 0.1, epoch=1)
    assert not np.array_equal(one, other)
    assert sorted(one) == sorted(other)


def test_without_failures_nothing_is_lost() -> None:
    found = conversion(10, 100, 60.0, node_days=1e9)
    assert (found["failures"], found["lost_share"], found["longer"]) == (0, 0, 0)
    assert training(10, 1.0, 600, 60, node_days=1e9) == {"failures_a_day": 0, "kept_share": 1}


def test_a_failure_costs_half_a_checkpoint_interval_and_the_restart_on_average() -> None:
    found = training(1_000, 2_000, 600, 60, node_days=100)
    lost = found["failures_a_day"] * (300 + 60) / 86_400
    assert 1 - found["kept_share"] == pytest.approx(lost, rel=0.05)
    assert found["failures_a_day"] == pytest.approx(10, rel=0.05)
