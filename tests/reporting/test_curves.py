"""Training curves."""

from __future__ import annotations

from pathlib import Path

from offline_cli.reporting.curves import draw_curve

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
