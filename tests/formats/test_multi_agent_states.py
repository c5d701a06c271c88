"""Packed states of `MultiAgentEpisode`, as RLlib's MultiAgentEnvRunner samples it: each agent's episode comes out whole.

tests/testdata/multi_agent_episodes holds what RLlib 2.60 sampled in `agent_games.Walkers`, whole games and games in pieces,
each item `msgpack.packb({name: state[name] for name in ("id_", "agent_episodes")}, default=msgpack_numpy.encode)`, and beside
it what RLlib says of each agent's (piece of an) episode.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "multi_agent_episodes"
NAMES = pytest.mark.parametrize("name", ["complete_episodes", "truncate_episodes"])


def wanted(name: str) -> dict[str, dict[str, Any]]:
    """By id, with the pieces of an episode joined."""
    found: dict[str, dict[str, Any]] = {}
    for piece in json.loads((FOLDER / f"{name}.json").read_text()):
        if not piece["rewards"] and piece["id"] not in found:
            continue
        known = found.setdefault(piece["id"], {**piece, "rewards": [], "actions": []})
        known["rewards"] += piece["rewards"]
        known["actions"] += piece["actions"]
        known["terminated"] |= piece["terminated"]
    return found


@NAMES
def test_each_agents_episode_is_as_rllib_has_it(name: str, tmp_path: Path) -> None:
    convert(FOLDER / f"{name}.parquet", tmp_path / "D")
    batch = EpisodeBatch.concat(list(open_dataset(str(tmp_path / "D")).batches()))
    told = wanted(name)
    assert set(batch.ids) == set(told)
    for episode in batch:
        one = told[episode.id_]
        assert (episode.agent_id, episode.module_id, episode.multi_agent_episode_id) == (
            one["agent"],
            one["module"],
            one["game"],
        )
        assert episode.get_rewards().tolist() == pytest.approx(one["rewards"])
        assert episode.get_actions().tolist() == one["actions"]
        np.testing.assert_allclose(episode.get_observations(0), one["first"])
        assert episode.is_terminated or not one["terminated"]


def test_an_item_of_another_kind_among_them_is_named_by_its_row(tmp_path: Path) -> None:
    good = pq.read_table(FOLDER / "complete_episodes.parquet")["item"].to_pylist()
    pq.write_table(pa.table({"item": pa.array([good[0], b"\x80", b"\xc1"], pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(BadData):
        convert(tmp_path / "a.parquet", tmp_path / "D")
    result = convert(tmp_path / "a.parquet", tmp_path / "D", on_error="skip")
    told = wanted("complete_episodes").values()
    first = next(iter(told))["game"]
    assert result.episodes == sum(one["game"] == first for one in told)
    assert result.rows_quarantined == 2
