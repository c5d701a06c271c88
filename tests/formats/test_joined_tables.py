"""Many small files of a table, whose rows go on together: the same episodes, counts and losses as file by file."""

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

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats import small_parquet
from offline_cli.formats.tables import TableOptions, joined_files
from offline_cli.tally import OnError, Rejects
from offline_cli.testing import assert_same_batch

MAPPING = '[columns]\neps_id = "e"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nterminateds = "d"\n[extra]\nn = "n"\n'
IN_ORDER = 'unmapped = "drop"\n[columns]\nobs = ["x", "y"]\nactions = "a"\nterminateds = "d"\n'
FILES = 40
KINDS = pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow"])


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
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")
    else:
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)


@pytest.fixture
def read_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[EpisodeBatch, dict[str, Any]]]:
    """A function that reads files of a kind joined and one by one: the episodes and counts, which are the same.

    `odd`: by the number of a file what stands in its place, a table or bytes.
    """

    def read(mapping: str) -> tuple[EpisodeBatch, dict[str, Any]]:
        (tmp_path / "mapping.toml").write_text(mapping, encoding="utf-8")
        options = TableOptions(str(tmp_path / "mapping.toml"))
        errors: list[Any] = []
        add = Rejects.add
        with monkeypatch.context() as patch:
            patch.setattr(Rejects, "add", lambda self, error, **said: errors.append(error) or add(self, error, **said))
            stream = read_episodes(str(tmp_path / "in"), tables=options, on_error=OnError.SKIP)
            found = EpisodeBatch.concat(list(stream))
        return found, {"tally": stream.tally, "lost": stream.rejects.lost, "errors": errors}

    def both(kind: str, odd: dict[int, Any], mapping: str = MAPPING) -> tuple[EpisodeBatch, dict[str, Any]]:
        (tmp_path / "in").mkdir()
        for number in range(FILES):
            path = tmp_path / "in" / f"{number:03}.{kind}"
            if isinstance(odd.get(number), bytes):
                path.write_bytes(odd[number])
            else:
                write(path, odd.get(number, table(number)))
        one_by_one = read(mapping)
        monkeypatch.setattr(small_parquet, "FEW", 2)
        chunks: list[Any] = []
        taken = joined_files._Joined.taken
        monkeypatch.setattr(joined_files._Joined, "taken", lambda self: chunks.append(taken(self)) or chunks[-1])
        joined = read(mapping)
        assert 0 < len(chunks) < FILES
        assert [str(error) for error in joined[1]["errors"]] == [str(error) for error in one_by_one[1]["errors"]]
        assert {**joined[1], "errors": []} == {**one_by_one[1], "errors": []}
        assert joined[0].ids == one_by_one[0].ids
        assert_same_batch(joined[0], one_by_one[0])
        return joined

    return both


@KINDS
@pytest.mark.parametrize("mapping", [MAPPING, IN_ORDER])
def test_joined_files_give_the_same_episodes(kind: str, mapping: str, read_both: Callable[..., Any]) -> None:
    batch, _ = read_both(kind, {}, mapping)
    assert (len(batch.ids), batch.num_steps) == (FILES // 2, 3 * FILES)


@KINDS
def test_a_file_that_is_cut_is_lost_alone(kind: str, read_both: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / f"whole.{kind}", table(6))
    data = (tmp_path / f"whole.{kind}").read_bytes()
    batch, counts = read_both(kind, {6: data[: len(data) - 12]})
    assert counts["errors"]
    assert len(batch.ids) in (FILES // 2 - 1, FILES // 2)


@KINDS
def test_files_of_other_types_columns_and_no_rows_are_read_as_they_stand(kind: str, read_both: Callable[..., Any]) -> None:
    others = {
        3: table(3, n=[0.5, 1.5, 2.5]),
        9: table(9, z=["a", "b", "c"]),
        12: table(12).slice(0, 0),
        20: table(20).select(["n", "d", "a", "y", "x", "t", "e"]),
    }
    if kind == "json":
        others[12] = b"\n"
    read_both(kind, others)
