"""D4RL's HDF5 layout in and out: blocks, ends, final observations, and what the format does not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hdf5_trees import d4rl, read, tree, write

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import BadData, OutputExists


@pytest.mark.parametrize("last_is_end", [True, False])
@pytest.mark.parametrize("has_next", [True, False])
def test_episodes_written_and_read_again_are_equal(has_next: bool, last_is_end: bool, tmp_path: Path) -> None:
    arrays = d4rl(105, last_is_end=last_is_end)
    if has_next:
        following = np.roll(arrays["observations"], -1, axis=0)
        ends = arrays["terminals"] | arrays["timeouts"]
        following[ends] += 1
        arrays["next_observations"] = following
    file = write(tmp_path / "a.hdf5", arrays)
    result = convert(file, tmp_path / "D")
    assert result.assumptions.get("unfinished-episode", 0) == (not last_is_end)
    assert result.assumptions.get("missing-final-observation", 0) == (0 if has_next else result.episodes)
    convert(tmp_path / "D", tmp_path / "b.hdf5", to="d4rl")
    before, after = read(file)[1], read(tmp_path / "b.hdf5")[1]
    assert fingerprints(before).tolist() == fingerprints(after).tolist()
    wrote = tree(tmp_path / "b.hdf5")
    assert ("next_observations" in wrote) == has_next  # what nobody recorded is not written
    np.testing.assert_array_equal(wrote["infos/action_log_probs"], arrays["infos/action_log_probs"])


@pytest.mark.parametrize("has_next", [True, False])
def test_without_timeouts_next_observations_divide_or_limits_are_unknown_and_counted(has_next: bool, tmp_path: Path) -> None:
    arrays = d4rl(100)
    ends = arrays["terminals"] | arrays.pop("timeouts")
    following = np.roll(arrays["observations"], -1, axis=0)
    following[ends] += 1
    stream, batch = read(write(tmp_path / "a.hdf5", {**arrays, "next_observations": following} if has_next else arrays))
    assert len(batch) == (ends.sum() if has_next else 3)
    assert stream.tally.assumptions.get("missing-timeouts", 0) == (not has_next)


@pytest.mark.parametrize("name", ["timeouts", "episode_terminals"])
def test_ends_that_are_dropped_are_as_if_they_were_not_there(name: str, tmp_path: Path) -> None:
    arrays = d4rl(100)
    ends = arrays.pop("timeouts")
    file = write(tmp_path / "a.hdf5", {**arrays, name: ends})
    result = convert(file, tmp_path / "D", drop=[name])
    assert (result.episodes, result.assumptions["missing-timeouts"]) == (3, 1)
    with pytest.raises(BadData):
        convert(file, tmp_path / "E", drop=["terminals"])


def test_what_has_another_number_of_rows_is_left_out_by_name_or_refused(tmp_path: Path) -> None:
    odd = {"metadata/policy/fc0": np.zeros((4, 4)), "metadata/algorithm": np.bytes_("SAC"), "t": np.arange(100)}
    stream = read(write(tmp_path / "a.hdf5", {**d4rl(100), **odd}))[0]
    assert set(stream.tally.dropped_columns) == set(odd)
    with pytest.raises(BadData):
        read(write(tmp_path / "b.hdf5", {**d4rl(100), "actions": d4rl(99)["actions"]}))


def test_all_episodes_of_a_damaged_block_are_counted_as_lost(tmp_path: Path) -> None:
    arrays = d4rl(100)
    good = write(tmp_path / "a.hdf5", arrays)
    bad = write(tmp_path / "b.hdf5", {name: array for name, array in arrays.items() if name != "rewards"})
    with h5py.File(bad, "a") as file:
        at = file.create_dataset("rewards", data=arrays["rewards"], chunks=(100,), fletcher32=True).id.get_chunk_info(0)
    content = bytearray(bad.read_bytes())
    content[at.byte_offset] ^= 1
    bad.write_bytes(content)
    result = convert([good, bad], tmp_path / "D", on_error="skip")
    assert result.episodes_lost == result.episodes > 1
    assert result.assumptions["lost-episode-unreadable"] == result.episodes


@pytest.mark.parametrize("action_scale", ["env", "normalized"])
def test_what_the_layout_lacks_travels_in_an_attribute(
    action_scale: str, tmp_path: Path, random_batch: Callable[..., EpisodeBatch]
) -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(4)})
    batch = random_batch(space, spaces.Box(-3, 3, (2,)))
    write_dataset([batch], tmp_path / "D", action_scale=action_scale)
    result = convert(tmp_path / "D", tmp_path / "a.hdf5", to="d4rl")
    assert result.assumptions["eps-id-not-kept"] == 3
    stream, back = read(tmp_path / "a.hdf5")
    assert (stream.observation_space, stream.action_space) == (space, spaces.Box(-3, 3, (2,)))
    assert (stream.action_scale, stream.spaces_inferred) == (action_scale, False)
    assert fingerprints(back).tolist() == fingerprints(batch).tolist()  # the last observations too


def test_only_an_hdf5_file_is_replaced(tmp_path: Path) -> None:
    file, target = write(tmp_path / "a.hdf5", d4rl(20)), tmp_path / "b.hdf5"
    target.write_text("notes")
    with pytest.raises(OutputExists):
        convert(file, target, to="d4rl", overwrite=True)
    target.unlink()
    convert(file, target, to="d4rl")
    convert(file, target, to="d4rl", overwrite=True)
    np.testing.assert_array_equal(tree(file)["actions"], tree(target)["actions"])
