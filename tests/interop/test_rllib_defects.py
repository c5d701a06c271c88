"""What RLlib 2.60's offline code gets wrong, and its users complain about, done right here; needs no ray.

D1 to D18 number the defects found by reading and running it. Those that are not here have tests of their own: hostile bytes
(D16) in `tests/episodes` and `tests/formats`, the dialects of SampleBatch (#33751, PR #48699) in `tests/formats`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import encode
from offline_cli.errors import BadEpisode, NoData


def steps(name: Any, n: int = 3, *, value: float = 0.0, **more: Any) -> dict[str, Any]:
    t = np.arange(n)
    columns = {
        "eps_id": [name] * n,
        "obs": [[value, float(i)] for i in t],
        "new_obs": [[value, float(i + 1)] for i in t],
        "actions": t % 2,
        "rewards": np.ones(n),
        "terminateds": t == n - 1,
        "truncateds": np.zeros(n, np.bool_),
        **more,
    }
    return {key: column for key, column in columns.items() if column is not ...}


def tables(folder: Path, *files: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for number, columns in enumerate(files):
        pq.write_table(pa.table(columns), folder / f"{number:04}.parquet")
    return str(folder)


def lines(path: Path, *batches: dict[str, Any]) -> str:
    plain = [{key: np.asarray(column).tolist() for key, column in batch.items()} for batch in batches]
    path.write_text("".join(json.dumps({"type": "SampleBatch", **batch}) + "\n" for batch in plain), encoding="utf-8")
    return str(path)


def read(source: str) -> tuple[EpisodeBatch, EpisodeStream]:
    stream = read_episodes(source)
    return EpisodeBatch.concat(list(stream)), stream


def whole(dataset: Path | str) -> EpisodeBatch:
    return EpisodeBatch.concat(list(Dataset.open(str(dataset)).batches()))


@pytest.fixture
def bucket() -> Iterator[str]:
    """A URL in a filesystem that is not local."""
    name = f"/{uuid.uuid4().hex}"
    yield f"memory:/{name}"
    fsspec.filesystem("memory").rm(name, recursive=True)


# ---- nothing is lost ----


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_every_full_shard_is_written_and_not_only_the_last_one(to: str, tmp_path: Path) -> None:
    """D1, D5: RLlib keeps the last of five files of 20 episodes, and drops what does not fill a file."""
    source = tables(tmp_path / "r", *(steps(f"e{i}", value=i) for i in range(11)))
    result = convert(source, str(tmp_path / "D"), to=to, max_rows_per_file=2 if to == "episodes" else 6)
    assert (result.episodes, result.shards) == (11, 6)
    assert sorted(whole(tmp_path / "D").ids) == sorted(f"e{i}" for i in range(11))


def test_a_recorder_that_writes_everything_again_each_time_leaves_each_episode_once(tmp_path: Path) -> None:
    """D2: call k of RLlib's recorder writes everything since the start again."""
    recorded = [steps(f"e{i}", value=i) for i in range(4)]
    calls = [{key: np.concatenate([part[key] for part in recorded[: k + 1]]).tolist() for key in recorded[0]} for k in range(4)]
    batch, stream = read(tables(tmp_path / "r", *calls))
    assert sorted(batch.ids) == ["e0", "e1", "e2", "e3"]
    assert stream.tally.duplicates_dropped == 6


def test_a_url_stays_a_url_on_both_sides(bucket: str, tmp_path: Path) -> None:
    """D4: RLlib sends URLs through pathlib, which makes "s3:/bucket" of "s3://bucket"."""
    convert(tables(tmp_path / "r", steps("a")), f"{bucket}/first")
    result = convert([f"{bucket}/first"], f"{bucket}/second", to="columns")
    assert result.out == f"{bucket}/second"
    assert whole(f"{bucket}/second").ids == ("a",)


def test_unfinished_chunks_are_read_as_truncated_episodes(tmp_path: Path) -> None:
    """D6: what RLlib records by timesteps, its own reader rejects."""
    batch, stream = read(tables(tmp_path / "r", steps("a"), steps("b", terminateds=[False] * 3)))
    assert (batch.ids, batch.truncated.tolist()) == (("a", "b"), [False, True])
    assert stream.tally.assumptions["unfinished-episode"] == 1


