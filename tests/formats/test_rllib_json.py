"""RLlib's column recordings that Ray wrote as JSON lines: rows of a table, with the ids of RLlib's own episodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.json as pj
import pyarrow.parquet as pq

from offline_cli.converting.reading import read_episodes

RECORDED = Path(__file__).parents[1] / "testdata" / "rllib_json"
IDS = {json.loads(path.read_text().splitlines()[0])["eps_id"] for path in RECORDED.glob("*.json")}


def ids(*sources: str | Path, **options: Any) -> set[str]:
    stream = read_episodes([str(source) for source in sources], **options)
    return {name for batch in stream for name in batch.ids}


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
