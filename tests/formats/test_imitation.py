"""imitation's trajectories, as imitation 1.0.1 saved them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from offline_cli import open_dataset
from offline_cli.converting.convert import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.opening import open_sources

TESTDATA = Path(__file__).resolve().parents[1] / "testdata" / "imitation"
NAME = "data-00000-of-00001.arrow"


def episodes(source: Path, out: Path, **options: Any) -> EpisodeBatch:
    convert([str(source)], str(out), **options)
    with open_dataset(str(out)) as dataset:
        return EpisodeBatch.concat(list(dataset.batches()))


def rows(folder: Path) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(str(folder / NAME)) as reader:
        return list(reader.read_all().to_pylist())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TESTDATA / "continuous", tmp_path / "copy"))


def rewrite(folder: Path, changed: list[dict[str, Any]]) -> None:
    with pa.ipc.open_stream(str(TESTDATA / "continuous" / NAME)) as reader:
        table = pa.Table.from_pylist(changed, schema=reader.schema)
    with pa.ipc.new_stream(str(folder / NAME), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("name", ["continuous", "discrete"])
def test_trajectories_are_what_imitations_own_reader_gives(name: str, tmp_path: Path) -> None:
    with np.load(TESTDATA / f"{name}.npz") as held:
        answers = dict(held)
    batch = episodes(TESTDATA / name, tmp_path / "out")
    assert batch.lengths.tolist() == [4, 5, 3]
    np.testing.assert_array_equal(batch.obs, answers["obs"])
    np.testing.assert_array_equal(batch.actions, answers["acts"])
    np.testing.assert_array_equal(batch.rewards, answers["rews"])
    assert batch.terminated.tolist() == answers["terminal"].tolist()
    assert batch.truncated.tolist() == (~answers["terminal"]).tolist()
    if name == "discrete":  # whole numbers are categories
        assert open_sources(str(tmp_path / "out"))[0].info.action_space == spaces.Discrete(3)


def test_infos_of_jsonpickle_are_left_out_by_name(tmp_path: Path) -> None:
    assert convert([str(TESTDATA / "continuous")], str(tmp_path / "plain")).dropped_columns == ()  # all of them are empty
    result = convert([str(TESTDATA / "discrete")], str(tmp_path / "infos"))
    assert result.dropped_reasons == {"infos": "jsonpickle text, which is never decoded"}


@pytest.mark.parametrize("change", [{"acts": [[0.0, 0.0]]}, {"rews": [1.0]}, {"obs": None}, {"terminal": None}], ids=str)
def test_a_trajectory_that_is_none_is_named_and_can_be_left_out(copy: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    known = rows(copy)
    rewrite(copy, [known[0], {**known[1], **change}, known[2]])
    with pytest.raises(BadData) as caught:
        convert([str(copy)], str(tmp_path / "out"))
    assert caught.value.where.endswith(f"{NAME} row 1")
    result = convert([str(copy)], str(tmp_path / "out"), on_error="skip")
    assert (result.episodes, result.episodes_lost) == (2, 1)


def test_a_damaged_file_is_named(copy: Path, tmp_path: Path) -> None:
    whole = (copy / NAME).read_bytes()
    (copy / NAME).write_bytes(whole[: len(whole) - 700])
    with pytest.raises(BadData) as caught:
        convert([str(copy)], str(tmp_path / "out"))
    assert NAME in caught.value.where
