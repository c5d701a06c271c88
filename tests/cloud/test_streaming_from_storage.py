"""train-bc --streaming from S3, Google Cloud Storage and Azure: what it learns from a local disk, each byte fetched once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud

from offline_cli import record
from offline_cli.errors import Interrupted
from offline_cli.progress import Progress
from offline_cli.storage.locations import open_location
from offline_cli.training.train import train_bc

pytestmark = pytest.mark.integration

Told = Callable[..., dict[str, Any]]
TIMES = ("run", "seconds", "samples_per_second")
CONFIG = "hidden = [16]\nlog_every = 7\ncheckpoint_every = 10\n"
TRAIN = ("--updates", "40", "--batch-size", "64", "--val-fraction", "0.25", "--eval-every", "20", "--device", "cpu")
STREAM = ("--streaming", "--memory-limit", "4GiB")
OPTIONS: dict[str, Any] = {"updates": 40, "batch_size": 64, "val_fraction": 0.25, "eval_every": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local dataset in several shards."""
    out = tmp_path_factory.mktemp("data") / "D"
    record("CartPole-v1", out, policy="random", episodes=80, num_env_runners=0, format="columns", max_rows_per_file=300)
    return out


@pytest.fixture(scope="module")
def config(data: Path) -> Path:
    """A small network, and many checkpoints."""
    path = data.parent / "config.toml"
    path.write_text(CONFIG)
    return path


def uploaded(folder: Path, cloud: Cloud) -> str:
    url, client = f"{cloud.bucket()}/D", cloud.client()
    for path in folder.rglob("*"):
        if path.is_file():
            client.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in TIMES}


def weights(run: Path | str, cloud: Cloud | None = None) -> bytes:
    return open_location(run, None if cloud is None else cloud.options).join("policy.safetensors").read_bytes()


def test_a_stream_from_a_bucket_is_that_from_a_local_disk(
    cloud: Cloud, data: Path, config: Path, told: Told, tmp_path: Path
) -> None:
    results = [
        told("train-bc", source, "--out", tmp_path / name, "--config", config, *TRAIN, *STREAM, "--temp-dir", tmp_path)
        for source, name in ((data, "local"), (uploaded(data, cloud), "remote"))
    ]
    assert untimed(results[1]) == untimed(results[0])
    assert weights(tmp_path / "remote") == weights(tmp_path / "local")


def test_a_stream_into_a_bucket_that_was_stopped_goes_on_to_the_same_end(
    s3: Cloud, data: Path, config: Path, told: Told, tmp_path: Path
) -> None:
    url, out, sent = uploaded(data, s3), f"{s3.bucket()}/run", []

    def interrupt(progress: Progress) -> None:
        if progress.stage == "training" and progress.done >= 17 and not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    stream = {"streaming": True, "memory_limit": 4 << 30, "temp_dir": str(tmp_path)}
    cache = {"cache": tmp_path / "cache"}
    with pytest.raises(Interrupted):
        train_bc(url, out, config=config, storage_options=cache, on_progress=interrupt, **OPTIONS, **stream)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    told("train-bc", url, "--out", out, "--resume", "--cache", tmp_path / "cache")
    told("train-bc", data, "--out", tmp_path / "whole", "--config", config, *TRAIN, *STREAM)
    assert weights(out, s3) == weights(tmp_path / "whole")
