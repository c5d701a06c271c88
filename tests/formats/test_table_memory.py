"""Tables larger than memory: values are looked at without putting episodes together, and what is too long is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.errors import MemoryLimitExceeded

MAPPING = """
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "y"]
actions = "push"
"""
LEAST = 256 << 20


def rides(last_action: float) -> list[str]:
    rows = [f"ride-{ride},{step},{ride}.5,{step}.25,{step % 2}" for ride in range(4) for step in range(5)]
    return ["ride,step,x,y,push", *rows[:-1], f"ride-3,4,3.5,4.25,{last_action}"]


def test_a_limit_on_episodes_holds_for_their_spaces_too(
    read_table: Callable[..., Any], write_lines: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.reading.KEEP", 0)
    stream, batch = read_table(write_lines("rides.csv", *rides(last_action=6)), MAPPING, limit=3)
    assert stream.action_space == spaces.Discrete(2)
    assert len(batch) == 3


def long_episode(rows: int) -> pa.Table:
    t = np.arange(rows)
    columns = {"ride": pa.nulls(rows, pa.string()).fill_null("seven"), "step": t, "x": t / 3, "y": t / 7, "push": t % 2}
    return pa.table({**columns, "end": t == rows - 1})


def test_an_episode_without_an_id_that_is_too_long_for_the_limit_is_refused_by_its_first_row(
    read_table: Callable[..., Any], tmp_path: Path
) -> None:
    mapping = MAPPING.replace('eps_id = "ride"\n', "") + 'terminateds = "end"\n'
    pq.write_table(pa.concat_tables([long_episode(10), long_episode(600_000)]), tmp_path / "rides.parquet")
    with pytest.raises(MemoryLimitExceeded) as caught:
        read_table(tmp_path / "rides.parquet", mapping, memory_limit=LEAST, episode_ends="flags")
    assert caught.value.where.startswith("the episode that begins at ")
    assert caught.value.where.endswith("rides.parquet row 10")
    assert "raise --memory-limit" in caught.value.fix
