"""`convert --drop`: leaves that are left out of any source, and what the readers say of leaves that they cannot read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hdf5_trees import read, write

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UnsupportedSpace, UsageError

STEPS = 5
MISSION = ["go to the red ball"] * STEPS
RNG = np.random.default_rng(0)
POSES = RNG.normal(size=(STEPS + 1, 3)).astype(np.float32)
ACTIONS = np.arange(STEPS) % 3
ENDS = np.arange(STEPS) == STEPS - 1


def minari(folder: Path, kind: str = "Text") -> Path:
    """A dataset of MiniGrid's form: observations with a text."""
    box = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-9.0] * 3, "high": [9.0] * 3}
    space = {"type": "Dict", "subspaces": {"pose": box, "mission": {"type": kind, "max_length": 20}}}
    action = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    said = {
        "data_format": "hdf5",
        "total_episodes": 1,
        "observation_space": json.dumps(space),
        "action_space": json.dumps(action),
    }
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps(said))
    flags = {"terminations": ENDS, "truncations": ENDS & False, "rewards": np.ones(STEPS)}
    steps = {"observations/pose": POSES, "observations/mission": [*MISSION, "done"], "actions": ACTIONS, **flags}
    write(folder / "data" / "main_data.hdf5", {f"episode_0/{name}": values for name, values in steps.items()})
    return folder


def d4rl(folder: Path) -> Path:
    folder.mkdir()
    steps = {"actions": ACTIONS[:, None], "rewards": np.ones((STEPS, 1)), "terminals": ENDS[:, None]}
    with_text = {"observations/pose": POSES[:-1], "observations/mission": MISSION, "timeouts": ENDS & False}
    return write(folder / "a.hdf5", {**steps, **with_text})


def robomimic(folder: Path) -> Path:
    folder.mkdir()
    steps = {"actions": ACTIONS, "rewards": np.ones(STEPS), "dones": ENDS.astype(int)}
    parts = {"obs/pose": POSES[:-1], "obs/mission": MISSION, "next_obs/pose": POSES[1:], "next_obs/mission": MISSION}
    return write(folder / "a.hdf5", {f"data/demo_0/{name}": values for name, values in {**steps, **parts}.items()})


def npz(folder: Path) -> Path:
    folder.mkdir()
    parts: Any = {"observations/pose": POSES[:-1], "observations/mission": np.array(MISSION)}
    np.savez(folder / "a.npz", actions=ACTIONS[:, None], rewards=np.ones(STEPS), terminals=ENDS, **parts)
    return folder / "a.npz"


def imitation(folder: Path) -> Path:
    folder.mkdir()
    obs = [{"pose": pose, "mission": "go"} for pose in POSES.tolist()]
    table = pa.table({"obs": [obs], "acts": [ACTIONS.tolist()], "terminal": [True], "rews": [[1.0] * STEPS]})
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "minari": minari,
    "d4rl": d4rl,
    "robomimic": robomimic,
    "npz": npz,
    "imitation": imitation,
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_text_among_the_observations_is_left_out_on_request_and_named(name: str, tmp_path: Path) -> None:
    result = convert(SOURCES[name](tmp_path / "S"), tmp_path / "D", drop=["obs.mission"], action_scale="env")
    assert result.dropped_reasons["obs.mission"] == "dropped by --drop"
    stream, batch = read(tmp_path / "D")
    assert stream.action_space == spaces.Discrete(3)
    obs: Any = batch.obs
    assert list(obs) == ["pose"]
    np.testing.assert_array_equal(obs["pose"][:STEPS], POSES[:-1])


@pytest.mark.parametrize("name", ["minari", "d4rl", "robomimic"])
def test_without_it_the_remedy_is_that_option(name: str, tmp_path: Path) -> None:
    with pytest.raises((BadData, UnsupportedSpace)) as caught:
        convert(SOURCES[name](tmp_path / "S"), tmp_path / "D")
    assert "drop obs.mission" in caught.value.fix.replace("--", "").replace("=", " ").replace('"', "")


@pytest.mark.parametrize("kind", ["Text", "Graph", "Sequence", "OneOf"])
def test_a_space_that_episodes_do_not_hold_is_called_by_its_name(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSpace, match=f"obs.mission.*{kind}"):
        read(minari(tmp_path / "S", kind))


def test_numbers_are_left_out_of_any_source(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    inner = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(4)})
    batch = random_batch(spaces.Dict({"a": inner, "b": spaces.Discrete(2)}), spaces.Discrete(3))
    write_dataset([batch], tmp_path / "D")
    result = convert(tmp_path / "D", tmp_path / "E", drop=["obs.a.y", "obs.b"])
    assert set(result.dropped_columns) == {"obs.a.y", "obs.b"}
    stream, kept = read(tmp_path / "E")
    assert stream.observation_space == spaces.Dict({"a": spaces.Dict({"x": spaces.Box(-1, 1, (2,))})})
    here, before = kept.obs, batch.obs
    np.testing.assert_array_equal(here["a"]["x"], before["a"]["x"])  # type: ignore[index, call-overload]


@pytest.mark.parametrize("drop", ["obs", "obs.nothing", "actions", "reward"])
def test_what_is_not_there_or_needed_is_refused_by_name(
    drop: str, tmp_path: Path, random_batch: Callable[..., EpisodeBatch]
) -> None:
    write_dataset([random_batch(spaces.Dict({"a": spaces.Discrete(2)}), spaces.Discrete(3))], tmp_path / "D")
    with pytest.raises(UsageError, match=drop):
        convert(tmp_path / "D", tmp_path / "E", drop=[drop])


def test_a_dataset_of_minari_before_0_5_is_read_by_the_attributes_of_its_file(tmp_path: Path) -> None:
    minari(tmp_path / "S", "Discrete")
    said = json.loads((tmp_path / "S/data/metadata.json").read_text())
    (tmp_path / "S/data/metadata.json").unlink()
    space = json.dumps(json.loads(said["observation_space"])["subspaces"]["pose"])
    with h5py.File(tmp_path / "S/data/main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = POSES
        said |= {"observation_space": space, "minari_version": "~=0.4", "dataset_id": "old-v0"}
        file.attrs.update({name: value for name, value in said.items() if name != "data_format"})
    stream, batch = read(tmp_path / "S")
    assert (batch.ids, stream.action_space) == (("0",), spaces.Discrete(3))
    np.testing.assert_array_equal(batch.obs, POSES)
