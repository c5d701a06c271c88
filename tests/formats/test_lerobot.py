"""LeRobot's datasets, as LeRobot 0.4.4 (layout v3.0) and 0.3.3 (v2.1) wrote them: read, written back, and cut or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli import open_dataset, write_dataset
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import diff
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UnsupportedSpace

TESTDATA = Path(__file__).resolve().parents[1] / "testdata" / "lerobot"
LENGTHS = [4, 5, 3]


@pytest.fixture
def v30(tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(TESTDATA / "v30", tmp_path / "v30"))


@pytest.fixture
def answers() -> dict[str, Any]:
    """What LeRobot's own reader gives for the frames."""
    with np.load(TESTDATA / "v30.npz") as held:
        return dict(held)


def episodes(folder: Path, out: Path, **options: Any) -> EpisodeBatch:
    convert([str(folder)], str(out), **options)
    with open_dataset(str(out)) as dataset:
        return EpisodeBatch.concat(list(dataset.batches()))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(document), encoding="utf-8")


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def frames(folder: Path) -> Path:
    return folder / "data" / "chunk-000" / "file-000.parquet"


@pytest.mark.parametrize("layout", ["v30", "v21"])
def test_frames_are_what_lerobots_own_reader_gives(layout: str, tmp_path: Path, answers: dict[str, Any]) -> None:
    batch = episodes(TESTDATA / layout, tmp_path / "out")
    assert batch.lengths.tolist() == LENGTHS
    acted: Any = batch.acted_obs()
    for name, ours in (("observation.state", acted["state"]), ("observation.grid", acted["grid"]), ("action", batch.actions)):
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, answers[name])
    np.testing.assert_array_equal(batch.rewards, answers["next.reward"])
    extra: Any = batch.extra
    np.testing.assert_array_equal(extra["next"]["success"], answers["next.success"])
    np.testing.assert_array_equal(extra["count"], answers["count"])
    assert batch.terminated.tolist() == [True, False, True]
    assert batch.truncated.tolist() == [False, True, False]


def test_a_dataset_written_back_is_the_same_episodes_by_the_same_ids(tmp_path: Path) -> None:
    before = convert([str(TESTDATA / "v30")], str(tmp_path / "ours"))
    assert before.dropped_reasons == {"observation.images.side": "video, not numbers"}
    assert before.assumptions == {"dones-as-terminateds": 2, "dropped-column": 1, "missing-final-observation": 3}
    result = convert([str(tmp_path / "ours")], str(tmp_path / "theirs"), to="lerobot")
    assert result.assumptions == before.assumptions  # finals repeat what was there
    convert([str(tmp_path / "theirs")], str(tmp_path / "again"))
    assert diff(str(tmp_path / "ours"), str(tmp_path / "again")).equal


def test_what_is_written_has_lerobots_columns_and_statistics(tmp_path: Path) -> None:
    convert([str(TESTDATA / "v30")], str(tmp_path / "ours"))
    convert([str(tmp_path / "ours")], str(tmp_path / "theirs"), to="lerobot")
    theirs, wrote = (pq.read_table(frames(folder)) for folder in (TESTDATA / "v30", tmp_path / "theirs"))
    for name in set(theirs.column_names) & set(wrote.column_names):
        assert theirs[name].to_pylist() == wrote[name].to_pylist(), name
    known, found = (
        json.loads((folder / "meta" / "stats.json").read_text(encoding="utf-8"))
        for folder in (TESTDATA / "v30", tmp_path / "theirs")
    )
    for name in known.keys() & found.keys():
        for kind in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(found[name][kind], known[name][kind], rtol=1e-6, atol=1e-6, err_msg=f"{name} {kind}")
    record = Path("meta/episodes/chunk-000/file-000.parquet")
    assert pq.read_table(tmp_path / "theirs" / record)["dataset_to_index"].to_pylist() == [4, 9, 12]
    missing = set(pq.read_schema(TESTDATA / "v30" / record).names) - set(pq.read_schema(tmp_path / "theirs" / record).names)
    assert all("observation.images.side" in name for name in missing)


def spread(folder: Path, cuts: list[int]) -> None:
    """The frames in several files, cut before these rows; each episode's record names the file of its first frame."""
    table = pq.read_table(frames(folder))
    edges = [0, *cuts, table.num_rows]
    for number in range(len(edges) - 1):
        part = table.slice(edges[number], edges[number + 1] - edges[number])
        pq.write_table(part, frames(folder).with_name(f"file-{number:03d}.parquet"))
    records = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    starts = pq.read_table(records)["dataset_from_index"].to_numpy()
    files = pa.array(np.searchsorted(edges, starts, side="right") - 1)

    def numbered(old: pa.Table) -> pa.Table:
        return old.set_column(old.column_names.index("data/file_index"), "data/file_index", files)

    rewrite(records, numbered)


def test_an_episode_that_goes_on_in_the_next_file_is_joined_and_put_in_order(v30: Path, tmp_path: Path) -> None:
    whole = episodes(v30, tmp_path / "one")
    spread(v30, [4, 6])  # the second episode begins in the second file, and ends in the third with the last one
    order = np.random.default_rng(0).permutation(2)
    rewrite(frames(v30).with_name("file-001.parquet"), lambda table: table.take(pa.array(order)))  # rows in any order
    parts = episodes(v30, tmp_path / "many")
    np.testing.assert_array_equal(parts.actions, whole.actions)
    assert parts.lengths.tolist() == LENGTHS


# ---- what is wrong ----


