"""Loading a training set goes through no more of our files than its benchmark allows."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.files_entered import CASES, PIPELINE, counted, entered, made_dataset
from offline_cli import convert
from offline_cli.parquet.shard_writing import BackgroundWriter

RECORDING = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A committed dataset."""
    return made_dataset(tmp_path_factory.mktemp("files_entered") / "D")


@pytest.mark.parametrize("name", CASES)
def test_loading_enters_no_more_files_than_it_may(name: str, source: str, tmp_path: Path) -> None:
    streaming, piped, bound = CASES[name]
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    calls = entered(source, streaming=streaming, pipeline=str(tmp_path / "pipeline.toml") if piped else None)
    assert len(calls) <= bound, sorted(calls)


def test_files_of_every_thread_are_counted(source: str) -> None:
    calls = entered(source, streaming=False, pipeline=None)
    assert {"training/training_data.py", "parquet/trust.py", "episodes/codec/batch_decoder.py"} <= calls.keys()


def test_what_runs_while_a_module_is_imported_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offline_cli.byte_sizes", raising=False)
    with counted() as calls:
        importlib.import_module("offline_cli.byte_sizes").byte_size("1MiB", option="--limit")
        importlib.reload(importlib.import_module("offline_cli.columns"))
    assert "byte_sizes.py" in calls
    assert "columns.py" not in calls


def test_a_shard_write_passes_six_files_between_the_command_and_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: set[str] = set()

    def note() -> None:
        files = (frame.filename.rpartition("offline_cli/") for frame in traceback.extract_stack())
        passed.update(name for before, _, name in files if before)

    def begin(writer: Any, *call: Any, **options: Any) -> None:
        note()  # of this thread; another one makes the call
        really_begin(writer, *call, **options)

    def write_table(writer: Any, *given: Any, **options: Any) -> None:
        note()
        really_write(writer, *given, **options)

    really_begin, really_write = BackgroundWriter.begin, pq.ParquetWriter.write_table
    monkeypatch.setattr(BackgroundWriter, "begin", begin)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)
    convert(str(RECORDING), tmp_path / "D")
    assert "parquet/shard_writing.py" in passed
    assert len(passed) <= 6, sorted(passed)
