"""Many small files of a table, whose rows go on together: all episodes, and a damaged file is lost alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.tables import TableOptions
from offline_cli.tally import OnError

MAPPING = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nterminateds = "d"\n[extra]\nn = "n"\n'
IN_ORDER = 'unmapped = "drop"\n[columns]\nobs = ["x", "y"]\nactions = "a"\nterminateds = "d"\n'
FILES = 40
Read = Callable[..., tuple[EpisodeStream, EpisodeBatch]]


def table(number: int, **columns: Any) -> pa.Table:
    """Three rows of an episode of two files."""
    t = 3 * (number % 2) + np.arange(3)
    found = {"e": [f"{number // 2}"] * 3, "t": t, "x": t + 0.5, "y": t * 2.0, "a": t % 2, "d": t == 5, "n": t + number}
    return pa.table({**found, **columns})


def write(path: Path, rows: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".csv":
        pa.csv.write_csv(rows, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that reads files of a kind. `odd`: by the number of a file what stands in its place, a table or bytes."""

    def call(kind: str, odd: dict[int, Any], mapping: str = MAPPING) -> tuple[EpisodeStream, EpisodeBatch]:
        (tmp_path / "mapping.toml").write_text(mapping, encoding="utf-8")
        (tmp_path / "in").mkdir()
        for number in range(FILES):
            path = tmp_path / "in" / f"{number:03}.{kind}"
            if isinstance(odd.get(number), bytes):
                path.write_bytes(odd[number])
            else:
                write(path, odd.get(number, table(number)))
        options = TableOptions(str(tmp_path / "mapping.toml"))
        stream = read_episodes(str(tmp_path / "in"), tables=options, on_error=OnError.SKIP)
        return stream, EpisodeBatch.concat(list(stream))

    return call


@pytest.mark.parametrize(("kind", "mapping"), [("parquet", MAPPING), ("csv", IN_ORDER), ("json", MAPPING)])
def test_episodes_go_on_in_the_next_file(kind: str, mapping: str, read: Read) -> None:
    _, batch = read(kind, {}, mapping)
    assert (len(batch.ids), batch.num_steps) == (FILES // 2, 3 * FILES)
    np.testing.assert_array_equal(batch.acted_obs()[:, 0], np.tile(np.arange(6) + 0.5, FILES // 2))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_that_is_cut_is_lost_alone(kind: str, read: Read, tmp_path: Path) -> None:
    write(tmp_path / f"whole.{kind}", table(6))
    data = (tmp_path / f"whole.{kind}").read_bytes()
    stream, batch = read(kind, {6: data[: len(data) - 12]})
    assert stream.rejects.count
    assert len(batch.ids) in (FILES // 2 - 1, FILES // 2)


def test_files_of_other_types_columns_and_no_rows_are_read_as_they_stand(read: Read) -> None:
    others = {3: table(3, n=[0.5, 1.5, 2.5]), 9: table(9, z=["a", "b", "c"]), 12: table(12).slice(0, 0)}
    others[20] = table(20).select(["n", "d", "a", "y", "x", "t", "e"])
    _, batch = read("parquet", others)
    assert batch.num_steps == 3 * FILES - 3
    assert 1.5 in batch.extra["n"]