def test_an_episode_with_fewer_frames_than_its_record_says_is_named(v30: Path, tmp_path: Path) -> None:
    rewrite(frames(v30), lambda table: table.slice(0, 8))
    with pytest.raises(BadData):
        convert([str(v30)], str(tmp_path / "out"))
    result = convert([str(v30)], str(tmp_path / "out"), on_error="skip")
    assert (result.episodes, result.episodes_lost) == (1, 2)


def test_a_stray_frame_hides_no_episode_whose_file_is_missing(v30: Path, tmp_path: Path) -> None:
    def changed(table: pa.Table) -> pa.Table:
        at, stray = table.column_names.index("episode_index"), pa.array([0] * 4 + [99])
        return table.slice(0, 5).set_column(at, "episode_index", stray)

    rewrite(frames(v30), changed)
    result = convert([str(v30)], str(tmp_path / "out"), on_error="skip")
    assert (result.episodes, result.episodes_lost) == (1, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda info: info.update(codebase_version="v1.6"), "codebase_version"),
        (lambda info: info["features"]["action"].update(shape=[1 << 60]), "features.action.shape"),
        (lambda info: info["features"].pop("action"), "action"),
        (lambda info: info["features"].update(missing={"dtype": "float32", "shape": [1]}), "missing"),
    ],
)
def test_mistakes_in_info_json_are_named(v30: Path, tmp_path: Path, change: Callable[[Any], object], words: str) -> None:
    edit(v30 / "meta" / "info.json", change)
    with pytest.raises(BadData, match=words) as caught:
        convert([str(v30)], str(tmp_path / "out"))
    assert "info.json" in caught.value.where
    assert caught.value.fix


# ---- writing ----


def ours(folder: Path, batch: EpisodeBatch, observation: spaces.Space[Any], action: spaces.Space[Any]) -> Path:
    write_dataset(batch, folder, observation_space=observation, action_space=action, action_scale="env")
    return folder


def test_losses_of_writing_are_counted_and_custom_data_is_kept(
    tmp_path: Path, random_batch: Callable[..., EpisodeBatch]
) -> None:
    observation, action = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
    batch = random_batch(observation, action, lengths=(3, 2))
    ticks = np.full(batch.num_steps, 2**64 - 1, np.uint64)
    data = ({"note": "a", "seed": 2**64 - 1}, {"note": 1, "depth": {"x": [1, 2]}})
    source = ours(tmp_path / "ours", replace(batch, extra={"ticks": ticks}, custom_data=data), observation, action)
    result = convert([str(source)], str(tmp_path / "theirs"), to="lerobot")
    assert result.assumptions == {"final-observation-not-kept": 2, "fps-assumed": 1}
    info = json.loads((tmp_path / "theirs" / "meta" / "info.json").read_text(encoding="utf-8"))
    assert info["features"]["action"] == {"dtype": "int64", "shape": [1], "names": None}
    back = episodes(tmp_path / "theirs", tmp_path / "again")
    assert back.ids == ("episode-0", "episode-1")
    np.testing.assert_array_equal(back.extra["ticks"], ticks)
    assert back.custom_data is not None
    assert [{key: one[key] for key in known} for one, known in zip(back.custom_data, data, strict=True)] == list(data)


def test_a_tuple_has_no_place_in_lerobot(tmp_path: Path, random_batch: Callable[..., EpisodeBatch]) -> None:
    observation, action = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), spaces.Discrete(4)
    source = ours(tmp_path / "ours", random_batch(observation, action), observation, action)
    with pytest.raises(UnsupportedSpace):
        convert([str(source)], str(tmp_path / "theirs"), to="lerobot")
    assert not (tmp_path / "theirs").exists()


def test_steps_of_several_tasks_keep_their_task(v30: Path, tmp_path: Path) -> None:
    records = v30 / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    both = pa.array([["push the cube", "lift the cube"], ["lift the cube"], ["push the cube"]])
    rewrite(records, lambda old: old.set_column(old.column_names.index("tasks"), "tasks", both))
    steps = pa.array([0, 0, 1, 1] + [1] * 5 + [0] * 3)
    rewrite(frames(v30), lambda old: old.set_column(old.column_names.index("task_index"), "task_index", steps))
    batch = episodes(v30, tmp_path / "ours")
    assert batch.custom_data is not None
    assert batch.custom_data[0]["tasks"] == {"0": "push the cube", "1": "lift the cube"}
    convert([str(tmp_path / "ours")], str(tmp_path / "theirs"), to="lerobot")
    wrote = pq.read_table(frames(tmp_path / "theirs"))["task_index"].to_pylist()
    assert wrote == steps.to_pylist()


# ---- features of other names, numbers of other kinds ----


def test_features_of_other_names_are_listed_and_read_with_a_mapping(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TESTDATA / "v21", tmp_path / "other"))
    names = {"observation.state": "state", "observation.grid": "grid", "action": "actions"}
    edit(
        folder / "meta/info.json",
        lambda info: info.update(
            codebase_version="v2.0", features={names.get(name, name): one for name, one in info["features"].items()}
        ),
    )
    for file in (folder / "data").rglob("*.parquet"):
        rewrite(file, lambda old: old.rename_columns([names.get(name, name) for name in old.column_names]))
    with pytest.raises(BadData, match=r"state \[2\].* actions \[2\]") as caught:
        convert(folder, tmp_path / "D")
    assert "mapping" in caught.value.fix
    columns = {"eps_id": "episode_index", "t": "frame_index", "obs": "state", "actions": "actions"}
    result = convert(folder, tmp_path / "D", mapping={"columns": columns, "action_scale": "env", "unmapped": "drop"})
    assert (result.episodes, result.steps) == (3, 12)
