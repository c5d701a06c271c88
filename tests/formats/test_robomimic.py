"""robomimic's HDF5 layout in and out: splits, last observations, solved steps, the scale of actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hdf5_trees import assert_same, read, robomimic, tree, write

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.splitting import split
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData


@pytest.mark.parametrize("final", [True, False])
def test_a_file_goes_out_and_comes_back_equal(final: bool, tmp_path: Path) -> None:
    file = robomimic(tmp_path / "a.hdf5", final=final)
    with h5py.File(file, "a") as opened:  # a split that overlaps the others
        opened["mask/20_percent"] = np.array(["demo_0", "demo_9"], "S")
    result = convert(file, tmp_path / "D")
    assert dict(result.assumptions) == ({} if final else {"missing-final-observation": 11})
    convert(tmp_path / "D", tmp_path / "b.hdf5", to="robomimic")
    assert_same(tree(file), tree(tmp_path / "b.hdf5"))
    assert sorted(split(tmp_path / "D", tmp_path / "parts", by="mask").parts) == [
        "20_percent%2Ctrain",
        "20_percent%2Cvalid",
        "train",
        "valid",
    ]


def test_demonstrations_come_in_the_order_of_their_numbers_with_their_last_observations(tmp_path: Path) -> None:
    file = robomimic(tmp_path / "a.hdf5")
    stream, batch = read(file)
    assert batch.lengths.tolist() == [7, 3, 5, 4, 6, 8, 2, 9, 5, 3, 4]
    arrays = tree(file)
    last = batch.obs["pos"][batch.obs_starts[1:] - 1]
    np.testing.assert_array_equal(last, np.stack([arrays[f"data/demo_{i}/next_obs/pos"][-1] for i in range(11)]))
    assert batch.terminated.all()
    assert (stream.action_scale, stream.environment and stream.environment.id) == ("normalized", "Lift")
    assert stream.action_space == spaces.Box(-1, 1, (4,), np.float64)
    np.testing.assert_array_equal(batch.extra["step_dones"][:7], arrays["data/demo_0/dones"])


def test_actions_of_an_environment_are_rescaled_and_counted(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    batch = random_batch(spaces.Box(-1, 1, (3,)), spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
    write_dataset([batch], tmp_path / "D", action_scale="env")
    result = convert(tmp_path / "D", tmp_path / "a.hdf5", to="robomimic")
    assert result.assumptions["actions-rescaled"] == batch.num_steps
    stream, back = read(tmp_path / "a.hdf5")
    assert stream.action_scale == "normalized"
    np.testing.assert_allclose(back.actions * [2, 5] + [0, 5], batch.actions, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(back.obs, batch.obs)  # a key that was made for the layout is gone again


def test_a_demonstration_without_observations_names_the_script_that_makes_them(tmp_path: Path) -> None:
    rows = {"data/demo_0/actions": np.zeros((3, 2)), "data/demo_0/states": np.zeros((3, 5))}
    with pytest.raises(BadData) as caught:
        read(write(tmp_path / "a.hdf5", rows))
    assert "dataset_states_to_obs.py" in caught.value.fix
