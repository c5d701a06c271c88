"""Training curves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import NoData, StorageNotFound
from offline_cli.report.curves import _figure, _figure_of_runs, _labels, curves, draw_curve, main

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


# ---- several ----

SEVERAL = [
    {"update": 10, "loss": 3.0, "q_loss": 2.0, "policy_loss": 1.0, "eval_return_mean": 5.0, "eval_return_ci95": 1.0},
    {"update": 20, "loss": 2.5, "q_loss": 2.0, "policy_loss": 0.5},
]


def run_of(folder: Path, rows: Sequence[Mapping[str, Any]], tail: bytes = b"") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    (folder / "metrics.jsonl").write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode() + tail)
    return folder


def test_the_losses_of_an_algorithm_have_a_panel_by_their_names() -> None:
    figure = _figure(SEVERAL, None)
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss, all added", "return", "losses"]
    assert [line.get_label() for line in figure.axes[-1].lines] == ["policy", "q"]


def test_several_runs_share_a_panel_for_each_figure_that_one_of_them_has() -> None:
    figure = _figure_of_runs({"cloned": ROWS, "valued": SEVERAL}, 450.0)
    shown = {axes.get_ylabel(): {line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in figure.axes}
    assert list(shown) == ["loss", "held-out loss", "return", "loss: policy", "loss: q"]
    assert shown["loss"] == {"cloned": [0.7, 0.6, 0.5], "valued": [3.0, 2.5]}
    assert shown["held-out loss"] == {"cloned": [0.65, 0.6]}
    assert shown["return"] == {"cloned": [30.0, 60.0], "valued": [5.0], "target 450": [450.0, 450.0]}
    assert shown["loss: q"] == {"valued": [2.0, 2.0]}


def test_runs_are_called_by_what_distinguishes_them(tmp_path: Path) -> None:
    from offline_cli.files.locations import open_location

    places = [open_location(str(tmp_path / name)) for name in ("a/run", "b/run", "b/run2")]
    assert _labels(places) == ["a/run", "b/run", "b/run2"]
    assert _labels(places[1:]) == ["run", "run2"]
    same = _labels([places[0], places[0]])
    assert len(set(same)) == 2


def test_the_command_draws_runs_and_tells_their_last_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of(tmp_path / "one", ROWS), run_of(tmp_path / "two", SEVERAL)]
    words = [*map(str, runs), "--out", str(tmp_path / "both.png")]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["update"], one["loss"]) for one in told["runs"]] == [(30, 0.5), (20, 2.5)]
    assert told["runs"][1]["eval_return_mean"] == 5.0
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    assert "loss 0.5" in capsys.readouterr().out


def test_rows_that_cannot_be_read_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(tmp_path / "one", ROWS, b'{"update": 40, "lo\n[]\n')
    assert curves([run], tmp_path / "c.png")[0]["update"] == 30
    assert "2 rows" in caplog.text


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    empty = run_of(tmp_path / "empty", [])
    for place, kind in ((tmp_path / "folder", NoData), (tmp_path / "gone", StorageNotFound), (empty, NoData)):
        with pytest.raises(kind):
            curves([place], tmp_path / "c.png")
    assert main([str(empty), "--out", str(tmp_path / "c.png")]) == NoData.exit_code
    assert "no row of metrics yet" in capsys.readouterr().err
    assert not (tmp_path / "c.png").exists()
