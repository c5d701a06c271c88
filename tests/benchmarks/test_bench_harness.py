"""Pairs, ratios, targets and floors: the arithmetic behind every figure."""

from __future__ import annotations

from itertools import count

import pytest

from benchmarks import floors
from benchmarks.floors import Floor
from benchmarks.harness import missing, paired, paired_rates, timed
from benchmarks.targets import Target


def rates(*values):
    given = iter(values)
    return lambda: next(given)


def test_the_ratio_is_the_median_of_the_pairs_ratios_and_not_the_ratio_of_the_medians():
    row = paired_rates(
        "q", unit="steps/s", ours=rates(1, 10, 20, 90), rival=rates(1, 1, 10, 10), rival_name="r", pairs=3, warm_ups=1
    )
    assert (row.ours, row.rival, row.ratio) == (20, 10, 9)


def test_ours_and_the_rival_take_turns():
    turns = []
    paired_rates(
        "q", unit="x/s", ours=lambda: turns.append("o") or 1.0, rival=lambda: turns.append("r") or 1.0, rival_name="", pairs=2
    )
    assert "".join(turns) == "ororor"


def test_the_first_pair_warms_up_and_does_not_count():
    row = paired_rates("q", unit="x/s", ours=rates(1e9, 2, 2, 2), rival=rates(1, 1, 1, 1), rival_name="", pairs=3)
    assert row.ratio == 2


def test_the_spread_is_that_of_the_middle_half_of_the_pairs():
    row = paired_rates("q", unit="x/s", ours=rates(1, 1, 2, 3, 4, 99), rival=lambda: 1.0, rival_name="", pairs=5, warm_ups=1)
    assert row.spread == (2, 4)


def test_a_rate_is_what_a_call_does_over_the_time_that_it_takes(monkeypatch):
    clock = count(0, 4)
    monkeypatch.setattr("benchmarks.harness.time.perf_counter", lambda: next(clock))
    assert timed(lambda: None, 100)() == 25


def test_calls_of_this_process_are_measured_with_the_amount_that_both_do():
    row = paired("q", amount=5, unit="steps/s", ours=lambda: 1, rival=lambda: 2, rival_name="r", pairs=1)
    assert row.ours > 0
    assert row.ratio == pytest.approx(row.ours / row.rival)


@pytest.mark.parametrize(
    ("target", "met"),
    [(Target(2.0), True), (Target(2.1), False), (Target(10, of="ours"), True), (Target(11, of="ours"), False)],
)
def test_a_target_bounds_the_ratio_or_our_own_figure(target, met):
    row = paired_rates("q", unit="x/s", ours=lambda: 10.0, rival=lambda: 5.0, rival_name="", target=target, pairs=1)
    assert row.met() is met
    assert row.as_dict()["met"] is met


def test_a_row_without_target_is_neither_met_nor_missed():
    assert paired_rates("q", unit="x/s", ours=lambda: 1.0, rival=lambda: 1.0, rival_name="", pairs=1).met() is None


def test_what_cannot_be_measured_keeps_its_place_and_says_why():
    row = missing("q", "no CUDA device", unit="updates/s", target=Target(1))
    assert row.as_dict()["not_measured"] == "no CUDA device"
    assert row.met() is None


def test_a_floor_of_bytes_is_the_bandwidth_over_them(monkeypatch):
    monkeypatch.setattr(floors, "memory_bandwidth", lambda: 8e9)
    assert floors.bytes_floor(16, "step") == Floor("16 bytes a step, copied once at 8.0 GB/s", 5e8)


def test_a_floor_of_operations_is_the_rate_over_them(monkeypatch):
    monkeypatch.setattr(floors, "matmul_rate", lambda threads: 50e9 * threads)
    assert floors.work_floor(1e9, "update", threads=2) == Floor("1 GFLOP a update at 100 GFLOP/s (2 threads)", 100)
