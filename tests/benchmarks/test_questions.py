"""Each question of `make bench` gives rows on tiny data, and the page shows them; a row whose rival is missing says so."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import files_entered, gpu, page, run, train_streaming, update_and_cold_start
from benchmarks.harness import Floor, Rival, Row, missing, paired

SLOW = ("record", "start", "train_streaming", "update_and_cold_start")  # whole processes, and episodes by 64 environments
IN_PROCESS = [name for name in run.QUESTIONS if name not in SLOW]


@pytest.fixture(autouse=True)
def no_rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environments of rivals are not looked for, wherever they are."""
    monkeypatch.setenv("OFFLINE_CLI_BENCH_RIVALS", str(tmp_path / "none"))


def test_the_questions_are_those_that_are_there() -> None:
    files = {file.stem for file in Path(run.__file__).parent.glob("*.py")}
    assert {name for name in files if hasattr(importlib.import_module(f"benchmarks.{name}"), "rows")} == set(run.QUESTIONS)


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_question_gives_rows_or_names_the_rival_that_is_missing(name: str) -> None:
    rows = run.answered(name, small=True)["rows"]
    assert rows
    for row in rows:
        assert row["ours"] or "not installed" in row["not_measured"] or "not on this machine" in row["not_measured"]


def test_an_update_is_compared_with_a_bare_loop() -> None:
    row = update_and_cold_start.update(pairs=1, times=1)
    assert row.ours
    assert row.rival


def test_data_for_streaming_are_whole_episodes_of_the_length_that_is_asked_for() -> None:
    batches = list(train_streaming.made(1000))
    assert [(len(batch), batch.num_steps) for batch in batches] == [(5, 1000)]


@pytest.mark.integration
@pytest.mark.parametrize("name", SLOW)
def test_a_question_that_takes_longer_gives_rows(name: str) -> None:
    test_a_question_gives_rows_or_names_the_rival_that_is_missing(name)


@pytest.mark.parametrize("name", ["small_update"])
def test_the_steps_of_a_question_about_the_gpu_run(name: str) -> None:
    row = gpu.QUESTIONS[name](1)  # type: ignore[call-arg]  # of so many steps; where there is no GPU, on the processor
    assert row.ours
    assert row.rival


# ---- harness ----


def test_a_ratio_is_the_median_of_the_pairs_after_a_warm_up() -> None:
    ours, rival = iter([1.0, 2.0, 6.0, 4.0]), iter([1.0, 1.0, 2.0, 1.0])
    row = paired("q", lambda: next(ours), lambda: next(rival), unit="x/s", rival_name="r", floor=Floor(3), pairs=3)
    assert (row.ours, row.rival, row.ratio, row.met()) == (4.0, 1.0, 3.0, True)


def test_a_floor_is_held_or_not_or_unknown() -> None:
    floor = Floor(2.0, of="ours")
    assert [Row("q", "x/s", ours, None, None, "", 1, floor=floor).met() for ours in (2.0, 1.9)] == [True, False]
    assert missing("q", "no data", floor=floor).met() is None


def test_a_rival_answers_from_a_process_of_its_own_and_its_failure_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rivals").mkdir()
    serving = Path(run.__file__).parent / "rivals" / "serving.py"
    (tmp_path / "rivals" / "serving.py").write_text(serving.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "rivals" / "one.py").write_text(
        "from serving import serve\ndef prepare(amount):\n    return lambda: 1 / amount\nserve(prepare, 'numpy')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("benchmarks.harness.HERE", tmp_path)
    with Rival("one.py", python=sys.executable, amount=2) as rival:
        assert rival.versions.startswith("numpy ")
        assert rival() > 0
    with pytest.raises(Exception, match="ZeroDivisionError"), Rival("one.py", python=sys.executable, amount=0):
        pass


# ---- files and page ----


def test_a_question_that_is_not_asked_keeps_its_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = Row("how fast", "x/s", 2.0, 1.0, 2.0, "r", 1, floor=Floor(3, words=">= 3x")).as_dict()
    about = {"date": "2026-01-01", "processor": "p", "load": "0", "busy": "", "python": "3", "versions": "v"}
    known = {"operations": {"machine": about, "rows": [row]}}
    (tmp_path / "latest.json").write_text(json.dumps(known), encoding="utf-8")
    answer: dict[str, Any] = {"machine": about, "rows": [missing("gone", "no data").as_dict()]}
    monkeypatch.setattr(run, "answered", lambda name, *, small: answer)
    run.main(["pipeline", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "latest.json").read_text(encoding="utf-8")) == known | {"pipeline": answer}
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "0 of 1 floors are held" in text
    assert "not measured: no data" in text


def test_what_a_gpu_measured_is_taken_into_the_page(tmp_path: Path) -> None:
    about = {"date": "2026-01-01", "processor": "p", "load": "0", "busy": "", "python": "3", "versions": "v", "gpu": "a card"}
    measured = {"machine": about, "rows": [missing("samples", "failed").as_dict()], "tests": "3 passed", "failed": {}}
    (tmp_path / "gpu.json").write_text(json.dumps(measured), encoding="utf-8")
    run.main(["--gpu", str(tmp_path / "gpu.json"), "--out", str(tmp_path)])
    assert "a card" in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_figures_say() -> None:
    latest = json.loads((Path(run.__file__).parent / "latest.json").read_text(encoding="utf-8"))
    assert (Path(run.__file__).parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page.page(latest)


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "_card", lambda: "")
    assert gpu.main(["--out", str(tmp_path)]) == gpu.NO_GPU
    assert not list(tmp_path.iterdir())


def test_files_that_loading_enters_are_counted(tmp_path: Path) -> None:
    calls = files_entered.entered(files_entered.made_dataset(tmp_path / "D"), streaming=False, pipeline=None)
    assert {"training/training_data.py", "episodes/codec/unpack.py"} <= calls.keys()
