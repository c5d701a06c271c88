"""Conversions write whole datasets, or leave what was there as it was."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli import record
from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import (
    BadConfig,
    BadData,
    Interrupted,
    NoData,
    OfflineCliError,
    OutputExists,
    StorageNotFound,
    UnknownEnvironment,
    UsageError,
)
from offline_cli.formats import parquet_files
from offline_cli.progress import Progress

KEYS = {
    "out",
    "episodes",
    "steps",
    "rows_in",
    "duplicates_dropped",
    "fragments_stitched",
    "rows_quarantined",
    "episodes_lost",
    "assumptions",
    "seconds",
}


def recording(folder: Path, episodes: int = 6, *, steps: int = 5) -> str:
    """One file per episode, packed by nobody."""
    folder.mkdir()
    for number in range(episodes):
        t = np.arange(steps)
        table = {
            "eps_id": [f"e{number}"] * steps,
            "t": t,
            "obs": [[float(number), float(i)] for i in t],
            "new_obs": [[float(number), float(i + 1)] for i in t],
            "actions": t % 2,
            "rewards": np.full(steps, number, np.float64),
            "terminateds": t == steps - 1,
            "truncateds": np.zeros(steps, np.bool_),
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    return str(folder)


def everything_below(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def data_of(dataset: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((dataset / "data").iterdir())}


def whole(dataset: Path) -> EpisodeBatch:
    return EpisodeBatch.concat(list(Dataset.open(str(dataset)).batches()))


def test_the_result_has_the_documented_keys(tmp_path: Path) -> None:
    result = convert(recording(tmp_path / "r"), str(tmp_path / "D")).as_dict()
    assert result.keys() >= KEYS
    assert (result["episodes"], result["steps"], result["rows_in"]) == (6, 30, 30)
    json.dumps(result)


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_the_same_input_gives_the_same_bytes(to: str, tmp_path: Path) -> None:
    source = recording(tmp_path / "r")
    for name, workers in (("one", 1), ("two", 2)):
        convert(source, str(tmp_path / name), to=to, workers=workers, max_rows_per_file=7)
    assert data_of(tmp_path / "one") == data_of(tmp_path / "two")


def test_what_was_assumed_stands_in_result_and_manifest(real_data: Path, tmp_path: Path) -> None:
    result = convert(str(real_data / "sample_batch_cartpole_lz4"), str(tmp_path / "D"))
    assert (result.episodes, result.assumptions["unfinished-episode"]) == (163, 1)
    assumptions = Dataset.open(str(tmp_path / "D")).manifest.assumptions
    assert assumptions["unfinished-episode"] == 1
    assert assumptions["stitched-fragment"] == result.fragments_stitched > 0


def test_duplicates_are_dropped_and_counted(real_data: Path, tmp_path: Path) -> None:
    result = convert(str(real_data / "rllib_columns_cartpole_expert"), str(tmp_path / "D"))
    assert (result.episodes, result.duplicates_dropped, result.rows_in) == (50, 25, 35817)
    assert Dataset.open(str(tmp_path / "D")).manifest.assumptions["duplicate-episode"] == 25


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_limit_takes_the_first_episodes(limit: int, tmp_path: Path) -> None:
    assert convert(recording(tmp_path / "r"), str(tmp_path / "D"), limit=limit).episodes == min(limit, 6)
    assert whole(tmp_path / "D").ids == tuple(f"e{i}" for i in range(min(limit, 6)))


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    result = convert(recording(tmp_path / "r"), str(tmp_path / "D"), dry_run=True)
    assert (result.episodes, result.steps, result.dry_run) == (6, 30, True)
    assert not (tmp_path / "D").exists()


def test_a_dry_run_refuses_what_would_be_refused(tmp_path: Path) -> None:
    source = recording(tmp_path / "r")
    convert(source, str(tmp_path / "D"))
    before = everything_below(tmp_path)
    with pytest.raises(OutputExists):
        convert(source, str(tmp_path / "D"), dry_run=True)
    with pytest.raises(UsageError):
        convert(source, str(tmp_path / "E"), dry_run=True, compression="rar")
    assert convert(source, str(tmp_path / "D"), dry_run=True, overwrite=True).episodes == 6
    assert everything_below(tmp_path) == before


def test_limit_counts_and_infers_nothing_beyond_it(tmp_path: Path) -> None:
    source = Path(recording(tmp_path / "r"))
    for number in range(1, 6):  # a file with other columns is read by itself: row groups and tables do not hide what is read
        table = pq.read_table(source / f"{number}.parquet")
        actions = pa.array([number] * 5)
        pq.write_table(table.set_column(4, "actions", actions).append_column("x", table["t"]), source / f"{number}.parquet")
    result = convert(str(source), str(tmp_path / "D"), limit=1)
    assert (result.episodes, result.rows_in, result.assumptions) == (1, 5, {})
    assert Dataset.open(str(tmp_path / "D")).manifest.action_space == spaces.Discrete(2)


@pytest.mark.parametrize("workers", [1, 3])
def test_as_many_files_are_read_at_a_time_as_there_are_workers(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, lock = [0], [0], threading.Lock()
    read_small = parquet_files._read_small

    def watched(*args: Any, **more: Any) -> Any:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        try:
            return read_small(*args, **more)
        finally:
            with lock:
                inside[0] -= 1

    monkeypatch.setattr(parquet_files, "_read_small", watched)
    convert(recording(tmp_path / "r", 12), str(tmp_path / "D"), workers=workers)
    assert most[0] == workers


def test_commands_of_earlier_conversions_are_kept_in_their_order(tmp_path: Path) -> None:
    convert(recording(tmp_path / "r"), str(tmp_path / "D"), command=["first"])
    convert(str(tmp_path / "D"), str(tmp_path / "E"), to="columns", command=["second", "a b"])
    assert Dataset.open(str(tmp_path / "E")).manifest.provenance["commands"] == ["first", "second 'a b'"]


def test_quarantine_keeps_bad_rows_with_place_and_reason(tmp_path: Path) -> None:
    source = recording(tmp_path / "r")
    table = pq.read_table(f"{source}/2.parquet")
    rewards = pa.array([None, 1.0, 1.0, 1.0, 1.0])
    pq.write_table(table.set_column(5, "rewards", rewards), f"{source}/2.parquet")
    result = convert(source, str(tmp_path / "D"), on_error="quarantine")
    rows = pq.read_table(tmp_path / "D" / "quarantine").to_pylist()
    assert rows[0]["where"].endswith("2.parquet row 0")
    assert rows[0]["reason"] == "column rewards has no value"
    assert result.episodes == 5
    assert [set(one) for one in result.rejected] == [{"where", "code", "what"}] * len(result.rejected) != []
    assert result.rows_quarantined == 1 + 4  # the row, and what is left of its episode
    assert rows[1]["reason"].endswith("was lost at " + rows[0]["where"])


def missing_path(tmp_path: Path) -> tuple[str, type[OfflineCliError]]:
    return str(tmp_path / "nowhere"), StorageNotFound


def empty_folder(tmp_path: Path) -> tuple[str, type[OfflineCliError]]:
    (tmp_path / "empty").mkdir()
    return str(tmp_path / "empty"), NoData


def cut_parquet(tmp_path: Path) -> tuple[str, type[OfflineCliError]]:
    path = Path(recording(tmp_path / "cut")) / "3.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return str(path.parent), BadData


def cut_line(tmp_path: Path) -> tuple[str, type[OfflineCliError]]:
    columns = {"obs": [[0.0], [1.0]], "actions": [0, 1], "rewards": [1, 1], "dones": [False, True], "eps_id": [7, 7]}
    line = json.dumps({"type": "SampleBatch", **columns})
    (tmp_path / "cut.json").write_text(f"{line}\n{line[:40]}\n", encoding="utf-8")
    return str(tmp_path / "cut.json"), BadData


@pytest.mark.parametrize("case", [missing_path, empty_folder, cut_parquet, cut_line])
def test_what_cannot_be_read_is_refused_by_place_and_remedy_and_leaves_nothing(
    case: Callable[[Path], tuple[str, type[OfflineCliError]]], tmp_path: Path
) -> None:
    source, error = case(tmp_path)
    before = everything_below(tmp_path)
    with pytest.raises(error) as caught:
        convert(source, str(tmp_path / "D"))
    assert source in caught.value.where
    assert caught.value.fix
    assert everything_below(tmp_path) == before


def test_an_output_that_exists_is_not_touched_and_is_found_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "D").mkdir()
    (tmp_path / "D" / "mine.txt").write_text("precious", encoding="utf-8")
    source = recording(tmp_path / "r")
    before = everything_below(tmp_path)
    reports: list[Progress] = []
    with pytest.raises(OutputExists):
        convert(source, str(tmp_path / "D"), on_progress=reports.append)
    assert everything_below(tmp_path) == before
    assert not reports


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"to": "flashbax"}, UsageError),
        ({"limit": 0}, UsageError),
        ({"action_scale": "raw"}, UsageError),
        ({"compression": "rar"}, UsageError),
        ({"env": "NoSuchEnv-v9"}, UnknownEnvironment),
        ({"env": "Acrobot-v1"}, BadConfig),
    ],
)
def test_options_that_make_no_sense_leave_nothing(
    options: dict[str, object], error: type[OfflineCliError], tmp_path: Path
) -> None:
    source = recording(tmp_path / "r")
    with pytest.raises(error):
        convert(source, str(tmp_path / "D"), **options)  # type: ignore[arg-type]
    assert not (tmp_path / "D").exists()


def test_an_output_inside_its_source_is_refused(tmp_path: Path) -> None:
    source = recording(tmp_path / "r")
    with pytest.raises(UsageError, match="inside the source"):
        convert(source, f"{source}/D")


def interrupt_after(reports: int) -> Callable[[Progress], None]:
    seen: list[Progress] = []

    def listener(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > reports:
            raise KeyboardInterrupt

    return listener


@pytest.mark.parametrize(("to", "rows"), [("episodes", 1), ("columns", 5)])
def test_an_interrupted_conversion_keeps_its_shards_and_goes_on_to_the_same_bytes(to: str, rows: int, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    convert(recording(tmp_path / "r"), source, max_rows_per_file=1)  # six shards, so six batches and reports
    convert(source, str(tmp_path / "undisturbed"), to=to, max_rows_per_file=rows)
    with pytest.raises(Interrupted, match="shards that were complete are kept") as caught:
        convert(source, str(tmp_path / "D"), to=to, max_rows_per_file=rows, on_progress=interrupt_after(4))
    assert "--resume" in caught.value.fix
    kept = data_of(tmp_path / "D")
    assert kept
    result = convert(source, str(tmp_path / "D"), to=to, max_rows_per_file=rows, resume=True)
    assert result.episodes == 6
    assert data_of(tmp_path / "D") == data_of(tmp_path / "undisturbed")
    assert kept.items() <= data_of(tmp_path / "D").items()


def test_an_interruption_before_the_first_shard_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert(recording(tmp_path / "r"), str(tmp_path / "D"), on_progress=interrupt_after(0))
    assert not (tmp_path / "D").exists()


def test_overwrite_replaces_a_dataset_even_by_a_conversion_of_itself(tmp_path: Path) -> None:
    convert(recording(tmp_path / "r"), str(tmp_path / "D"))
    before = whole(tmp_path / "D")
    convert(str(tmp_path / "D"), str(tmp_path / "D"), to="columns", overwrite=True)
    after = whole(tmp_path / "D")
    assert after.ids == before.ids
    np.testing.assert_array_equal(after.obs, before.obs)
    assert Dataset.open(str(tmp_path / "D")).manifest.format == "columns"


def test_a_source_that_moved_away_between_is_no_reason_to_touch_the_dataset(tmp_path: Path) -> None:
    source = recording(tmp_path / "r")
    convert(source, str(tmp_path / "D"))
    before = everything_below(tmp_path / "D")
    shutil.rmtree(source)
    with pytest.raises(StorageNotFound):
        convert(source, str(tmp_path / "D"), overwrite=True)
    assert everything_below(tmp_path / "D") == before


def test_a_table_beside_a_recording_of_narrower_floats_is_told_to_name_the_environment_which_helps(tmp_path: Path) -> None:
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=2, num_env_runners=0)
    rows = "".join(f"a,{step},0.1,0.2,0.3,0.4,1,1.0\n" for step in range(3))
    (tmp_path / "t.csv").write_text(f"id,t,p,q,r,s,move,gain\n{rows}")
    columns = {"eps_id": "id", "t": "t", "obs": ["p", "q", "r", "s"], "actions": "move", "rewards": "gain"}
    both: Any = [tmp_path / "t.csv", tmp_path / "D"], tmp_path / "out"
    with pytest.raises(BadData, match="float32 of its space cannot hold") as caught:
        convert(*both, mapping={"columns": columns})
    assert "with --env" in caught.value.fix
    assert convert(*both, mapping={"columns": columns}, env="CartPole-v1").episodes == 3
