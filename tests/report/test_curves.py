"""Training curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import NoData, StorageNotFound
from offline_cli.report.curves import curves, draw_curve, main

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
