"""What is left of an episode that lost a row is never taken for an episode: one cannot see where it begins and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.errors import BadData
from offline_cli.tally import Reject

LAST = 3


def steps(name: str, *, t: bool, new_obs: bool = True, first: int = 0, stop: int = LAST + 1, **more: Any) -> dict[str, Any]:
    number = np.arange(first, stop)
    columns = {
        "eps_id": [name] * len(number),
        "obs": [[float(ord(name)), float(i)] for i in number],
        "actions": number % 2,
        "rewards": np.ones(len(number)).tolist(),
        "terminateds": number == LAST,
        **more,
    }
    if t:
        columns["t"] = number
    if new_obs:
        columns["new_obs"] = [[float(ord(name)), float(i + 1)] for i in number]
    return columns


def lines(path: Path, *batches: dict[str, Any] | str) -> Path:
    def text(batch: dict[str, Any]) -> str:
        plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in batch.items()}
        return json.dumps({"type": "SampleBatch", **plain})

    path.write_text("".join((batch if isinstance(batch, str) else text(batch)) + "\n" for batch in batches), encoding="utf-8")
    return path


def tables(folder: Path, *files: dict[str, Any] | bytes) -> Path:
    for number, columns in enumerate(files):
        path = folder / f"{number}.parquet"
        if isinstance(columns, bytes):
            path.write_bytes(columns)
        else:
            pq.write_table(pa.table(columns), path)
    return folder


def read(source: Path, on_error: str = "quarantine", kept: list[Reject] | None = None) -> tuple[dict[str, int], EpisodeStream]:
    stream = read_episodes(str(source), on_error=on_error, from_="auto")
    if kept is not None:
        stream.set_aside_to(kept.extend)
    return {name: int(steps) for batch in stream for name, steps in zip(batch.ids, batch.lengths, strict=True)}, stream


def without_reward(row: int) -> list[float | None]:
    return [None if i == row else 1.0 for i in range(LAST + 1)]


@pytest.mark.parametrize(("t", "new_obs", "on_error"), [(True, False, "skip"), (False, True, "quarantine")])
@pytest.mark.parametrize("row", [0, LAST])
def test_an_episode_that_lost_a_row_is_set_aside_whole(row: int, t: bool, new_obs: bool, on_error: str, tmp_path: Path) -> None:
    bad = steps("b", t=t, new_obs=new_obs, rewards=without_reward(row))
    files = [steps("a", t=t, new_obs=new_obs), bad, steps("c", t=t, new_obs=new_obs)]
    kept: list[Reject] = []
    found, stream = read(tables(tmp_path, *files), on_error, kept)
    assert found == {"a": 4, "c": 4}
    assert stream.rejects.count == 4
    assert "unfinished-episode" not in stream.tally.assumptions
    assert "broken-chain" not in stream.tally.assumptions
    if on_error == "quarantine":
        assert stream.rejects.first[0].where.endswith(f"1.parquet row {row}")
        assert len(kept) > 1
        assert all(b'"eps_id": "b"' in one.raw for one in kept[1:])


def test_without_the_option_the_first_bad_row_ends_the_reading(tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        read(tables(tmp_path, steps("a", t=False, rewards=without_reward(2))), "fail")
    assert caught.value.where.endswith("0.parquet row 2")


@pytest.mark.parametrize(("t", "whole"), [(True, {"a": 4, "c": 4}), (False, {"a": 4})])
def test_a_damaged_file_leaves_the_next_episode_in_doubt_unless_timesteps_show_its_start(
    t: bool, whole: dict[str, int], tmp_path: Path
) -> None:
    files = [steps("a", t=t), b"PAR1 and no more", steps("c", t=t)]
    found, stream = read(tables(tmp_path, *files))
    assert found == whole
    assert stream.rejects.first[0].where.endswith("1.parquet")


@pytest.mark.parametrize(("ids", "new_obs"), [(True, False), (False, True)])
def test_a_lost_line_without_timesteps_leaves_the_next_episode_in_doubt(new_obs: bool, ids: bool, tmp_path: Path) -> None:
    def line(name: str, **part: int) -> dict[str, Any]:
        columns = steps(name, t=False, new_obs=new_obs, **part)
        return columns if ids else {key: value for key, value in columns.items() if key != "eps_id"}

    path = lines(
        tmp_path / "a.json", line("a"), line("b", stop=1), '{"type": "SampleBatch", "obs": [[', line("b", first=2), line("c")
    )
    found, stream = read(path)
    assert list(found.values()) == (
        [4, 4] if ids or not new_obs else [4, 4, 1]
    )  # the last: what came before the loss, unfinished
    assert stream.rejects.count == 1 + (3 if ids or not new_obs else 2)
