"""Training curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_cli.reporting.curves import draw_curve, draw_curves, mean_curve

ROWS = [
    {"update": 10, "loss": 0.7},
    {"update": 20, "loss": 0.6, "val_loss": 0.65, "eval_return_mean": 30.0, "eval_return_ci95": 4.0},
    {
        "update": 30,
        "loss": 0.5,
        "val_loss": 0.6,
        "eval_return_mean": 60.0,
        "eval_return_ci95": 3.0,
        "confirm_return_mean": 58.0,
    },
]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    draw_curve(ROWS, tmp_path / "a.png")
    draw_curve(ROWS, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_rows_still_has_a_figure(tmp_path: Path) -> None:
    draw_curve([], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_the_curve_of_several_seeds_is_their_mean_with_the_interval_of_students_t() -> None:
    seeds = [[{"update": 10, "loss": value}, {"update": 20, "loss": 1.0}] for value in (1.0, 2.0, 3.0)]
    seeds[0].append({"update": 30, "loss": 9.0})  # which the others have not reached
    found = mean_curve(seeds, "loss")
    assert found is not None
    updates, mean, half = found
    assert (updates.tolist(), mean.tolist()) == ([10, 20], [2.0, 1.0])
    assert half == pytest.approx([4.302652729911275 / 3**0.5, 0.0])  # t of 2 degrees of freedom
    assert mean_curve(seeds, "val_loss") is None


def test_runs_of_other_figures_are_drawn_together(tmp_path: Path) -> None:
    draw_curves({"one": [ROWS, ROWS], "other": [[{"update": 5, "loss": 100.0}]], "none": [[]]}, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
