"""What reading and writing cost in requests: what docs/storage.md says, counted at S3's client."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from cloud_servers import Cloud
from requests_made import Requests

pytestmark = pytest.mark.integration
Told = Callable[..., dict[str, Any]]

MAPPING = '[columns]\neps_id = "eps_id"\nt = "t"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\nterminateds = "done"\n'
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


def write_parquet(path: Path, number: int) -> None:
    pa.parquet.write_table(table(number), path)


def write_batches(path: Path, number: int) -> None:
    obs = [[float(t), 0.5] for t in range(11)]
    columns = {"t": list(range(10)), "obs": obs[:-1], "new_obs": obs[1:], "actions": [t % 2 for t in range(10)]}
    ends = {"rewards": [1.0] * 10, "dones": [t == 9 for t in range(10)]}
    batches = [{"type": "SampleBatch", "eps_id": [100 * number + e] * 10, **columns, **ends} for e in range(EPISODES)]
    path.write_text("".join(json.dumps(batch) + "\n" for batch in batches))


KINDS = {"parquet": write_parquet, "json": write_batches}


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


PASSES = 5  # over a file: what it is, its footer, its columns, its spaces, its rows


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_what_a_listing_says_of_small_files_is_not_asked_again(
    s3: Cloud, requests: Requests, told: Told, tmp_path: Path, kind: str
) -> None:
    options = written(kind, 20, tmp_path)
    url = uploaded(tmp_path / "in", s3)
    requests.clear()
    assert told("convert", url, "--out", tmp_path / "D", *options)["episodes"] == 20 * EPISODES
    found = Counter(method for method, _ in requests.calls)
    assert found["head_object"] + found["list_objects_v2"] <= 10, "of the folder, and of no file by itself"
    assert 20 <= found["get_object"] <= 20 * PASSES
