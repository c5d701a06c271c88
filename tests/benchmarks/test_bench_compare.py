"""What counts as a change between two files of figures."""

from __future__ import annotations

import json

import pytest

from benchmarks.compare import changes, main
from benchmarks.harness import Row, missing
from benchmarks.targets import NO_TARGET, Target


def figures(*rows):
    return {"q": {"machine": {}, "rows": [row.as_dict() for row in rows]}}


def row(ratio, spread=None, target=NO_TARGET, rival="RLlib (ray 2.60.0)"):
    return Row("how fast", "steps/s", ratio, 1.0, ratio, rival, "", 7, None, spread, target)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (row(2.0, (1.9, 2.1)), row(3.0, (2.9, 3.1)), "better"),
        (row(2.0, (1.9, 2.1)), row(1.5, (1.4, 1.6)), "worse"),
        (row(2.0, (1.5, 2.6)), row(2.4, (2.0, 3.0)), "same"),
        (row(2.0, (2.0, 2.0)), row(2.08, (2.08, 2.08)), "same"),
        (row(2.0), row(4.0), "better"),
    ],
)
def test_a_change_counts_beyond_noise_and_where_the_pairs_do_not_meet(old, new, words):
    (change,) = changes(figures(old), figures(new))
    assert change.words == words
    assert change.ratio == pytest.approx(new.ratio / old.ratio)


def test_a_rivals_new_version_is_the_same_row():
    (change,) = changes(figures(row(2.0)), figures(row(2.0, rival="RLlib (ray 2.61.0)")))
    assert change.words == "same"


def test_another_rival_is_another_row():
    found = changes(figures(row(2.0)), figures(row(2.0, rival="Minari")))
    assert [change.words for change in found] == ["new", "gone"]


def test_what_could_not_be_measured_on_either_machine_is_no_change():
    gpu = figures(missing("on the GPU", "no CUDA device"))
    assert [change.words for change in changes(gpu, gpu)] == ["same"]


def test_a_lost_target_is_shown_and_fails_the_comparison(tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(figures(row(2.0, target=Target(1.5)))))
    new.write_text(json.dumps(figures(row(1.0, target=Target(1.5)))))
    assert main([str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert " worse  2 -> 1 (0.50x)  how fast | RLlib  TARGET LOST" in said
    assert "0 of 1 rows as before" in said
    assert main([str(new), str(old)]) == 0


def test_figures_of_before_there_were_targets_can_be_compared(tmp_path):
    old = figures(row(2.0))
    for key in ("target", "spread", "met", "not_measured", "floor_rate"):
        del old["q"]["rows"][0][key]
    assert [change.words for change in changes(old, figures(row(4.0)))] == ["better"]


def test_two_files_are_asked_for(capsys):
    assert main(["one.json"]) == 2
    assert "usage" in capsys.readouterr().err