def test_four_different_episodes_with_two_ids_are_an_error_that_names_both_places(tmp_path: Path) -> None:
    """D11: RLlib keeps the first of each id, in silence, when two files are numbered from 0."""
    source = tables(tmp_path / "r", steps(0, value=1), steps(1, value=2), steps(0, value=3), steps(1, value=4))
    with pytest.raises(BadEpisode) as caught:
        read(source)
    assert "0000.parquet row 0" in caught.value.where
    assert "0002.parquet row 0" in caught.value.where


def test_the_fragments_of_an_episode_are_one_episode(tmp_path: Path) -> None:
    """D11, PR #48083: RLlib drops every fragment after the first."""
    split = pa.table(steps("a", 6))
    for number, (first, stop) in enumerate([(0, 2), (2, 3), (3, 6)]):
        pq.write_table(split.slice(first, stop - first), tmp_path / f"{number}.parquet")
    batch, stream = read(str(tmp_path))
    assert batch.lengths.tolist() == [6]
    assert stream.tally.fragments_stitched == 2


# ---- old recordings ----


def test_legacy_dones_that_are_all_false_do_not_terminate_an_episode(tmp_path: Path) -> None:
    """D13: RLlib looks for "done", does not find "dones", and calls the episode terminated."""
    batch, _ = read(lines(tmp_path / "a.json", steps(1, terminateds=..., truncateds=..., dones=[False] * 3)))
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False], [True])


def test_two_episodes_in_one_line_stay_two(tmp_path: Path) -> None:
    """D13, PR #47359: RLlib makes one episode of six steps of them."""
    one, two = steps(1), steps(2, value=1.0)
    batch, _ = read(lines(tmp_path / "a.json", {key: [*one[key], *two[key]] for key in one}))
    assert (batch.ids, batch.lengths.tolist()) == (("1", "2"), [3, 3])


def test_infos_as_long_as_the_steps_are_read(tmp_path: Path) -> None:
    """D13: with an infos column RLlib's conversion crashes."""
    batch, _ = read(lines(tmp_path / "a.json", steps(1, infos=[{"k": 0}, {}, {"k": 2}])))
    assert batch.infos == [{}, {"k": 0}, {}, {"k": 2}]


# ---- tables ----


def test_texts_and_times_in_a_table_do_not_become_strange_model_outputs(tmp_path: Path) -> None:
    """D14: every unmapped column becomes a model output of every episode; a timestamp kills RLlib's reader."""
    when = pa.array([0, 1, 2], pa.timestamp("s"))
    source = tables(tmp_path / "r", steps("a", note=["x", "y", "z"], when=when, logp=[0.5, 0.5, 0.5]))
    result = convert(source, str(tmp_path / "D"), to="columns")
    assert result.assumptions == {"dropped-column": 1}
    table = pq.read_table(tmp_path / "D" / "data")
    assert "note" not in table.column_names
    assert table.schema.field("when").type == pa.int64()
    assert table["when"].to_pylist() == [0, 1_000_000, 2_000_000]


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_nested_observations_with_tuples_come_back_as_they_were(to: str, random_batch: Any, tmp_path: Path) -> None:
    """D15, #31734: a Tuple comes back as a list, and RLlib does not read its own recordings of nested spaces."""
    observed = spaces.Dict(
        {"arm": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)]), "grip": spaces.MultiBinary(2)}
    )
    batch = random_batch(observed, spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32)]))
    items = [encode(batch[e]) for e in range(len(batch))]
    pq.write_table(pa.table({"item": items}), tmp_path / "a.parquet")
    convert(str(tmp_path / "a.parquet"), str(tmp_path / "D"), to=to)
    back = whole(tmp_path / "D")
    assert isinstance(back.obs["arm"], tuple)
    assert isinstance(back.actions, tuple)
    for mine, theirs in zip(
        (*back.obs["arm"], back.obs["grip"], *back.actions), (*batch.obs["arm"], batch.obs["grip"], *batch.actions), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs, strict=True)


@pytest.mark.parametrize("rows", [0])
def test_data_without_an_episode_is_an_error_and_not_an_endless_recursion(rows: int | None, tmp_path: Path) -> None:
    """D18: an empty dataset makes RLlib call itself until the stack is full."""
    if rows is not None:
        pq.write_table(pa.table(steps("a")).slice(0, rows), tmp_path / "a.parquet")
    with pytest.raises(NoData) as caught:
        read_episodes(str(tmp_path))
    assert str(tmp_path) in caught.value.where
