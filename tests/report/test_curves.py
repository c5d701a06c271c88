"""Training curves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from offline_cli.report.curves import _figure, draw_curve

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


def test_returns_make_a_second_panel(tmp_path: Path) -> None:
    draw_curve(ROWS[:1], tmp_path / "loss.png")
    draw_curve(ROWS, tmp_path / "both.png")
    heights = [int.from_bytes((tmp_path / name).read_bytes()[20:24], "big") for name in ("loss.png", "both.png")]
    assert heights[0] < heights[1]


def test_only_returns_have_a_band_and_it_is_their_confidence_interval() -> None:
    rows = [{"update": n, "loss": 0.7, "val_loss": 0.6, "val_accuracy": 0.9} for n in (1, 2)]
    losses, scores = _figure(rows, None).axes
    assert not losses.collections
    assert not scores.collections
    _, returns = _figure(ROWS, None).axes
    heights = returns.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (26.0, 63.0)


def test_a_wanted_return_is_a_dashed_line_within_the_picture() -> None:
    _, returns = _figure(ROWS, 450.0).axes
    dashed = [line for line in returns.lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in dashed] == [[450.0, 450.0]]
    assert returns.get_ylim()[1] > 450.0


def test_one_row_is_a_visible_point() -> None:
    assert _figure(ROWS[:1], None).axes[0].lines[0].get_marker() == "o"


def test_a_run_without_rows_still_has_a_figure(tmp_path: Path) -> None:
    draw_curve([], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_matplotlib_waits_until_a_figure_is_wanted() -> None:
    program = "import sys, offline_cli.report.curves; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2]).returncode == 0
