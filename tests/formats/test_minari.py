"""Minari's datasets in and out: against what Minari's own reader gave of the samples that Minari wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hdf5_trees import FOREIGN, assert_same, read, tree, write

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import diff
from offline_cli.converting.operations.merging import merge
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, MemoryLimitExceeded, NoData, OutputExists, UnsupportedSpace
from offline_cli.formats.opening import open_sources

Tree = Any


def as_minari(tree: Tree) -> Tree:
    """A tree of ours as the answers have it."""
    if isinstance(tree, dict):
        return {key: as_minari(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return {"tuple": [as_minari(value) for value in tree]}
    return [str(tree.dtype), tree.tolist() if tree.size < 500 else int(tree.astype(np.int64).sum())]


def check(batch: EpisodeBatch, name: str) -> None:
    answers = json.loads((FOREIGN / f"minari_{name}.json").read_text(encoding="utf-8"))
    assert len(batch) == len(answers) == 2
    for episode, answer in zip(batch, answers, strict=True):
        assert (episode.id_, episode.custom_data["seed"]) == (str(answer["id"]), answer["seed"])
        assert as_minari(episode.get_observations()) == answer["observations"]
        assert as_minari(episode.get_actions()) == answer["actions"]
        assert episode.get_rewards().tolist() == answer["rewards"][1]
        flags = [answer[key][1][-1] for key in ("terminations", "truncations")]
        assert [episode.is_terminated, episode.is_truncated] == flags
        infos = episode.get_infos()
        assert [info["count"] for info in infos] == answer["infos"]["count"][1]
        assert (infos[2]["goal"]["name"], infos[2]["goal"]["x"].tolist()) == ("g2", [2, 3])
        assert np.asarray(infos[2]["speed"]).dtype == np.float32
        assert json.dumps(episode.custom_data, default=str).count("level") in (1, 2)  # options/level/hard, or an object


@pytest.mark.parametrize("name", ["hdf5", "arrow", "parquet", "jpeg"])
def test_episodes_are_those_that_minari_reads(name: str) -> None:
    stream, batch = read(FOREIGN / f"minari_{name}")
    check(batch, name)
    assert isinstance(stream.observation_space, spaces.Dict)
    assert {"pair", "pose", "small"} <= stream.observation_space.spaces.keys()
    assert (stream.action_scale, stream.spaces_inferred) == ("env", False)
    assert dict(stream.tally.assumptions) == ({"jpeg-frames": 11} if name == "jpeg" else {})


def test_a_dataset_goes_out_and_comes_back_equal(tmp_path: Path) -> None:
    convert(FOREIGN / "minari_hdf5", tmp_path / "D")
    convert(tmp_path / "D", tmp_path / "back", to="minari")
    main = "data/main_data.hdf5"
    assert_same(tree(FOREIGN / "minari_hdf5" / main), tree(tmp_path / "back" / main))
    said, before = (
        json.loads((one / "data/metadata.json").read_text()) for one in (tmp_path / "back", FOREIGN / "minari_hdf5")
    )
    assert {key for key in before | said if before.get(key) != said.get(key)} <= {"dataset_size"}
    convert(tmp_path / "back", tmp_path / "again")
    assert diff(tmp_path / "D", tmp_path / "again").equal
    with pytest.raises(OutputExists):
        convert(tmp_path / "D", tmp_path / "back", to="minari")


def test_anything_goes_out_and_what_has_no_place_is_named(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    space = spaces.Dict({"a": spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.Discrete(4))), "b": spaces.MultiBinary(3)})
    batch = random_batch(space, spaces.Discrete(3))
    logp = np.arange(batch.num_steps, dtype=np.float32)
    infos = [{"sure": float(at), **({"late": at} if at else {})} for at in range(batch.num_steps + len(batch))]
    data = tuple({"mood": "good", "depth": {"x": [1, 2]}, "odd": [[1], "a"]} for _ in range(len(batch)))
    write_dataset([replace(batch, extra={"action_logp": logp}, infos=infos, custom_data=data)], tmp_path / "D")
    result = convert(tmp_path / "D", tmp_path / "M", to="minari")
    assert (result.assumptions["custom-data-not-kept"], result.dropped_columns) == (3, ("infos/late",))
    back = read(tmp_path / "M")[1]
    assert back.ids == batch.ids
    np.testing.assert_array_equal(back.extra["action_logp"], logp)
    np.testing.assert_array_equal(back.obs["a"][0], batch.obs["a"][0])
    assert back.infos is not None
    assert back.custom_data is not None
    assert [info["sure"] for info in back.infos[:3]] == [0, 1, 2]
    assert {key: np.asarray(one).tolist() for key, one in back.custom_data[0].items()} == {"mood": "good", "depth/x": [1, 2]}


def test_two_datasets_below_a_folder_are_refused_and_two_folders_are_merged(tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(FOREIGN / "minari_hdf5", tmp_path / "both" / name)
    with pytest.raises(BadData):
        open_sources(str(tmp_path / "both"))
    with h5py.File(tmp_path / "both/two/data/main_data.hdf5", "a") as file:
        file["episode_0/rewards"][0] = 99
    with pytest.raises(BadData):
        convert([str(tmp_path / "both/one"), str(tmp_path / "both/two")], tmp_path / "conflict")
    assert merge([tmp_path / "both/one", tmp_path / "both/two"], tmp_path / "all", unique_ids=True).episodes == 3


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda data: (data / "main_data.hdf5").unlink(), NoData),
        (lambda data: metadata(data, total_episodes=3), BadData),
        (lambda data: metadata(data, action_space='{"type": "Text"}'), UnsupportedSpace),
        (
            lambda data: write(data / "main_data.hdf5", {"episode_0/rewards": [1.0], "episode_1/x": [0]}),
            BadData,
        ),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(spoil: Any, error: type[Exception], tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "minari_hdf5", tmp_path / "M")
    spoil(tmp_path / "M" / "data")
    with pytest.raises(error):
        read(tmp_path / "M")


def metadata(folder: Path, **said: Any) -> None:
    file = folder / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))


def test_an_episode_larger_than_the_memory_limit_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "minari_hdf5", tmp_path / "M")
    with h5py.File(tmp_path / "M/data/main_data.hdf5", "a") as file:
        del file["episode_0/observations/small"]
        file["episode_0/observations/small"] = np.zeros((10_000, 300))
    with pytest.raises(MemoryLimitExceeded):
        convert(tmp_path / "M", tmp_path / "D", memory_limit=256 << 20)
