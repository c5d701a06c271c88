"""`dataset.to_polars()`: a row per step or per episode, at once or lazily, for both formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

from offline_cli import EpisodeBatch, open_dataset, write_dataset
from offline_cli.errors import BadData

Make = Callable[..., EpisodeBatch]


def test_steps_have_the_columns_of_the_format_and_the_values_of_the_batches(
    make_batch: Make, tmp_path: Path, format: Any
) -> None:
    extra = {"action_logp": np.arange(9, dtype=np.float32)}
    batch = make_batch((3, 1, 5), agent_ids=("a", None, "b"), extra=extra)
    write_dataset(batch, tmp_path / "D", format=format, max_rows_per_file=4 if format == "columns" else 2)
    frame = open_dataset(tmp_path / "D").to_polars()
    assert frame.columns == [
        *("eps_id", "agent_id", "module_id", "multi_agent_id", "t", "obs", "actions", "rewards", "new_obs"),
        *("terminateds", "truncateds", "action_logp", "source_id", "final_obs_assumed", "infos", "reset_infos"),
    ]
    assert frame["eps_id"].to_list() == ["episode-0"] * 3 + ["episode-1"] + ["episode-2"] * 5
    assert frame["t"].to_list() == [0, 1, 2, 0, 0, 1, 2, 3, 4]
    assert frame.schema["obs"] == pl.Array(pl.Float32, 4)
    np.testing.assert_array_equal(frame["obs"].to_numpy(), batch.acted_obs())
    np.testing.assert_array_equal(frame["new_obs"].to_numpy(), batch.next_obs())
    np.testing.assert_array_equal(frame["action_logp"].to_numpy(), extra["action_logp"])
    if format == "columns":
        stored = pl.concat([pl.read_parquet(file) for file in sorted((tmp_path / "D" / "data").glob("*.parquet"))])
        assert frame.drop("multi_agent_id").equals(stored)


def test_episodes_have_a_row_each(make_batch: Make, tmp_path: Path, format: Any) -> None:
    batch = make_batch((3, 1, 5), agent_ids=("a", None, "b"))
    write_dataset(batch, tmp_path / "D", format=format)
    dataset = open_dataset(tmp_path / "D")
    frame = dataset.to_polars(per="episode")
    assert frame.columns == ["eps_id", "length", "return", "terminated", "truncated", "agent_id", "module_id", "multi_agent_id"]
    assert frame.rows() == [
        (id_, length, returned, terminated, not terminated, agent, None, None)
        for id_, length, returned, terminated, agent in zip(
            batch.ids, batch.lengths.tolist(), batch.returns.tolist(), batch.terminated.tolist(), ("a", None, "b"), strict=True
        )
    ]


def test_no_episodes_are_no_rows_and_unknown_spaces_an_error(write_nothing: Callable[..., Any], tmp_path: Path) -> None:
    dataset = write_nothing(spaces.Box(-1, 1, (2, 2), np.float32), spaces.Discrete(2))
    assert (len(dataset.to_polars()), dataset.to_polars().schema["obs"]) == (0, pl.Array(pl.Float32, (2, 2)))
    assert dataset.to_polars(per="episode").shape == (0, 8)
    with pytest.raises(BadData):
        write_nothing(None, None, "E").to_polars()


@pytest.fixture
def write_nothing(tmp_path: Path) -> Callable[..., Any]:
    """A dataset of these spaces without episodes."""
    from offline_cli import DatasetWriter

    def write(observation_space: Any, action_space: Any, name: str = "D") -> Any:
        with DatasetWriter(tmp_path / name, observation_space=observation_space, action_space=action_space) as writer:
            writer.commit()
        return open_dataset(tmp_path / name)

    return write
