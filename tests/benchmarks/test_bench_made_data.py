"""The larger files that questions about small recordings are asked of, and the small questions' own helpers."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.made_data import packed_columns, sample_batches
from benchmarks.measured_call import measured
from benchmarks.read_episodes import episodes
from benchmarks.read_minari import read, written
from benchmarks.scaling import STREAMING, limit_row, memory_row, rate_row
from offline_cli import inspect
from offline_cli.converting.reading import read_episodes


def test_copies_of_packed_columns_have_ids_of_their_own(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"eps_id": ["a", "a", "b"], "obs": ["x", "y", "z"]}), tmp_path / "in" / "1.parquet")
    files = packed_columns(tmp_path / "in", tmp_path, copies=4, files=2)
    made = pa.concat_tables(map(pq.read_table, files))
    assert made.num_rows == 12
    assert len(set(made["eps_id"].to_pylist())) == 8
    assert made["obs"].to_pylist() == ["x", "y", "z"] * 4


def test_copies_of_sample_batches_are_whole_episodes_of_their_own(tmp_path, real_data):
    (source,) = (real_data / "sample_batch_cartpole_plain").glob("*.json")
    steps = sample_batches(source, tmp_path / "made.json", copies=2)
    once = sum(len(batch) for batch in read_episodes([str(source)]))
    stream = read_episodes([str(tmp_path / "made.json")])
    batches = list(stream)
    assert sum(batch.num_steps for batch in batches) == steps
    assert sum(len(batch) for batch in batches) == 2 * once
    assert json.loads((tmp_path / "made.json").read_text().splitlines()[0])["type"] == "MultiAgentBatch"


def test_the_steps_that_are_written_are_read_again(tmp_path):
    written(episodes(5, 3), tmp_path / "D")
    assert read(tmp_path / "D") == 15
    assert inspect(str(tmp_path / "D")).steps == 15


@pytest.mark.nightly
def test_a_call_in_a_process_of_its_own_gives_its_seconds_memory_and_result(tmp_path):
    written(episodes(5, 3), tmp_path / "D")
    figures = measured("inspect", str(tmp_path / "D"))
    assert figures["result"]["steps"] == 15
    assert figures["seconds"] > 0
    assert figures["peak"] > 20e6  # bytes: the interpreter and numpy alone take more


@pytest.mark.nightly
def test_memory_counts_the_call_and_not_what_started_it(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.measured_call import peak; print(peak())"
    ballast = bytearray(300_000_000)
    root = str(__import__("benchmarks").__path__[0]) + "/.."
    done = subprocess.run([sys.executable, "-c", code, root], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 200e6 < len(ballast)


def test_growth_is_told_as_what_is_kept_at_sixteen_times_the_data():
    figures = {1: (100.0, 200 * 2**20), 4: (95.0, 200 * 2**20), 16: (90.0, 400 * 2**20)}
    assert rate_row("convert", figures, 10, 3).met() is True
    assert rate_row("convert", figures, 10, 3).ratio == pytest.approx(0.9)
    assert memory_row("convert", figures, 10, 3).met() is False
    assert memory_row("convert", figures, 10, 3).ratio == pytest.approx(0.5)


def test_memory_is_held_against_the_limit_of_the_run():
    figures = {size: (1.0, size / 16 * 2 * STREAMING) for size in (1, 4, 16)}
    assert limit_row("stream", figures, STREAMING, 3).met() is False
    assert limit_row("stream", {**figures, 16: (1.0, STREAMING - 1.0)}, STREAMING, 3).met() is True
