"""Agents that share an episode, in tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch


def steps(eps_id: str, agent: str | None, value: float, n: int = 3, **more: Any) -> dict[str, Any]:
    t = np.arange(n)
    return {
        "eps_id": [eps_id] * n,
        "agent_id": [agent] * n,
        "obs": [[value, float(i)] for i in t],
        "new_obs": [[value, float(i + 1)] for i in t],
        "actions": t % 2,
        "rewards": np.full(n, value),
        "terminateds": t == n - 1,
        **more,
    }


def read(folder: Path, *files: dict[str, Any] | pa.Table) -> EpisodeBatch:
    for number, columns in enumerate(files):
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / f"{number}.parquet")
    return EpisodeBatch.concat(list(read_episodes(str(folder))))


@pytest.mark.parametrize("with_t", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
def test_each_agent_has_an_episode_of_its_own(with_t: bool, interleaved: bool, tmp_path: Path) -> None:
    t = {"t": np.arange(3)} if with_t else {}
    agents = [pa.table(steps("e", name, value, module_id=["p"] * 3, **t)) for name, value in (("x", 1.0), ("y", 2.0))]
    table = pa.concat_tables(agents)
    batch = read(tmp_path, table.take([0, 3, 1, 4, 2, 5]) if interleaved else table)
    assert batch.ids == ("e-p-x", "e-p-y")
    assert (batch.agent_ids, batch.module_ids, batch.multi_agent_ids) == (("x", "y"), ("p", "p"), ("e", "e"))
    assert batch.returns.tolist() == [3.0, 6.0]


def test_ids_that_agents_do_not_share_stay_as_they_are(tmp_path: Path) -> None:
    batch = read(tmp_path, steps("a", "x", 1.0), steps("b", "y", 2.0))
    assert (batch.ids, batch.agent_ids, batch.multi_agent_ids) == (("a", "b"), ("x", "y"), None)


def test_an_agent_met_after_the_first_rows_gets_an_id_of_its_own(tmp_path: Path) -> None:
    ids = pa.array(["e"] * 3, pa.large_string())  # another type, so that the two files are not read as one table
    second = pa.table(steps("e", "y", 2.0)).set_column(0, "eps_id", ids)
    batch = read(tmp_path, steps("e", "x", 1.0), second)
    assert batch.ids == ("e", "e-default_policy-y")
    assert batch.multi_agent_ids == (None, "e")
