"""Readers say how far they are, and of how much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.progress import Progress


def tables(folder: Path, files: int = 5, rows: int = 500) -> str:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(files):
        t = np.arange(rows)
        columns = {"eps_id": [f"e{number}"] * rows, "t": t, "obs": rng.random(rows), "actions": t % 2, "rewards": np.ones(rows)}
        pq.write_table(pa.table({**columns, "dones": t == rows - 1}), folder / f"{number}.parquet", row_group_size=100)
    return str(folder)


def reports(*sources: str) -> list[Progress]:
    seen: list[Progress] = []
    for _ in read_episodes(list(sources), on_progress=seen.append):
        pass
    return seen


def assert_rises_to_its_total(seen: list[Progress]) -> None:
    done = [report.done for report in seen]
    assert done == sorted(done)
    assert seen[-1].done == seen[-1].total
    assert {report.total for report in seen} == {seen[-1].total}


@pytest.mark.parametrize("big", [False, True])
def test_tables_are_counted_in_bytes_of_their_files(big: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.formats.parquet_files.ROWS", 100)
    if big:
        monkeypatch.setattr("offline_cli.formats.parquet_files.BIG", 0)
    folder = tables(tmp_path / "r")
    seen = reports(folder)
    assert len(seen) == (25 if big else 5)
    assert seen[-1].total == -(-sum(path.stat().st_size for path in Path(folder).iterdir()) // 1000)
    assert (seen[-1].unit, seen[-1].figures) == ("kB", {"rows": 2500})
    assert_rises_to_its_total(seen)


@pytest.mark.parametrize(("to", "rows"), [("episodes", 5), ("columns", 2500)])
def test_our_own_datasets_are_counted_in_rows(to: str, rows: int, tmp_path: Path) -> None:
    convert(tables(tmp_path / "r"), str(tmp_path / "D"), to=to, max_rows_per_file=1)
    seen = reports(str(tmp_path / "D"))
    assert (seen[-1].unit, seen[-1].total) == ("rows", rows)
    assert_rises_to_its_total(seen)


def test_several_sources_of_one_unit_are_counted_together(tmp_path: Path) -> None:
    seen = reports(tables(tmp_path / "r"), tables(tmp_path / "s", files=2) + "/1.parquet")
    assert_rises_to_its_total(seen)
