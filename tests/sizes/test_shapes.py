"""Long episodes, short ones, wide observations, many ids, many files: recordings are read as they were made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from made_recordings import Written, assert_same_episodes, made, read, rows_of, write_table

Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
MIB = 1 << 20
SHAPES: dict[str, dict[str, Any]] = {
    "one long episode": {"episodes": 1, "length": 50_000, "dims": 1, "block_rows": 10_000},
    "episodes of one step": {"episodes": 20_000, "length": 1, "dims": 1},
    "ten thousand dimensions": {"episodes": 4, "length": 3, "dims": 10_000},
    "a hundred files": {"episodes": 100, "length": 3, "files": 100, "block_rows": 3},
}
KINDS = {  # each reader in two shapes, each shape by readers of different kinds
    "one long episode": ("csv", "parquet", "rllib-columns", "sample-batch", "episodes"),
    "episodes of one step": ("arrow", "rllib-columns", "rllib-episodes", "sample-batch-packed", "columns"),
    "ten thousand dimensions": ("jsonl", "arrow", "rllib-packed", "rllib-episodes", "columns"),
    "a hundred files": ("csv", "jsonl", "parquet", "rllib-packed", "sample-batch", "sample-batch-packed", "episodes"),
}


@pytest.mark.parametrize(("shape", "kind"), [(shape, kind) for shape, kinds in KINDS.items() for kind in kinds])
def test_a_recording_of_any_shape_is_read_as_it_was_made(shape: str, kind: str, written: Write) -> None:
    source = written(kind, **SHAPES[shape])
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.steps, counts.duplicates) == (len(source.batch), source.batch.num_steps, 0)


def test_a_file_that_lies_twice_in_one_folder_is_as_if_it_lay_there_once(written: Write, tmp_path: Path) -> None:
    source = written("rllib-columns", 2_000)
    (file,) = source.path.iterdir()
    for number in range(2):
        shutil.copy(file, tmp_path / f"{number}{file.suffix}")
    found, counts, _ = read(tmp_path)
    assert_same_episodes(found, source.batch)
    assert counts.duplicates == 2_000


@pytest.mark.integration
def test_two_thousand_columns_of_a_csv_file_become_one_observation(tmp_path: Path) -> None:
    batch, names = made(4, 3, dims=2_000), [f"x{i}" for i in range(2_000)]
    obs = np.asarray(batch.acted_obs())
    columns = {"ride": np.repeat(np.arange(4), 3), "step": batch.timesteps(), "push": batch.actions}
    pyarrow.csv.write_csv(pa.table({**columns, **{name: obs[:, i] for i, name in enumerate(names)}}), tmp_path / "wide.csv")
    mapping = f'[columns]\neps_id = "ride"\nt = "step"\nactions = "push"\nobs = {names}\n'.replace("'", '"')
    (tmp_path / "wide.toml").write_text(mapping, encoding="utf-8")
    found, _, _ = read(tmp_path / "wide.csv", mapping=str(tmp_path / "wide.toml"))
    assert found is not None
    np.testing.assert_array_equal(np.asarray(found.acted_obs()), obs)


def test_an_episode_of_a_table_that_is_too_long_for_the_limit_is_refused_by_its_name(
    written: Write, call: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    source = written("arrow", 1, 700_000, dims=1)
    code, found = call("convert", *source.arguments, "--out", tmp_path / "out", "--memory-limit", "256MiB")
    assert (code, found["error"]["where"]) == (6, "episode 0")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_two_hundred_thousand_ids_in_any_order_convert_within_half_again_of_the_limit(
    kind: str, memory_of: Callable[..., tuple[dict[str, Any], int]], tmp_path: Path
) -> None:
    rows = rows_of(made(200_000, 3))
    order = np.random.default_rng(0).permutation(rows.num_rows)
    flat = rows.select(["eps_id", "t", "actions", "rewards", "terminateds"]).append_column("obs", rows["rewards"]).take(order)
    file = write_table(tmp_path / f"rows.{kind}", flat)
    limit = ("--memory-limit", "512MiB", "--temp-dir", tmp_path)
    result, peak = memory_of("convert", file, "--from", "table", "--out", tmp_path / "out", *limit)
    assert (result["episodes"], result["steps"], result["rows_in"]) == (200_000, 600_000, 600_000)
    assert peak <= 1.5 * 512 * MIB, f"{peak / MIB:.0f} MiB"
