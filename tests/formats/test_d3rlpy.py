"""d3rlpy's HDF5 layout in and out: against what d3rlpy's own reader gave of the samples that d3rlpy wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hdf5_trees import FOREIGN, read, tree, write

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UnsupportedSpace

SAMPLES = ("vectors", "discrete", "two")


@pytest.mark.parametrize("name", SAMPLES)
def test_episodes_are_those_that_d3rlpy_reads(name: str) -> None:
    answers = json.loads((FOREIGN / f"d3rlpy_{name}.json").read_text(encoding="utf-8"))
    batch = read(FOREIGN / f"d3rlpy_{name}.h5")[1]
    assert len(batch) == len(answers)
    for episode, answer in zip(batch, answers, strict=True):
        assert episode.is_terminated == answer["terminated"] != episode.is_truncated
        obs, actions = episode.get_observations(), episode.get_actions()
        assert plain(obs) == answer["observations"]
        assert actions.reshape(len(actions), -1).tolist() == answer["actions"][1]
        assert str(actions.dtype) == answer["actions"][0]
        assert episode.get_rewards().reshape(-1, 1).astype(np.float32).tolist() == np.float32(answer["rewards"][1]).tolist()


def plain(tree: Any) -> Any:
    """Observations without the last, which d3rlpy has not."""
    if isinstance(tree, tuple):
        return {"tuple": [plain(part) for part in tree]}
    return [str(tree.dtype), tree[:-1].tolist()]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_goes_out_and_comes_back_equal(name: str, tmp_path: Path) -> None:
    result = convert(FOREIGN / f"d3rlpy_{name}.h5", tmp_path / "D")
    assert dict(result.assumptions) == {"missing-final-observation": 3}
    out = convert(tmp_path / "D", tmp_path / "b.h5", to="d3rlpy")
    assert dict(out.assumptions) == {**result.assumptions, "eps-id-not-kept": 3}
    theirs, wrote = tree(FOREIGN / f"d3rlpy_{name}.h5"), tree(tmp_path / "b.h5")
    assert theirs.keys() == wrote.keys()
    for key, values in theirs.items():
        np.testing.assert_array_equal(values, wrote[key])
        assert np.asarray(values).dtype == np.asarray(wrote[key]).dtype or key in ("columns", "num_episodes", "version")


def test_what_is_not_kept_is_counted(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    batch = random_batch(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))
    write_dataset([batch], tmp_path / "D")
    result = convert(tmp_path / "D", tmp_path / "a.h5", to="d3rlpy")
    assert dict(result.assumptions) == {"eps-id-not-kept": 3, "final-observation-not-kept": 3}
    stream, back = read(tmp_path / "a.h5")
    assert stream.action_space == spaces.Discrete(3)
    np.testing.assert_array_equal(back.acted_obs(), batch.acted_obs())
    np.testing.assert_array_equal(back.rewards, batch.rewards)
    write_dataset([random_batch(spaces.Dict({"a": spaces.Discrete(3)}), spaces.Discrete(3))], tmp_path / "E")
    with pytest.raises(UnsupportedSpace):
        convert(tmp_path / "E", tmp_path / "b.h5", to="d3rlpy")


def test_another_version_and_missing_episodes_are_refused(tmp_path: Path) -> None:
    known = dict(tree(FOREIGN / "d3rlpy_vectors.h5"))
    with pytest.raises(BadData):
        read(write(tmp_path / "a.h5", {**known, "version": "3.0"}))
    with pytest.raises(BadData):
        read(write(tmp_path / "b.h5", {**known, "num_episodes": 4}))
