"""NumPy archives: D4RL's flat arrays by their names or a mapping, OGBench's trajectories, and archives that lie."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import open_dataset, write_dataset
from offline_cli.converting.convert import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadMapping, OutputExists, UnsafeData
from offline_cli.formats.opening import open_sources

TESTDATA = Path(__file__).resolve().parents[1] / "testdata" / "ogbench"
PLAY = TESTDATA / "cube-single-play-v0.npz"
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def flat() -> Arrays:
    """Three episodes in twelve rows, as D4RL has them."""
    rng = np.random.default_rng(0)
    ends = np.isin(np.arange(12), (3, 7, 11))
    return {
        "observations": rng.normal(size=(12, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (12, 2)).astype(np.float32),
        "rewards": rng.normal(size=12).astype(np.float32),
        "terminals": ends & (np.arange(12) < 8),
        "timeouts": ends & (np.arange(12) >= 8),
    }


def saved(folder: Path, arrays: Arrays, name: str = "log.npz") -> Path:
    np.savez_compressed(folder / name, **arrays)
    return folder / name


def episodes(source: Path, out: Path, **options: Any) -> EpisodeBatch:
    convert([str(source)], str(out), **options)
    with open_dataset(str(out)) as dataset:
        return EpisodeBatch.concat(list(dataset.batches()))


def arrays_of(file: Path) -> Arrays:
    with np.load(file) as held:
        return dict(held)


# ---- flat arrays ----


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"observations": "obs", "rewards": "reward", "terminals": "dones", "timeouts": "truncations"},
        {"observations": "states", "actions": "acts", "rewards": "rews", "terminals": "terminated", "timeouts": "truncated"},
    ],
)
def test_arrays_of_known_names_need_no_mapping(tmp_path: Path, flat: Arrays, names: dict[str, str]) -> None:
    batch = episodes(saved(tmp_path, {names.get(name, name): one for name, one in flat.items()}), tmp_path / "out")
    assert batch.lengths.tolist() == [4, 4, 4]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True, True, False], [False, False, True])
    np.testing.assert_array_equal(batch.actions, flat["actions"])


def test_flat_arrays_written_and_read_again_are_equal(tmp_path: Path, flat: Arrays) -> None:
    convert([str(saved(tmp_path, flat))], str(tmp_path / "ours"), action_scale="env")
    result = convert([str(tmp_path / "ours")], str(tmp_path / "theirs.npz"), to="npz")
    inherited = {"missing-eps-id": 3, "missing-final-observation": 3}  # custom data: that the last observations are assumed
    assert result.assumptions == {"eps-id-not-kept": 3, **inherited}
    wrote = arrays_of(tmp_path / "theirs.npz")
    assert set(wrote) == set(flat)  # no final observation was recorded, and none is written
    for name, one in flat.items():
        assert wrote[name].dtype == one.dtype, name
        np.testing.assert_array_equal(wrote[name], one)
    convert([str(tmp_path / "ours")], str(tmp_path / "theirs.npz"), to="npz", overwrite=True)
    with pytest.raises(OutputExists):
        convert([str(tmp_path / "ours")], str(tmp_path), to="npz", overwrite=True)


def ours(folder: Path, batch: EpisodeBatch, observation: spaces.Space[Any], action: spaces.Space[Any]) -> Path:
    write_dataset(batch, folder, observation_space=observation, action_space=action, action_scale="env")
    return folder


def test_final_observations_of_any_structure_survive(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    observation = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "state": spaces.Box(-1, 1, (3,), np.float64)})
    batch = random_batch(observation, spaces.Discrete(3), lengths=(3, 5))
    source = ours(tmp_path / "ours", batch, observation, spaces.Discrete(3))
    convert([str(source)], str(tmp_path / "theirs.npz"), to="npz")
    again: Any = episodes(tmp_path / "theirs.npz", tmp_path / "again")
    theirs: Any = batch.obs
    for part in ("camera", "state"):
        np.testing.assert_array_equal(again.obs[part], theirs[part])


# ---- OGBench ----


def test_the_last_row_of_a_trajectory_is_its_final_observation(tmp_path: Path) -> None:
    batch, arrays = episodes(PLAY, tmp_path / "ours"), arrays_of(PLAY)
    ends = arrays["terminals"].astype(bool)
    np.testing.assert_array_equal(batch.obs, arrays["observations"])
    for name, ours in {"actions": batch.actions, **batch.extra}.items():
        np.testing.assert_array_equal(ours, arrays[name][~ends])
        assert batch.custom_data is not None  # what follows the last step is no step's
        np.testing.assert_array_equal([one["last_row"][name] for one in batch.custom_data], arrays[name][ends])
    assert batch.truncated.all()
    assert open_sources(str(tmp_path / "ours"))[0].info.action_scale == "env"


def test_a_mask_of_the_last_step_is_a_termination(tmp_path: Path) -> None:
    masks = 1 - np.isin(np.arange(9), (1, 3)).astype(np.float32)
    arrays = {"observations": np.zeros((9, 3), np.float32), "actions": np.zeros((9, 2), np.float32), "masks": masks}
    file = saved(tmp_path, {**arrays, "rewards": np.arange(9.0), "terminals": np.isin(np.arange(9), (4, 8))})
    batch = episodes(file, tmp_path / "D", from_="ogbench")
    assert (batch.terminated.tolist(), batch.rewards.tolist()) == ([True, False], [0, 1, 2, 3, 5, 6, 7])
    assert open_dataset(str(tmp_path / "D")).manifest.assumptions["end-flag-before-end"] == 1


def test_choices_rewards_and_flags_may_have_a_second_dimension_of_one(tmp_path: Path, flat: Arrays) -> None:
    flat["actions"] = np.arange(12)[:, None] % 3
    columns = {name: one if name == "observations" else one.reshape(12, 1) for name, one in flat.items()}
    batch = episodes(saved(tmp_path, columns), tmp_path / "out")
    assert (batch.lengths.tolist(), batch.actions.shape) == ([4, 4, 4], (12,))
    assert open_sources(str(tmp_path / "out"))[0].info.action_space == spaces.Discrete(3)


def test_further_arrays_are_kept_or_it_is_said_what_they_lack(tmp_path: Path, flat: Arrays) -> None:
    more = {"gamma": np.array(0.99), "episode_returns": np.ones(3), "details": np.array([{}] * 12, object)}
    file = saved(tmp_path, {**flat, **more, "level": np.arange(12), "goal": np.ones((12, 2))})
    reasons = convert([str(file)], str(tmp_path / "out")).dropped_reasons
    assert {name: reasons[name].partition(",")[0] for name in reasons} == {
        "gamma": "shape []",
        "episode_returns": "shape [3]",
        "details": "object of shape [12]",
    }
    extra: Any = episodes(file, tmp_path / "again").extra
    assert (extra["level"].dtype, extra["goal"].shape) == (np.int64, (12, 2))
    columns = {"obs": "observations", "actions": "actions", "terminateds": "terminals", "rewards": "episode_returns"}
    with pytest.raises(BadMapping, match="episode_returns"):
        convert([str(file)], str(tmp_path / "more"), mapping={"columns": columns})


# ---- archives that lie ----


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


def zipped(file: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def opened(file: Path) -> None:
    open_sources(str(file), from_="npz")


SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    "data",
    [
        npy(SHAPE % "4611686018427387904, 4"),
        npy(SHAPE % "-3,", bytes(8)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').system('x')}"),
        npy(SHAPE % ("1, " * 70), bytes(4)),
        b"PK",
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadData):
        opened(zipped(tmp_path / "log.npz", **{"observations.npy": data}))


def test_an_archive_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "log.npz", observations=np.zeros(65 << 20, np.uint8))
    with pytest.raises(UnsafeData):
        opened(tmp_path / "log.npz")
