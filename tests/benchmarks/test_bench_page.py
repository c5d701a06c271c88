"""The page and its plot, from figures."""

from __future__ import annotations

import json

import pytest

from benchmarks import run
from benchmarks.harness import Row, machine, missing
from benchmarks.page import page, title
from benchmarks.plot import draw, shares
from benchmarks.run import QUESTIONS, main
from benchmarks.targets import Target

MACHINE = {"date": "2026-11-21", "processor": "2 cores, Q", "load": "0.1", "python": "3.11.7", "versions": "numpy 2"}


def figures(*rows):
    return {"read_episodes": {"machine": MACHINE, "rows": [row.as_dict() for row in rows]}}


def row(ratio, target, **more):
    return Row(
        "how fast", "steps/s", 2e6 * ratio, 2e6, ratio, "a rival 1.0", "36 bytes a step", 7, 1e9, (1.9, 2.1), target, **more
    )


def test_every_row_has_its_figures_rival_floor_and_target():
    text = page(figures(row(2.0, Target(1.5, words=">= 1.5x"))))
    assert "| how fast | 4e+06 steps/s | 2e+06 steps/s | 2 (1.9 to 2.1) | a rival 1.0 |" in text
    assert "| a rival 1.0 | 36 bytes a step: 1e+09 steps/s | >= 1.5x | yes |" in text
    assert "2026-11-21; 2 cores, Q, load 0.1 before; Python 3.11.7; numpy 2." in text


def test_figures_of_a_busy_machine_are_shown_as_such(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 9.0, 9.0), raising=False)
    known = {"read_episodes": {"machine": machine(), "rows": []}}
    assert "load 99.0 before" in page(known)
    assert "The machine was busy" in page(known)
    assert "The machine was busy" not in page(figures())


def test_a_missed_target_is_said_first_and_by_how_much():
    text = page(figures(row(2.0, Target(15, words=">= 15x RLlib's"))))
    assert "0 of 1 targets are met." in text
    assert "- missed: how fast: 2 where 15 was to be reached (>= 15x RLlib's)" in text
    assert "**no**" in text


def test_a_target_on_our_own_figure_is_told_in_its_unit():
    text = page(figures(row(2.0, Target(5e6, of="ours", words=">= 5 M"))))
    assert "4e+06 steps/s where 5e+06 steps/s was to be reached" in text


def test_what_was_not_measured_is_in_the_table_with_its_reason():
    text = page(figures(missing("on the GPU", "no CUDA device", unit="updates/s", target=Target(1, words="fast"))))
    assert "| on the GPU | not measured: no CUDA device |" in text
    assert "- not measured: on the GPU (fast): no CUDA device" in text


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_is_a_file_that_asks_it(name):
    assert title(name).endswith("?")
    assert " " in title(name)


def test_the_plot_has_the_rows_that_have_a_target_and_a_figure(tmp_path):
    known = figures(row(2.0, Target(4.0)), row(3.0, Target(None)), missing("q", "why", target=Target(1)))
    assert shares(known) == [("how fast", 0.5)]
    draw(known, tmp_path / "plot.svg")
    assert "how fast" in (tmp_path / "plot.svg").read_text()


def test_the_same_figures_give_the_same_plot(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(figures(row(2.0, Target(4.0))), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_run_keeps_the_rows_of_questions_that_it_was_not_asked(tmp_path, monkeypatch):
    old = {"update_bc": {"machine": MACHINE, "rows": [row(1.0, Target(1.0)).as_dict()]}}
    (tmp_path / "latest.json").write_text(json.dumps(old))
    monkeypatch.setattr(run, "answered", lambda name: figures(row(2.0, Target(1.5)))[name])
    main(["read_episodes", "--out", str(tmp_path)])
    known = json.loads((tmp_path / "latest.json").read_text())
    assert set(known) == {"update_bc", "read_episodes"}
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.index("How fast are packed episodes read") < text.index("What does one update cost")
    assert (tmp_path / "benchmarks.svg").exists()


def test_rows_from_before_there_were_targets_are_measured_again_rather_than_shown(tmp_path, monkeypatch):
    (tmp_path / "latest.json").write_text(
        json.dumps({"update_bc": {"machine": MACHINE, "rows": [{"question": "q", "ratio": 1}]}})
    )
    monkeypatch.setattr(run, "answered", lambda name: figures(row(2.0, Target(1.5)))[name])
    main(["read_episodes", "--out", str(tmp_path)])
    assert "What does one update cost" not in (tmp_path / "benchmarks.md").read_text()


def test_an_unknown_question_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(SystemExit):
        main(["no_such_question", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
