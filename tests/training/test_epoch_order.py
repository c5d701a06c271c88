"""The order of epochs: what earlier runs learned in, drawn once for each epoch."""

from __future__ import annotations

from offline_cli.training.loader import EpochOrder, of_window


def test_a_seed_gives_the_orders_that_it_gave_to_runs_before() -> None:
    order = EpochOrder(3)
    assert order.of_steps(0, 6).tolist() == [4, 1, 2, 3, 5, 0]
    assert order.of_steps(2, 6).tolist() == [0, 1, 3, 2, 4, 5]
    assert order.of_pool(5, 6).tolist() == [0, 3, 1, 4, 2, 5]
    assert of_window(3, 1, 6).tolist() == [3, 0, 4, 2, 5, 1]
    plan = order.plan(1, steps=23, unit=5, units_per_pool=2)
    assert (plan.units.tolist(), plan.starts.tolist()) == ([4, 2, 3, 0, 1], [0, 8, 18])
