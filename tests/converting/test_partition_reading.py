"""What an engine's workers read becomes the dataset that this process alone makes, to the last byte and count."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hdf5_trees
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operated import data_files, manifest
from pickled_engine import PickledEngine

import offline_cli
from offline_cli import train
from offline_cli.applying.apply import apply
from offline_cli.converting.convert import convert
from offline_cli.datasets.row_formats import EpisodeRows
from offline_cli.engines.engine import EngineSpec
from offline_cli.errors import BadData, BadEpisode, OfflineCliError
from offline_cli.formats.opening import open_source
from offline_cli.progress import Progress

REPOSITORY = Path(__file__).resolve().parents[2]
TESTDATA = REPOSITORY / "tests" / "testdata"
SAMPLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
REAL = (
    "rllib_columns_dict_flattened",
    "rllib_episodes_cartpole_lstm",
    "rllib_episodes_dict_flattened",
    "rllib_episodes_frozenlake",
    "rllib_episodes_pendulum",
    "sample_batch_pendulum_trunc",
)
OTHERS = (
    *(f"foreign/{name}" for name in ("minari_arrow", "minari_hdf5", "minari_jpeg", "minari_parquet", "d3rlpy_two.h5")),
    *("imitation/continuous", "lerobot/v21", "lerobot/v30", "ogbench/cube-single-play-v0.npz"),
)
WORKERS = {"engine": "processes", "workers": 3}
Call = Callable[..., Any]


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> PickledEngine:
    """In place of processes, for tests that need none."""
    engine = PickledEngine()
    real = EngineSpec.engine
    monkeypatch.setattr(EngineSpec, "engine", lambda spec: real(spec) if spec.name == "local" else engine)
    return engine


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of ours, in several shards: a row an episode, and a row a step."""
    folder = tmp_path_factory.mktemp("datasets")
    for to in ("episodes", "columns"):
        convert(SAMPLE, folder / to, to=to, max_rows_per_file=3 if to == "episodes" else 1000)
    return {to: folder / to for to in ("episodes", "columns")}


def assert_same(here: Path, there: Path) -> None:
    assert data_files(here) == data_files(there)
    assert manifest(here) == manifest(there)


@pytest.mark.parametrize("name", REAL)
def test_a_recording_becomes_the_same_dataset(real_data: Path, name: str, tmp_path: Path, pickled: PickledEngine) -> None:
    to = "columns" if "pendulum" in name else "episodes"
    kind: dict[str, Any] = {"to": to, "max_rows_per_file": 5 if to == "episodes" else 300}
    here = convert(real_data / name, tmp_path / "here", **kind)
    there = convert(real_data / name, tmp_path / "there", **kind, **WORKERS)
    assert_same(tmp_path / "here", tmp_path / "there")
    differ = {"out": "", "seconds": 0}
    assert {**here.as_dict(), **differ} == {**there.as_dict(), **differ}
    assert (pickled.items > 1) == name.startswith("rllib_episodes")  # the others cannot be divided


