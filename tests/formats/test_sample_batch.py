"""SampleBatch recordings by RLlib itself, against RLlib's own reader; broken lines and files."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest

from offline_cli import inspect
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsafeData
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Rejects, Tally

ROW = {"obs": [[0.5]], "new_obs": [[0.5]], "actions": [1], "rewards": [1.0], "terminateds": [True], "eps_id": [3], "t": [0]}


def source_of(*files: Path) -> SampleBatchSource:
    return SampleBatchSource([open_location(file) for file in files], "test")


def batches_of(*files: Path, rejects: Rejects | None = None) -> list[EpisodeBatch]:
    return [one.batch for one in source_of(*files).fragments(Tally(), rejects or Rejects())]


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "recording.json"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def line(**changes: Any) -> dict[str, Any]:
    changed = {"type": "SampleBatch", **ROW, **changes}
    return {name: value for name, value in changed.items() if value is not ...}


def packed(value: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value))).decode()


# ---- recordings ----


@pytest.mark.integration
@pytest.mark.parametrize(
    "folder",
    ["sample_batch_cartpole_lz4", "sample_batch_cartpole_plain", "sample_batch_pendulum_lz4", "sample_batch_pendulum_trunc"],
)
def test_rllibs_own_reader_gives_the_same_columns(real_data: Path, folder: str) -> None:
    pytest.importorskip("ray")
    from ray.rllib.offline.json_reader import from_json_data

    (file,) = (real_data / folder).iterdir()
    theirs = [from_json_data(json.loads(text), None).policy_batches["default_policy"] for text in file.read_text().splitlines()]
    batch = EpisodeBatch.concat(batches_of(file))
    terminateds, truncateds = batch.step_flags()
    ours = {"obs": batch.acted_obs(), "new_obs": batch.next_obs(), "actions": batch.actions, "rewards": batch.rewards}
    ours |= {"terminateds": terminateds, "truncateds": truncateds, "t": batch.timesteps(), **batch.extra}
    for name, found in ours.items():
        wanted = np.concatenate([np.asarray(one[name]) for one in theirs])
        np.testing.assert_array_equal(found, wanted, err_msg=name)


# ---- what must be refused, and where it says it was ----


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ('{"type": "SampleBatch", "obs": [[1.0', BadData),
        ('{"value": 3}', BadData),
        ({"type": "Other", "obs": []}, BadData),
        ({"type": "MultiAgentBatch", "count": 1}, BadData),
        (line(obs=...), BadEpisode),
        (line(actions=[1, 2]), BadEpisode),
        (line(infos=[]), BadEpisode),
        (line(obs=[["a"]]), BadEpisode),
        (line(rewards=[[1.0, 2.0]]), BadEpisode),
        (line(dones=[float("nan")]), BadEpisode),
        (line(eps_id=[None]), BadEpisode),
        (line(t=[0.5]), BadEpisode),
        (line(new_obs=[[1.0, 2.0]]), BadEpisode),
        (line(obs=packed(np.zeros((1, 1)))[:-9]), BadEpisode),
        (line(obs=packed(print)), UnsafeData),
        (line(infos=packed([print])), UnsafeData),
        (line(obs=packed(np.array([None]))), UnsafeData),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line(bad: Any, error: type[BadData], tmp_path: Path) -> None:
    path = written(tmp_path, line(), bad)
    with pytest.raises(error) as caught:
        batches_of(path)
    assert caught.value.where.startswith(f"{path} line 2")


def zipped(data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("recording.json", data)
    return archive.getvalue()


@pytest.mark.parametrize("stored", [bytes, gzip.compress, zipped])
def test_a_byte_order_mark_before_the_first_line_is_passed_over(stored: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(stored(b"\xef\xbb\xbf" + json.dumps(line()).encode()))
    assert inspect(str(path)).format == "sample-batch"
    assert [batch.ids for batch in batches_of(path)] == [("3",)]


def test_a_line_longer_than_the_limit_is_refused_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.formats.rllib.json_lines.MAX_LINE_BYTES", 300)
    rejects = Rejects(OnError.QUARANTINE)
    (batch,) = batches_of(written(tmp_path, line(note="x" * 1000), line(eps_id=[9])), rejects=rejects)
    assert batch.ids == ("9",)
    assert rejects.kept[0].code == "unsafe-data"
    assert rejects.kept[0].where.endswith("recording.json line 1")


# ---- many lines ----


def test_a_value_that_float32_cannot_hold_makes_the_column_float64_in_all_lines_read_together(tmp_path: Path) -> None:
    (batch,) = batches_of(written(tmp_path, line(eps_id=[1]), line(obs=[[0.1]], eps_id=[2])))
    assert batch.obs.dtype == np.float64


def test_lines_of_one_step_without_id_and_timestep_are_joined_where_they_chain(tmp_path: Path) -> None:
    steps = [line(obs=[[i]], new_obs=[[i + 1]], terminateds=[i == 2], eps_id=..., t=...) for i in (0.5, 1.5, 2)]
    assert [batch.lengths.tolist() for batch in batches_of(written(tmp_path, *steps))] == [[2, 1]]
