"""Columns of types that a recording of steps may have besides vectors of floats, and those that it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode


def steps(name: str = "a", n: int = 3, **more: Any) -> dict[str, Any]:
    t = np.arange(n)
    columns = {
        "eps_id": [name] * n,
        "t": t,
        "obs": [[float(i), 0.0] for i in t],
        "new_obs": [[float(i + 1), 0.0] for i in t],
        "actions": t % 2,
        "rewards": np.ones(n),
        "terminateds": t == n - 1,
        **more,
    }
    return {key: value for key, value in columns.items() if value is not ...}


def read(folder: Path, *files: dict[str, Any], on_error: str = "fail") -> tuple[EpisodeBatch, EpisodeStream]:
    for number, columns in enumerate(files):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    stream = read_episodes(str(folder), on_error=on_error)
    return EpisodeBatch.concat(list(stream)), stream


MICROSECONDS = [
    (pa.array([1, 2, 3], pa.timestamp("s")), [1_000_000, 2_000_000, 3_000_000]),
    (pa.array([1000, 2000, 3999], pa.timestamp("ns")), [1, 2, 3]),
    (pa.array([0, 1, 2], pa.timestamp("ms", "Europe/Berlin")), [0, 1000, 2000]),
    (pa.array([0, 1, 2], pa.date32()), [0, 86_400_000_000, 172_800_000_000]),
    (pa.array([0, 1, 2], pa.time32("s")), [0, 1_000_000, 2_000_000]),
    (pa.array([0, 1, 2], pa.duration("ms")), [0, 1000, 2000]),
]


@pytest.mark.parametrize(("column", "wanted"), MICROSECONDS, ids=lambda value: str(getattr(value, "type", "")))
def test_times_are_microseconds(column: pa.Array, wanted: list[int], tmp_path: Path) -> None:
    batch, stream = read(tmp_path, steps(when=column))
    np.testing.assert_array_equal(batch.extra["when"], np.array(wanted, np.int64), strict=True)
    assert not stream.tally.assumptions


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b", "c"],
        [b"a", b"b", b"c"],
        [["a"], ["b"], ["c"]],
        [{"k": "a"}, {"k": "b"}, {"k": "c"}],
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([1, 2, 3], pa.decimal128(5)),
    ],
    ids=["text", "bytes", "lists of text", "structs of text", "categories", "decimals"],
)
def test_other_columns_without_numbers_are_dropped_and_each_counted_once(column: Any, tmp_path: Path) -> None:
    batch, stream = read(tmp_path, steps("a", note=column), steps("b", note=column))
    assert batch.extra == {}
    assert dict(stream.tally.assumptions) == {"dropped-column": 1}


@pytest.mark.parametrize("column", [pa.array([1, None, 3]), pa.array([1.0, None, 3.0]), pa.array([True, None, True])], ids=str)
def test_a_number_missing_in_another_column_is_nan_and_counted(column: pa.Array, tmp_path: Path) -> None:
    batch, stream = read(tmp_path, steps(v=column))
    assert np.isnan(batch.extra["v"]).tolist() == [False, True, False]
    assert dict(stream.tally.assumptions) == {"null-as-nan": 1}


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"t": ["0", "1", "2"]}, "column t holds string"),
        ({"t": pa.array([0, 1, 2], pa.timestamp("s"))}, "column t holds timestamp"),
        ({"t": [0.0, 0.5, 1.0]}, "column t holds 0.5, not a timestep"),
        ({"t": [-1, 0, 1]}, "column t holds -1, not a timestep"),
        ({"t": [-2, -1, 0]}, "column t holds -2, not a timestep"),
        ({"eps_id": [["a"]] * 3}, "column eps_id holds list"),
        ({"rewards": pa.nulls(3)}, "no column rewards"),
        ({"rewards": [[1.0, 2.0]] * 3}, "column rewards holds more than one value per step"),
        ({"new_obs": [[1.0]] * 3}, "column new_obs has shapes"),
        ({"obs": [{"x": 1.0}] * 3}, "column new_obs has shapes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_a_step_is_refused_by_column_and_place(column: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        read(tmp_path, steps(**column))
    assert says in caught.value.what
    assert "0.parquet" in caught.value.where


def test_rows_of_another_shape_than_the_first_are_set_aside_with_their_episodes(tmp_path: Path) -> None:
    odd = steps("odd", obs=[[9.0], [1.0, 1.0], [2.0, 2.0]], new_obs=...)
    batch, stream = read(tmp_path, steps("a", new_obs=...), odd, steps("b", new_obs=...), on_error="skip")
    assert sorted(batch.ids) == ["a", "b"]
    assert batch.obs.shape == (8, 2)
    assert stream.rejects.count == 3
    assert stream.tally.assumptions["missing-final-observation"] == 2


def test_an_odd_first_row_does_not_give_the_shape_of_all(tmp_path: Path) -> None:
    odd = steps("odd", obs=[[9.0], [1.0, 1.0], [2.0, 2.0]], new_obs=...)
    batch, stream = read(tmp_path, odd, steps("a", new_obs=...), on_error="skip")
    assert batch.ids == ("a",)
    assert stream.rejects.count == 3


def test_a_file_of_another_kind_is_set_aside_by_name(tmp_path: Path) -> None:
    files = [steps("a"), steps("b", obs=[[1.0]] * 3, new_obs=[[1.0]] * 3), steps("c")]
    batch, stream = read(tmp_path, *files, on_error="quarantine")
    assert sorted(batch.ids) == ["a", "c"]
    assert stream.rejects.first[0].where.endswith("1.parquet row 0")
    with pytest.raises(BadEpisode):
        read(tmp_path, *files)
