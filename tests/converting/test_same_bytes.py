"""Same input and options, same `data/`: names and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offline_cli.converting.convert import convert

LINES = Path(__file__).resolve().parents[1] / "testdata" / "sample_batch"
SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"


def contents(dataset: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((dataset / "data").iterdir())}


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_a_source_that_lies_elsewhere_gives_the_same_files(to: str, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "elsewhere")
    for source, out in ((SAMPLE, "A"), (tmp_path / "elsewhere", "B")):
        convert([str(source)], str(tmp_path / out), to=to, max_rows_per_file=4000 if to == "columns" else 7)
    assert len(contents(tmp_path / "A")) > 1
    assert contents(tmp_path / "A") == contents(tmp_path / "B")


@pytest.mark.parametrize("workers", [1, 7])
def test_the_number_of_workers_changes_no_byte(workers: int, tmp_path: Path) -> None:
    convert([str(SAMPLE)], str(tmp_path / "A"))
    convert([str(SAMPLE)], str(tmp_path / "B"), workers=workers)
    assert contents(tmp_path / "A") == contents(tmp_path / "B")


def test_the_number_of_processes_that_read_lines_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.engines.processes.WORTH", 0)
    monkeypatch.setattr("offline_cli.engines.processes.processors", lambda: 3)
    monkeypatch.setattr("offline_cli.formats.sample_batch.files.TOGETHER_BYTES", 1)
    files = [str(LINES / name) for name in ("many_lines.json", "cut_in_the_middle.json")]
    results = {}
    for workers in (1, 2, 3):
        out = str(tmp_path / f"{workers}")
        results[workers] = convert(files, out, workers=workers, on_error="quarantine").as_dict()
        assert contents(tmp_path / f"{workers}") == contents(tmp_path / "1")
    kept = [{key: value for key, value in each.items() if key not in ("out", "seconds")} for each in results.values()]
    assert kept[0] == kept[1] == kept[2]
