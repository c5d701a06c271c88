"""`curves`: one figure of several runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rides import Run
from typer.testing import CliRunner

from offline_cli.cli.app import app


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_of_the_kind_that_its_name_says(kind: str, start: bytes, run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["curves", run("a", [2, 1]), "-o", str(tmp_path / f"f.{kind}")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"f.{kind}").read_bytes().startswith(start)


def test_runs_that_differ_in_the_seed_alone_are_one_line(run: Run, tmp_path: Path) -> None:
    runs = [
        run("bc/seed-0", [3, 1], seed=0, lr=1),
        run("bc/seed-7", [2, 1], seed=7, lr=1),
        run("iql", [3, 2], lr=2),
        run("other", [1], lr=2, agent="hunter"),
    ]
    done = CliRunner().invoke(app, ["curves", str(Path(runs[0]).parent), *runs[2:], "-o", str(tmp_path / "f.svg"), "--json"])
    told = json.loads(done.stdout)
    assert (told["runs"], told["groups"]) == (4, ["bc (2 seeds)", "iql", "other"])


def test_a_folder_of_runs_and_of_folders_of_seeds_has_them_all(run: Run, tmp_path: Path) -> None:
    for place, kind in (("runs/bc", 1), ("runs/iql/seed-0", 2), ("runs/iql/seed-1", 2)):
        run(place, [3, 1], lr=kind)
    done = CliRunner().invoke(app, ["curves", str(tmp_path / "runs"), "-o", str(tmp_path / "f.svg"), "--json"])
    assert json.loads(done.stdout)["groups"] == ["runs/bc", "runs/iql (2 seeds)"]


def test_runs_of_several_agents_have_a_line_each(run: Run, tmp_path: Path) -> None:
    for agent in ("hunter", "runner"):
        for seed in (0, 1):
            run(f"game/{agent}-{seed}", [3, 2], seed=seed, agent=agent)
    for given, names in (
        ([str(tmp_path / "game")], ["game/hunter (2 seeds)", "game/runner (2 seeds)"]),
        ([f"{name}={tmp_path / 'game' / name}-0" for name in ("hunter", "runner")], ["hunter", "runner"]),
    ):
        done = CliRunner().invoke(app, ["curves", *given, "-o", str(tmp_path / "f.svg"), "--overwrite", "--json"])
        assert json.loads(done.stdout)["groups"] == names


def test_one_run_for_two_agents_has_two_names(run: Run, tmp_path: Path) -> None:
    place = run("shared", [3, 2], lr=1)
    done = CliRunner().invoke(app, ["curves", f"a={place}", f"b={place}", "-o", str(tmp_path / "f.svg"), "--json"])
    assert json.loads(done.stdout)["groups"] == ["a", "b"]


def test_runs_of_one_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    places = [run("bc/run", [3, 2], lr=1), run("iql/run", [3, 2], lr=2)]
    done = CliRunner().invoke(app, ["curves", *places, "-o", str(tmp_path / "f.svg"), "--json"])
    assert json.loads(done.stdout)["groups"] == ["bc/run", "iql/run"]


def test_runs_on_other_data_are_no_seeds_of_each_other(run: Run, tmp_path: Path) -> None:
    runs = [run(f"r{number}", [2, 1], seed=number, lr=1) for number in range(3)]
    for place, data in zip(runs, ("good", "good", "bad"), strict=True):
        Path(place, "state.json").write_text(json.dumps({"seen": {"sources": data}}), encoding="utf-8")
    done = CliRunner().invoke(app, ["curves", *runs, "-o", str(tmp_path / "f.svg"), "--json"])
    assert json.loads(done.stdout)["groups"] == ["r (2 seeds)", "r2"]


def test_another_kind_of_file_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["curves", run("a", [1]), "-o", str(tmp_path / "f.docx")]).exit_code == 2


def test_a_folder_without_metrics_is_no_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["curves", str(tmp_path), "-o", str(tmp_path / "f.svg"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["where"]) == (3, str(tmp_path))


def test_a_torn_last_row_is_left_out_and_another_is_an_error(run: Run, tmp_path: Path) -> None:
    place = Path(run("killed", [2, 1]))
    metrics = place / "metrics.jsonl"
    metrics.write_text(metrics.read_text(encoding="utf-8") + '{"update": 30, "lo', encoding="utf-8")
    done = CliRunner().invoke(app, ["curves", str(place), "-o", str(tmp_path / "f.svg")])
    assert done.exit_code == 0, done.output
    metrics.write_text(metrics.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["curves", str(place), "-o", str(tmp_path / "g.svg"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["where"]) == (3, str(place))


@pytest.mark.parametrize(("command", "usage"), [("curves", " RUN... "), ("report", " [SRC]... ")])
def test_the_help_shows_that_an_argument_repeats(command: str, usage: str) -> None:
    assert usage in CliRunner().invoke(app, [command, "-h"]).output


def test_names_of_runs_are_text_in_a_figure(run: Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["curves", run("_$x^{2}$ <script>", [1, 2]), "-o", str(tmp_path / "f.svg")])
    assert done.exit_code == 0, done.output
    assert "<script" not in (tmp_path / "f.svg").read_text(encoding="utf-8")
