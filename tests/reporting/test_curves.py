"""Training curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_cli.reporting.curves import draw_curves, mean_curve, panels, plotly_curves

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
    draw_curves([("", [ROWS])], tmp_path / "a.png", until_return=50)
    draw_curves([("", [ROWS])], tmp_path / "b.png", until_return=50)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_rows_still_has_a_figure(tmp_path: Path) -> None:
    draw_curves([("", [[]])], tmp_path / "a.png")
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


def test_a_panel_without_names_is_drawn_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    draw_curves([("", [[{"update": 1, "q_loss": 2.0}, {"update": 2, "q_loss": 1.0}]])], tmp_path / "a.png")
    assert not recwarn.list


def test_the_legend_names_the_band() -> None:
    seeds = [[{"update": 1, "loss": value}, {"update": 2, "loss": 1.0}] for value in (1.0, 2.0, 3.0)]
    bands = {count: panels([("a", seeds[:count])])[0].band for count in (1, 2, 3)}
    assert len({*bands.values()}) == 3
    assert bands[1] == ""  # a loss of one run has no interval
    assert "t interval" in bands[3]


def test_runs_of_other_figures_are_drawn_together(tmp_path: Path) -> None:
    draw_curves([("one", [ROWS, ROWS]), ("other", [[{"update": 5, "loss": 100.0}]]), ("none", [[]])], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_the_band_of_one_run_is_the_interval_of_its_checks() -> None:
    found = mean_curve([ROWS], "eval_return_mean")
    assert found is not None
    assert [one.tolist() for one in found] == [[20, 30], [30.0, 60.0], [4.0, 3.0]]


def test_a_run_keeps_its_colour_in_every_panel() -> None:
    runs: list[tuple[str, list[list[dict[str, Any]]]]] = [
        ("no return", [[{"update": 1, "loss": 1.0}]]),
        ("both", [ROWS]),
        ("none", [[]]),
        ("last", [ROWS]),
    ]
    shades: dict[str, set[str]] = {}
    for _, drawn in plotly_curves(runs):
        for trace in drawn["data"]:
            if "name" in trace:
                shades.setdefault(trace["name"].partition(",")[0], set()).add(trace["line"]["color"])
    assert all(len(one) == 1 for one in shades.values())
    assert len(set.union(*shades.values())) == len(shades) == 3


def test_one_loss_in_the_thousands_flattens_no_other() -> None:
    def rows(**losses: float) -> list[dict[str, float]]:
        return [{"update": update, **{name: value / update for name, value in losses.items()}} for update in (1, 2, 3)]

    (loss,) = panels([("small", [rows(loss=0.5)]), ("large", [rows(loss=5000.0)])])
    assert loss.scale == "log"
    (mixed,) = panels([("small", [rows(loss=-0.5)]), ("large", [rows(loss=5000.0)])])
    assert mixed.scale == "symlog"
    of_one = panels([("cql", [rows(loss=5000.1, critic_loss=5000.0, actor_loss=0.1)])])
    assert [(panel.title, panel.scale) for panel in of_one] == [
        ("loss", "linear"), ("actor loss", "linear"), ("critic loss", "linear"),
    ]  # fmt: skip


def test_a_wide_interval_of_few_seeds_does_not_flatten_their_mean() -> None:
    seeds = [[{"update": update, "eval_return_mean": update + apart} for update in (1, 2, 3)] for apart in (0, 2, 4)]
    (panel,) = panels([("three", seeds)])
    assert panel.lines[0].half.min() > 4
    assert panel.limits == pytest.approx((0.9, 7.1))  # the means, 3 to 5, and as much again
    assert panel.named(panel.lines[0]) == "three 5 [0.03172, 9.968]"  # which the limits cut
    (whole,) = panels([("two", seeds[:2])])
    assert whole.named(whole.lines[0]) == "two"


def test_a_long_run_is_thinned_and_keeps_its_ends_and_spikes() -> None:
    rows = [{"update": update, "loss": 9.0 if update == 12_345 else 1 / update} for update in range(1, 20_001)]
    ((_, drawn),) = plotly_curves([("long", [rows])])
    ((panel,), (trace,)) = panels([("long", [rows])]), drawn["data"]
    (line,) = panel.lines
    assert len(line.x) <= 1000
    assert (line.x[0], line.x[-1], line.x[line.mean.argmax()]) == (1, 20_000, 12_345)
    assert len(json.dumps(trace)) < 20_000


def test_the_band_of_two_seeds_is_from_one_to_the_other() -> None:
    found = mean_curve([[{"update": 1, "loss": loss}] for loss in (1.0, 2.0)], "loss")
    assert found is not None
    assert [one.tolist() for one in found] == [[1], [1.5], [0.5]]
