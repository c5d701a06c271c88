"""Conversions write whole datasets, or leave what was there as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import (
    BadData,
    Interrupted,
    NoData,
    OfflineCliError,
    OutputExists,
    StorageNotFound,
    UsageError,
)
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


def test_a_dry_run_shows_the_first_episode_and_as_many_as_the_limit(tmp_path: Path) -> None:
    result = convert(recording(tmp_path / "r"), str(tmp_path / "D"), dry_run=True, limit=2)
    assert (result.episodes, result.steps, result.shards) == (2, 10, 0)
    assert not (tmp_path / "D").exists()
    assert result.preview is not None
    first = result.preview["first_episode"]
    assert (first["length"], first["return"], first["terminated"], first["truncated"]) == (5, 0.0, True, False)
    assert [step["obs"] for step in first["first_steps"]] == [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]


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


def test_progress_of_files_is_told_in_kilobytes_up_to_their_size(tmp_path: Path) -> None:
    source, reports = tmp_path / "steps.csv", list[Progress]()
    names = ("eps_id", "obs", "actions", "rewards", "terminateds")
    mapping = {"columns": dict(zip(names, names, strict=True))}
    rows = "".join(f"{episode},{step},0,1.0,{step == 2}\n" for episode in range(500) for step in range(3))
    source.write_text(",".join(names) + f"\n{rows}", encoding="utf-8")
    convert(str(source), str(tmp_path / "D"), mapping=mapping, on_progress=reports.append)
    total = -(-source.stat().st_size // 1000)
    assert {(one.total, one.unit) for one in reports if one.unit == "kB"} == {(total, "kB")}
    assert max(one.done for one in reports if one.unit == "kB") == total


@pytest.mark.parametrize(("to", "unit", "total"), [("episodes", "episodes", 6), ("columns", "steps", 30)])
def test_progress_of_a_dataset_is_told_in_what_its_rows_are(to: str, unit: str, total: int, tmp_path: Path) -> None:
    reports = list[Progress]()
    convert(recording(tmp_path / "r"), str(tmp_path / "D"), to=to)
    convert(str(tmp_path / "D"), str(tmp_path / "E"), on_progress=reports.append)
    assert (reports[-1].done, reports[-1].total, reports[-1].unit) == (total, total, unit)


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
    with pytest.raises(Interrupted) as caught:
        convert(source, str(tmp_path / "D"), to=to, max_rows_per_file=rows, on_progress=interrupt_after(4))
    assert "--resume" in caught.value.fix
    kept = data_of(tmp_path / "D")
    assert kept
    result = convert(source, str(tmp_path / "D"), to=to, max_rows_per_file=rows, resume=True)
    assert result.episodes == 6
    assert data_of(tmp_path / "D") == data_of(tmp_path / "undisturbed")
    assert kept.items() <= data_of(tmp_path / "D").items()


def test_overwrite_replaces_a_dataset_even_by_a_conversion_of_itself(tmp_path: Path) -> None:
    convert(recording(tmp_path / "r"), str(tmp_path / "D"))
    before = whole(tmp_path / "D")
    convert(str(tmp_path / "D"), str(tmp_path / "D"), to="columns", overwrite=True)
    after = whole(tmp_path / "D")
    assert after.ids == before.ids
    np.testing.assert_array_equal(after.obs, before.obs)
    assert Dataset.open(str(tmp_path / "D")).manifest.format == "columns"
