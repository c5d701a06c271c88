"""What an engine's workers read becomes the dataset that this process alone makes, to the last byte and count."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operated import data_files, manifest
from pickled_engine import PickledEngine

from offline_cli.converting.convert import convert
from offline_cli.engines.engine import EngineSpec
from offline_cli.errors import BadData, BadEpisode

REPOSITORY = Path(__file__).resolve().parents[2]
TESTDATA = REPOSITORY / "tests" / "testdata"
SAMPLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
REAL = (
    "rllib_episodes_frozenlake",
    "rllib_episodes_pendulum",
    "sample_batch_pendulum_trunc",
)
WORKERS = {"engine": "processes", "workers": 3}


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


@pytest.mark.parametrize("on_error", ["quarantine"])
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


def test_two_episodes_of_one_id_are_found_across_partitions(tmp_path: Path, pickled: PickledEngine) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    files = sorted(SAMPLE.iterdir())
    for number, file in enumerate([*files[:3], files[0]]):
        shutil.copy(file, folder / f"{number}.parquet")
    result = convert(folder, tmp_path / "out", **WORKERS)
    assert (result.episodes, result.duplicates_dropped) == (3, 1)


@pytest.mark.integration
def test_an_error_half_way_leaves_no_worker_and_no_dataset(tmp_path: Path, datasets: dict[str, Path]) -> None:
    folder = shutil.copytree(datasets["episodes"], tmp_path / "copy")
    last = sorted((folder / "data").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-20])
    with pytest.raises((BadData, BadEpisode)):
        convert(folder, tmp_path / "out", engine="processes", workers=2)
    assert not (tmp_path / "out").exists()
