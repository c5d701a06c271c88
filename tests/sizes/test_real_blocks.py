"""Files as large as those that users have, in blocks as large as they are read in, with faults at the borders of these."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from made_recordings import Written, assert_same_episodes, read, without
from spoiling import lost_beside, spoil_cells, spoil_lines

from offline_cli.errors import BadData

Write = Callable[..., Written]
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
    assert [reject.where.rpartition(" ")[2] for reject in stream.rejects.first[: len(SHORT)]] == [str(row) for row in SHORT]
    assert (counts.rows_in, counts.episodes) == (ROWS, ROWS // LENGTH - len(lost))
    assert {int(name.rpartition("-")[2]) for name in found.ids} == set(range(ROWS // LENGTH)) - lost
    assert counts.set_aside == len(lost) * LENGTH


def test_the_first_of_five_short_rows_in_ten_megabytes_of_csv_is_named_with_a_remedy(rides: Path, tmp_path: Path) -> None:
    for rows in (SHORT, SHORT[2:], SHORT[3:]):
        shutil.copy(rides, tmp_path / "rides.csv")
        spoil_lines(tmp_path / "rides.csv", rows)
        with pytest.raises(BadData, match="cells under 6 columns") as caught:
            read(tmp_path / "rides.csv", mapping=str(rides.with_suffix(".toml")), keep=False)
        assert caught.value.where.endswith(f"rides.csv row {rows[0]}")
        assert "--on-error skip" in caught.value.fix


BORDERS = {  # by reader: episodes, and rows (lines, of SampleBatch) around the borders of its blocks
    "csv": (ROWS // 4 // LENGTH, (0, 40_000, 75_000, 99_999)),
    "jsonl": (300, (0, 17_000, 33_333, 59_999)),
    "arrow": (1000, (65_535, 65_536, 131_071, 131_072, 199_999)),
    "parquet": (1000, (65_535, 65_536, 131_071, 131_072, 199_999)),
    "rllib-columns": (1000, (65_535, 65_536, 131_071, 131_072, 199_999)),
    "rllib-packed": (400, (0, 65_535, 65_536, 79_999)),
}


@pytest.mark.parametrize("kind", BORDERS)
def test_bad_values_at_the_borders_of_real_blocks_cost_their_own_episodes(kind: str, written: Write, tmp_path: Path) -> None:
    episodes, rows = BORDERS[kind]
    whole = written(kind, episodes, LENGTH)
    shutil.copytree(whole.path, tmp_path / kind)
    (file,) = (tmp_path / kind).iterdir()
    spoil_cells(file, rows)
    lost = {row // LENGTH for row in rows}
    found, counts, _ = read(Written(kind, tmp_path / kind, whole.batch), on_error="skip", memory_limit=256 << 20)
    assert_same_episodes(found, without(whole.batch, lost))
    assert (counts.rows_in, counts.set_aside) == (episodes * LENGTH, len(lost) * LENGTH)


@pytest.mark.parametrize("kind", ["sample-batch", "sample-batch-packed"])
def test_broken_lines_of_ten_megabytes_of_sample_batch_cost_the_episodes_in_them(
    kind: str, written: Write, tmp_path: Path
) -> None:
    episodes = 800 if kind == "sample-batch" else 1200
    whole = written(kind, episodes, LENGTH, block_rows=LENGTH)
    shutil.copytree(whole.path, tmp_path / kind)
    (file,) = (tmp_path / kind).iterdir()
    assert file.stat().st_size > 4 * 2**21  # of which lines are read together
    lost = {0, 1, episodes // 3, episodes // 2, episodes - 1}
    spoil_lines(file, sorted(lost))
    found, counts, _ = read(tmp_path / kind, on_error="skip")
    assert_same_episodes(found, without(whole.batch, lost))
    assert (counts.rows_in, counts.set_aside) == (episodes, len(lost))
