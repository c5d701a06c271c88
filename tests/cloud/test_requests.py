"""What reading and writing cost in requests: what docs/storage.md says, counted at S3's client."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from cloud_servers import Cloud
from gymnasium import spaces
from requests_made import Requests

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location

pytestmark = pytest.mark.integration
Told = Callable[..., dict[str, Any]]

STORAGE = (Path(__file__).resolve().parents[2] / "docs" / "storage.md").read_text()
MAPPING = '[columns]\neps_id = "eps_id"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "done"\n'
STEPS, LENGTH, OBS = 400_000, 500, 64
EPISODES = 6


def table(number: int) -> pa.Table:
    steps = [(episode, t) for episode in range(EPISODES) for t in range(10)]
    return pa.table(
        {
            "eps_id": [f"{number}-{episode}" for episode, _ in steps],
            "t": [t for _, t in steps],
            "x": [float(t) for _, t in steps],
            "y": [0.5 for _ in steps],
            "a": [t % 2 for _, t in steps],
            "r": [1.0 for _ in steps],
            "done": [t == 9 for _, t in steps],
        }
    )


def write_csv(path: Path, number: int) -> None:
    pa.csv.write_csv(table(number), path)


def write_parquet(path: Path, number: int) -> None:
    pa.parquet.write_table(table(number), path)


def write_lines(path: Path, number: int) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table(number).to_pylist()))


def write_batches(path: Path, number: int) -> None:
    obs = [[float(t), 0.5] for t in range(11)]
    columns = {"t": list(range(10)), "obs": obs[:-1], "new_obs": obs[1:], "actions": [t % 2 for t in range(10)]}
    ends = {"rewards": [1.0] * 10, "dones": [t == 9 for t in range(10)]}
    batches = [{"type": "SampleBatch", "eps_id": [100 * number + e] * 10, **columns, **ends} for e in range(EPISODES)]
    path.write_text("".join(json.dumps(batch) + "\n" for batch in batches))


KINDS = {"csv": write_csv, "parquet": write_parquet, "jsonl": write_lines, "json": write_batches}


def written(kind: str, files: int, folder: Path) -> tuple[str, ...]:
    """Small files of a kind in `folder`; the options to read them with."""
    (folder / "in").mkdir()
    (folder / "mapping.toml").write_text(MAPPING)
    for number in range(files):
        KINDS[kind](folder / "in" / f"{number:03}.{kind}", number)
    return () if kind == "json" else ("--mapping", str(folder / "mapping.toml"))


def uploaded(folder: Path, cloud: Cloud) -> str:
    url = f"{cloud.bucket()}/in"
    cloud.client().put(f"{folder}/", f"{url}/", recursive=True)
    return url


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_file_is_asked_about_once_and_fetched_once(
    s3: Cloud, requests: Requests, told: Told, tmp_path: Path, kind: str
) -> None:
    options = written(kind, 1, tmp_path)
    url = f"{uploaded(tmp_path / 'in', s3)}/000.{kind}"
    requests.clear()
    assert told("convert", url, "--out", tmp_path / "D", *options)["episodes"] == EPISODES
    assert Counter(method for method, _ in requests.calls) == {"head_object": 1, "get_object": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_small_files_takes_three_requests_and_one_for_each(
    s3: Cloud, requests: Requests, told: Told, tmp_path: Path, kind: str
) -> None:
    options = written(kind, 20, tmp_path)
    url = uploaded(tmp_path / "in", s3)
    requests.clear()
    assert told("convert", url, "--out", tmp_path / "D", *options)["episodes"] == 20 * EPISODES
    assert Counter(method for method, _ in requests.calls) == {"head_object": 1, "list_objects_v2": 2, "get_object": 20}


# ---- the table ----


def said(heading: str) -> dict[str, list[int]]:
    """The rows of the table of docs/storage.md under a heading of columns: how many requests, by command."""
    lines = STORAGE[STORAGE.index(heading) :].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines[: next(i for i, line in enumerate(lines) if not line)]]
    return {cells[0]: [int(re.match(r"\d+", cell)[0]) for cell in cells[1:]] for cells in rows}  # type: ignore[index]  # a number


def write_noise(folder: Path, format: str) -> None:
    """The dataset that the table was counted with: noise, which does not compress, in 2 shards."""
    rng, number = np.random.default_rng(0), STEPS // LENGTH
    batch = EpisodeBatch(
        ids=tuple(f"{i:032x}" for i in range(number)),
        starts=np.arange(number + 1) * LENGTH,
        obs=rng.normal(size=(STEPS + number, OBS)).astype(np.float32),
        actions=rng.integers(0, 4, STEPS),
        rewards=np.ones(STEPS),
        terminated=np.ones(number, bool),
        truncated=np.zeros(number, bool),
    )
    box = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    options: dict[str, Any] = {"observation_space": box, "action_space": spaces.Discrete(4), "action_scale": "env"}
    rows = number // 2 if format == "episodes" else STEPS // 2
    with DatasetWriter(open_location(str(folder)), format=format, max_rows_per_file=rows, **options) as writer:
        writer.write(batch)
        assert len(writer.commit().shards) == 2


@pytest.mark.nightly
@pytest.mark.parametrize(("column", "format"), [(0, "episodes"), (1, "columns")])
def test_the_table_of_requests_is_true(
    s3: Cloud, requests: Requests, told: Told, tmp_path: Path, column: int, format: str
) -> None:
    table = {command: numbers[column] for command, numbers in said("| command | `episodes`").items()}
    write_noise(tmp_path / "in", format)
    url, cache = uploaded(tmp_path / "in", s3), ("--cache", tmp_path / "cache")
    train = ("train-bc", url, "--updates", 2, "--val-fraction", 0.1, "--device", "cpu")
    commands: dict[str, tuple[object, ...]] = {
        "`inspect`": ("inspect", url),
        "`train-bc` (reads all)": (*train, "--out", tmp_path / "run"),
        "the same with a new `--cache`": (*train, "--out", tmp_path / "cold", *cache),
        "the same again": (*train, "--out", tmp_path / "warm", *cache),
        "`convert` to a local folder": ("convert", url, "--out", tmp_path / "D", "--to", format),
        "`convert` of its files, by a glob": ("convert", f"{url}/data/*.parquet", "--out", tmp_path / "E", "--to", format),
        "`convert` to S3 (reads and writes)": ("convert", url, "--out", f"{s3.bucket()}/D", "--to", format),
        "`validate`": ("validate", url),
    }
    counted = {}
    for name, command in commands.items():
        requests.clear()
        told(*command)
        counted[name] = Counter(method for method, _ in requests.calls)
    assert table.keys() == counted.keys()
    for name, methods in counted.items():
        others = 4 if "writes" in name else 2  # what is read ahead, and how often a note is renewed, depend on time
        assert abs(sum(methods.values()) - table[name]) <= others, (name, methods)
