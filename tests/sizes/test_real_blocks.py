"""Files as large as those that users have, in blocks as large as they are read in, with faults at the borders of these."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from made_recordings import read
from spoiling import lost_beside, spoil_lines

LENGTH = 200
MB = 10**6
MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "y"]
actions = "push"
dones = "end"
"""
ROWS = 400_000
SHORT = (2, 99_999, 205_000, 305_000, ROWS - 1)  # of 400,000 rows


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of 10 MB: 400,000 rows in episodes of 200."""
    path, rows = tmp_path_factory.mktemp("rides") / "rides.csv", np.arange(ROWS)
    columns = {"ride": rows // LENGTH, "step": rows % LENGTH, "x": rows % 977 / 8, "y": rows % 64 / 4, "push": rows % 2}
    pyarrow.csv.write_csv(pa.table({**columns, "end": (rows % LENGTH == LENGTH - 1).astype(np.int8)}), path)
    assert 8 * MB < path.stat().st_size < 14 * MB, path.stat().st_size
    (path.parent / "rides.toml").write_text(MAPPING, encoding="utf-8")
    return path


def test_five_short_rows_in_ten_megabytes_of_csv_are_counted_and_cost_the_episodes_beside_them(
    rides: Path, tmp_path: Path
) -> None:
    shutil.copy(rides, tmp_path / "rides.csv")
    spoil_lines(tmp_path / "rides.csv", SHORT)
    lost = lost_beside(SHORT, ROWS, LENGTH)
    found, counts, stream = read(tmp_path / "rides.csv", mapping=str(rides.with_suffix(".toml")), on_error="skip")
    assert found is not None
    assert [reject.where.rpartition(" ")[2] for reject in stream.rejects.first[: len(SHORT)]] == [str(row + 2) for row in SHORT]
    assert (counts.rows_in, counts.episodes) == (ROWS, ROWS // LENGTH - len(lost))
    assert {int(name.rpartition("-")[2]) for name in found.ids} == set(range(ROWS // LENGTH)) - lost
    assert counts.set_aside == len(lost) * LENGTH
