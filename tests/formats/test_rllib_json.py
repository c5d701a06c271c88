"""RLlib's column recordings that Ray wrote as JSON lines: rows of a table, with the ids of RLlib's own episodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest

from offline_cli import convert
from offline_cli.converting.reading import read_episodes

RECORDED = Path(__file__).parents[1] / "testdata" / "rllib_json"
IDS = {json.loads(path.read_text().splitlines()[0])["eps_id"] for path in RECORDED.glob("*.json")}


def ids(*sources: str | Path, **options: Any) -> set[str]:
    stream = read_episodes([str(source) for source in sources], **options)
    return {name for batch in stream for name in batch.ids}


def copied(folder: Path, **changes: Any) -> Path:
    """The recording with other columns; `...`: without that one."""
    folder.mkdir()
    for path in RECORDED.glob("*.json"):
        rows = [json.loads(line) | changes for line in path.read_text().splitlines()]
        lines = [json.dumps({name: value for name, value in row.items() if value is not ...}) for row in rows]
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return folder


def test_ids_of_rows_that_rllib_recorded_as_json_stay_rllibs() -> None:
    assert ids(*sorted(RECORDED.glob("*.json"))) == IDS
    assert all(len(name) == 32 for name in IDS)


def test_a_recording_as_json_and_as_parquet_has_the_same_episodes(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "parquet").mkdir()
    for path in RECORDED.glob("*.json"):
        shutil.copy(path, tmp_path / "json")
        pq.write_table(pj.read_json(path), tmp_path / "parquet" / f"{path.stem}.parquet")
    assert ids(tmp_path / "json") == ids(tmp_path / "parquet") == IDS


def test_a_recording_that_stands_in_two_places_is_converted_once(tmp_path: Path) -> None:
    result = convert([str(copied(tmp_path / "a")), str(copied(tmp_path / "b"))], tmp_path / "out")
    assert (result.episodes, result.duplicates_dropped) == (2, 2)


@pytest.mark.parametrize("column", ["agent_id", "truncateds"])
def test_a_table_without_all_that_rllib_records_gets_ids_of_its_own(tmp_path: Path, column: str) -> None:
    found = ids(copied(tmp_path / "a", **{column: ...}))
    assert {name.partition("-")[2] for name in found} == IDS
