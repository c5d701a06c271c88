"""A command that fails while its sources are being read ends with its exit code, and never by a signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import failing_exits
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
FILES, ROWS = 24, 100


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings in many small files: actions of unknown scale; observations of 3 and of 2 numbers."""
    folder, rng = tmp_path_factory.mktemp("recordings"), np.random.default_rng(0)
    for name, width in (("three", 3), ("two", 2)):
        (folder / name).mkdir()
        for number in range(FILES):
            values = pa.array(rng.normal(size=ROWS * width).astype(np.float32))
            columns = {
                "eps_id": [f"{name}-{number}"] * ROWS,
                "obs": pa.FixedSizeListArray.from_arrays(values, width),
                "actions": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=ROWS).astype(np.float32)), 1),
                "rewards": rng.normal(size=ROWS),
                "terminateds": np.arange(ROWS) == ROWS - 1,
                "truncateds": np.zeros(ROWS, np.bool_),
            }
            pq.write_table(pa.table(columns), folder / name / f"{number:02}.parquet")
    return folder


def exit_codes(times: int, *words: str | Path) -> dict[str, int]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, failing_exits.__file__, str(times), *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    codes: dict[str, int] = json.loads(done.stdout)
    return codes


@pytest.mark.integration
@pytest.mark.parametrize("times", [2, pytest.param(25, marks=pytest.mark.nightly)])
class TestExitCodes:
    def test_a_recording_without_a_declared_action_scale_is_4_each_time(
        self, recordings: Path, tmp_path: Path, times: int
    ) -> None:
        codes = exit_codes(times, "train-bc", recordings / "three", "--out", tmp_path / "run")
        assert codes == {"4": times}

    def test_two_sources_of_different_spaces_are_3_each_time(self, recordings: Path, tmp_path: Path, times: int) -> None:
        codes = exit_codes(times, "convert", recordings / "three", recordings / "two", "--out", tmp_path / "D")
        assert codes == {"3": times}
