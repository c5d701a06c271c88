"""Observations of ten thousand numbers: every reader, and every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from growth import assert_grows_in_proportion
from made_recordings import READERS, Written, assert_same_episodes, made, read

Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
DIMS, EPISODES, LENGTH = 10_000, 8, 5
ENV = ("--env", "sizes_env:SizedWide-v0")
MIB = 1 << 20


@pytest.mark.parametrize("kind", READERS)
def test_ten_thousand_dimensions_are_read_as_they_were_made(kind: str, written: Write) -> None:
    source = written(kind, EPISODES, LENGTH, dims=DIMS)
    found, counts, _ = read(source)
    assert_same_episodes(found, source.batch)
    assert (counts.episodes, counts.steps) == (EPISODES, EPISODES * LENGTH)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("csv", "jsonl", "sample-batch")])
def test_twice_as_many_dimensions_take_twice_as_long_to_read(kind: str, written: Write) -> None:
    sources = [written(kind, 3 * EPISODES, LENGTH, dims=dims) for dims in (DIMS, 2 * DIMS)]
    read(sources[0], keep=False)
    assert_grows_in_proportion(*(lambda source=source: read(source, keep=False) for source in sources))


@pytest.fixture
def wide_csv(tmp_path: Path) -> Callable[[int], tuple[Path, Path]]:
    """A function that writes a CSV file with a column for each number of an observation, and its mapping."""

    def make(dims: int) -> tuple[Path, Path]:
        batch, names = made(EPISODES, LENGTH, dims=dims), [f"x{i}" for i in range(dims)]
        obs = np.asarray(batch.acted_obs())
        columns = {"ride": np.repeat(np.arange(EPISODES), LENGTH), "step": batch.timesteps(), "push": batch.actions}
        file = tmp_path / f"{dims}.csv"
        pyarrow.csv.write_csv(pa.table({**columns, **{name: obs[:, i] for i, name in enumerate(names)}}), file)
        mapping = f'[columns]\neps_id = "ride"\nt = "step"\nactions = "push"\nobs = {names}\n'.replace("'", '"')
        file.with_suffix(".toml").write_text(mapping, encoding="utf-8")
        return file, file.with_suffix(".toml")

    return make


def test_ten_thousand_columns_of_a_csv_file_become_one_observation(wide_csv: Callable[[int], tuple[Path, Path]]) -> None:
    file, mapping = wide_csv(DIMS)
    found, counts, _ = read(file, mapping=str(mapping))
    assert found is not None
    assert np.asarray(found.obs).shape == (EPISODES * (LENGTH + 1), DIMS)
    np.testing.assert_array_equal(np.asarray(found.acted_obs()), np.asarray(made(EPISODES, LENGTH, dims=DIMS).acted_obs()))
    assert (counts.episodes, counts.rows_in) == (EPISODES, EPISODES * LENGTH)


@pytest.mark.nightly
def test_twice_as_many_columns_take_twice_as_long_to_read(wide_csv: Callable[[int], tuple[Path, Path]]) -> None:
    sources = [wide_csv(dims) for dims in (2500, 5000)]
    read(sources[0][0], mapping=str(sources[0][1]))
    assert_grows_in_proportion(
        *(lambda file=file, mapping=mapping: read(file, mapping=str(mapping), keep=False) for file, mapping in sources)
    )


@pytest.mark.usefixtures("sized_envs")
def test_every_command_takes_ten_thousand_dimensions(written: Write, told: Told, tmp_path: Path) -> None:
    source = written("rllib-columns", EPISODES, LENGTH, dims=DIMS)
    counted = {"episodes": EPISODES, "steps": EPISODES * LENGTH}
    for to in ("episodes", "columns"):
        told("convert", source.path, "--out", tmp_path / to, "--to", to)
        assert told("inspect", tmp_path / to).items() >= counted.items()
        assert told("validate", tmp_path / to, "--deep")["passed"] is True
        (tmp_path / to / "manifest.json").rename(tmp_path / to / "_writing.json")
        assert told("repair", tmp_path / to, *ENV)["episodes"] == EPISODES
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n', encoding="utf-8")
    applied = told("apply", tmp_path / "columns", "--pipeline", tmp_path / "pipeline.toml", "--out", tmp_path / "batches")
    assert applied["steps"] == EPISODES * LENGTH
    training = ("--updates", 2, "--batch-size", 8, "--device", "cpu", "--eval-episodes", 1)
    trained = told("train-bc", tmp_path / "episodes", "--out", tmp_path / "run", *training)
    assert trained["steps"] == EPISODES * LENGTH
    assert told("evaluate", tmp_path / "run", *ENV, "--episodes", 2)["episodes"] == 2
    recorded = told("record", ENV[1], "--policy", tmp_path / "run", "--episodes", 3, "--out", tmp_path / "recorded")
    assert (recorded["episodes"], recorded["steps"]) == (3, 15)