@pytest.mark.parametrize("name", OTHERS)
def test_formats_of_other_programs_are_read_here(name: str, tmp_path: Path, pickled: PickledEngine) -> None:
    """What is known of an episode once all files are read, and the process that reads HDF5, stay with the command."""
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert(TESTDATA / name, tmp_path / out, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")
    assert not pickled.items


def test_an_episode_of_lerobot_may_go_on_in_the_next_file(tmp_path: Path, pickled: PickledEngine) -> None:
    """Where its record says how many frames it has: no part of the files can tell that some are missing."""
    folder = Path(shutil.copytree(TESTDATA / "lerobot" / "v30", tmp_path / "source"))
    file = folder / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.slice(0, 2), file)  # of four frames
    pq.write_table(table.slice(2), file.with_name("file-001.parquet"))
    records = folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    episodes = pq.read_table(records)
    at = episodes.column_names.index("data/file_index")
    pq.write_table(episodes.set_column(at, "data/file_index", pa.array([0, 1, 1])), records)
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert(folder, tmp_path / out, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")


@pytest.mark.integration
def test_hdf5_is_read_beside_the_workers_of_another_source(tmp_path: Path) -> None:
    first, second = (hdf5_trees.write(tmp_path / f"{seed}.hdf5", hdf5_trees.d4rl(seed=seed)) for seed in (0, 1))
    convert(first, tmp_path / "ours", max_rows_per_file=1)
    for out, engine in (("here", {}), ("there", {"engine": "processes", "workers": 2})):
        convert([str(tmp_path / "ours"), str(second)], tmp_path / out, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")


def test_a_demonstration_of_robomimic_is_read_here(tmp_path: Path, pickled: PickledEngine) -> None:
    file = hdf5_trees.robomimic(tmp_path / "one.hdf5")
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert(file, tmp_path / out, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")


def test_images_are_read_by_workers(tmp_path: Path, pickled: PickledEngine) -> None:
    convert(TESTDATA / "foreign" / "minari_jpeg", tmp_path / "ours", max_rows_per_file=1)
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert(tmp_path / "ours", tmp_path / out, to="columns", **engine)
    assert_same(tmp_path / "here", tmp_path / "there")
    assert pickled.items > 1


OPERATIONS: dict[str, tuple[Call, dict[str, Any]]] = {
    "filter": (offline_cli.filter, {"where": "length > 100"}),
    "sample": (offline_cli.sample, {"fraction": 0.4, "seed": 3}),
    "merge": (offline_cli.merge, {}),
    "repack": (offline_cli.repack, {"max_rows_per_file": 7}),
    "repack columns": (offline_cli.repack, {"format": "columns"}),
    "repack hashed": (offline_cli.repack, {"hash_ids": True, "format": "episodes"}),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("source", ["episodes", "columns", "foreign"])
def test_an_operation_gives_the_same_dataset(
    datasets: dict[str, Path], name: str, source: str, tmp_path: Path, pickled: PickledEngine
) -> None:
    call, options = OPERATIONS[name]
    place = SAMPLE if source == "foreign" else datasets[source]
    call(place, tmp_path / "here", **options)
    call(place, tmp_path / "there", **options, **WORKERS)
    assert_same(tmp_path / "here", tmp_path / "there")
    assert pickled.items > 1


def test_the_parts_of_a_split_are_the_same(datasets: dict[str, Path], tmp_path: Path, pickled: PickledEngine) -> None:
    for out, engine in (("here", {}), ("there", WORKERS)):
        offline_cli.split(datasets["episodes"], tmp_path / out, fractions={"a": 0.6, "b": 0.4}, **engine)
    for part in ("a", "b"):
        assert_same(tmp_path / "here" / part, tmp_path / "there" / part)
    assert pickled.items > 1


def test_rows_of_datasets_are_handed_through_by_workers_as_they_are_here(
    datasets: dict[str, Path], tmp_path: Path, pickled: PickledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making rows again takes longer than all else."""
    ready: list[bool] = []
    table = EpisodeRows.table

    def seen(self: EpisodeRows, *args: Any, **kwargs: Any) -> Any:
        ready.append(kwargs.get("ready") is not None)
        return table(self, *args, **kwargs)

    monkeypatch.setattr(EpisodeRows, "table", seen)
    offline_cli.merge(datasets["episodes"], tmp_path / "there", **WORKERS)
    assert ready
    assert all(ready)


def test_two_sources_are_read_one_after_the_other(datasets: dict[str, Path], tmp_path: Path, pickled: PickledEngine) -> None:
    sources = [datasets["episodes"], datasets["columns"], SAMPLE]
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert([str(one) for one in sources], tmp_path / out, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Two of its files hold bytes that are no episode."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for number, file in enumerate(sorted(SAMPLE.iterdir())[:6]):
        table = pq.read_table(file)
        if number in (1, 4):
            table = table.set_column(0, "item", pa.array([b"torn"] * table.num_rows, pa.large_binary()))
        pq.write_table(table, folder / file.name)
    return folder


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_what_is_set_aside_is_counted_and_kept_alike(
    damaged: Path, on_error: str, tmp_path: Path, pickled: PickledEngine
) -> None:
    results = []
    for out, engine in (("here", {}), ("there", WORKERS)):
        results.append(convert(damaged, tmp_path / out, on_error=on_error, **engine).as_dict())
    assert results[0]["rejected"] == results[1]["rejected"]
    assert results[0]["episodes_lost"] == results[1]["episodes_lost"] == 2
    assert_same(tmp_path / "here", tmp_path / "there")
    kept = [sorted(file.read_bytes() for file in (tmp_path / out).glob("quarantine/*")) for out in ("here", "there")]
    assert kept[0] == kept[1]
    assert bool(kept[0]) == (on_error == "quarantine")


def test_a_row_that_cannot_be_read_is_the_same_error(damaged: Path, tmp_path: Path, pickled: PickledEngine) -> None:
    errors: list[OfflineCliError] = []
    for engine in ({}, WORKERS):
        with pytest.raises(BadData) as raised:
            convert(damaged, tmp_path / "out", **engine)
        errors.append(raised.value)
    assert errors[0].as_dict() == errors[1].as_dict()
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_contradicts_its_shards_is_the_same_error(
    datasets: dict[str, Path], tmp_path: Path, pickled: PickledEngine
) -> None:
    folder = shutil.copytree(datasets["episodes"], tmp_path / "copy")
    document = json.loads((folder / "manifest.json").read_text())
    document["counts"]["terminated"] -= 1
    document["counts"]["truncated"] += 1
    (folder / "manifest.json").write_text(json.dumps(document))
    errors: list[OfflineCliError] = []
    for engine in ({}, WORKERS):
        with pytest.raises(BadData, match="the manifest contradicts its shards") as raised:
            convert(folder, tmp_path / "out", to="columns", **engine)
        errors.append(raised.value)
    assert errors[0].as_dict() == errors[1].as_dict()


@pytest.mark.parametrize(
    "operation",
    [
        lambda folder, out, **engine: offline_cli.repack(folder, out, hash_ids=True, **engine),
        lambda folder, out, **engine: offline_cli.merge([folder], out, unique_ids=True, **engine),
        lambda folder, out, **engine: offline_cli.sample(folder, out, episodes=2, **engine),
    ],
    ids=["repack", "merge", "sample"],
)
def test_so_it_is_to_an_operation(operation: Call, datasets: dict[str, Path], tmp_path: Path, pickled: PickledEngine) -> None:
    folder = shutil.copytree(datasets["episodes"], tmp_path / "copy")
    document = json.loads((folder / "manifest.json").read_text())
    document["counts"]["terminated"] -= 1
    document["counts"]["truncated"] += 1
    (folder / "manifest.json").write_text(json.dumps(document))
    errors: list[dict[str, Any] | None] = []
    for engine in ({}, WORKERS):
        try:
            operation(folder, tmp_path / f"out-{len(errors)}", **engine)
            errors.append(None)
        except BadData as error:
            errors.append(error.as_dict())
    assert errors[0] == errors[1]


def test_a_partition_carries_its_own_shards_alone(datasets: dict[str, Path]) -> None:
    source = open_source(str(datasets["episodes"]))
    parts = source.partitions(4)
    assert [part.size for part in parts] == [sum(one.episodes for one in part.dataset.shards) for part in parts]
    for part in parts:
        assert part.dataset.manifest.shards == part.info.manifest.shards == part.dataset.shards
    assert sum((tuple(part.dataset.shards) for part in parts), ()) == source.dataset.manifest.shards


def test_two_episodes_of_one_id_are_found_across_partitions(tmp_path: Path, pickled: PickledEngine) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    files = sorted(SAMPLE.iterdir())
    for number, file in enumerate([*files[:3], files[0]]):
        shutil.copy(file, folder / f"{number}.parquet")
    result = convert(folder, tmp_path / "out", **WORKERS)
    assert (result.episodes, result.duplicates_dropped) == (3, 1)


def test_a_limit_of_episodes_is_read_here(tmp_path: Path, pickled: PickledEngine) -> None:
    for out, engine in (("here", {}), ("there", WORKERS)):
        convert(SAMPLE, tmp_path / out, limit=3, **engine)
    assert_same(tmp_path / "here", tmp_path / "there")
    assert not pickled.items


def test_progress_of_all_workers_is_one(tmp_path: Path, pickled: PickledEngine) -> None:
    told: list[Progress] = []
    convert(SAMPLE, tmp_path / "out", on_progress=told.append, **WORKERS)
    reading = [one for one in told if one.stage == "reading"]
    assert [one.done for one in reading] == sorted(one.done for one in reading)
    assert reading[-1].done == reading[-1].total


def test_train_batches_are_the_same(tmp_path: Path, pickled: PickledEngine) -> None:
    pipeline = tmp_path / "pieces.toml"
    pipeline.write_text('kind = "learner"\n[[pieces]]\nname = "MeanStdFilter"\n')
    for out, engine in (("here", {}), ("there", WORKERS)):
        apply(SAMPLE, str(tmp_path / out), pipeline=pipeline, steps_per_batch=1000, **engine)
    here, there = ({f.name: f.read_bytes() for f in (tmp_path / out).rglob("*.parquet")} for out in ("here", "there"))
    assert here
    assert here == there
    assert pickled.items > 1


def test_pieces_get_the_network_of_a_run_as_they_do_here(tmp_path: Path, pickled: PickledEngine) -> None:
    (tmp_path / "memory.toml").write_text('hidden = [8]\n[network]\nmemory = "lstm"\nmemory_size = 4\nmax_seq_len = 5\n')
    train(str(SAMPLE), tmp_path / "run", config=tmp_path / "memory.toml", updates=2, device="cpu")
    (tmp_path / "pieces.toml").write_text('kind = "learner"\n')
    for out, engine in (("here", {}), ("there", WORKERS)):
        kind: dict[str, Any] = {"pipeline": tmp_path / "pieces.toml", "policy": tmp_path / "run", **engine}
        apply(SAMPLE, str(tmp_path / out), steps_per_batch=1000, **kind)
    here, there = ({f.name: f.read_bytes() for f in (tmp_path / out).rglob("*.parquet")} for out in ("here", "there"))
    assert here
    assert here == there
    assert pickled.items > 1


@pytest.mark.integration
def test_real_processes_in_any_number_give_the_same(datasets: dict[str, Path], tmp_path: Path) -> None:
    for workers, source in ((1, SAMPLE), (2, datasets["episodes"]), (5, datasets["columns"])):
        here, there = tmp_path / f"here-{workers}", tmp_path / f"there-{workers}"
        convert(source, here, max_rows_per_file=4)
        convert(source, there, max_rows_per_file=4, engine="processes", workers=workers)
        assert_same(here, there)


@pytest.mark.integration
def test_an_error_half_way_leaves_no_worker_and_no_dataset(tmp_path: Path, datasets: dict[str, Path]) -> None:
    folder = shutil.copytree(datasets["episodes"], tmp_path / "copy")
    last = sorted((folder / "data").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-20])
    with pytest.raises((BadData, BadEpisode)):
        convert(folder, tmp_path / "out", engine="processes", workers=2)
    assert not (tmp_path / "out").exists()
