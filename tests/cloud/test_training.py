"""train-bc with its run folder on S3, Google Cloud Storage and Azure: what a local one holds, whatever happens to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud, with_gcs
from safetensors.torch import load
from signal_at import signal_at

from offline_cli import record
from offline_cli.errors import Interrupted
from offline_cli.storage.locations import Location, open_location
from offline_cli.training.train import train_bc

pytestmark = pytest.mark.integration

Told = Callable[..., dict[str, Any]]
CONFIG = "hidden = [16]\nlog_every = 7\ncheckpoint_every = 10\nconfirm_episodes = 2\n"
UPDATES = 60
TRAIN = ("--updates", str(UPDATES), "--batch-size", "64", "--val-fraction", "0.25", "--eval-every", "20", "--device", "cpu")
OPTIONS: dict[str, Any] = {"updates": UPDATES, "batch_size": 64, "val_fraction": 0.25, "eval_every": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local dataset of 20 episodes."""
    out = tmp_path_factory.mktemp("data") / "D"
    record("CartPole-v1", out, policy="random", episodes=20, num_env_runners=0)
    return out


@pytest.fixture(scope="module")
def config(data: Path) -> Path:
    """A small network, and many checkpoints."""
    path = data.parent / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def whole(data: Path, config: Path, told: Told) -> Path:
    """The run that nothing disturbs, on a local disk."""
    out = data.parent / "whole"
    told("train-bc", data, "--out", out, "--config", config, *TRAIN)
    return out


def content(run: Location) -> dict[str, Any]:
    """Every file by its path, but for what the clock says."""
    names = [file.path.removeprefix(run.path).strip("/") for file in run.files()]
    found: dict[str, Any] = {name: run.join(name).read_bytes() for name in names}
    rows = [json.loads(line) for line in found["metrics.jsonl"].splitlines()]
    found["metrics.jsonl"] = [untimed(row) for row in rows]
    found["state.json"] = untimed(json.loads(found["state.json"]))
    found["state.safetensors"] = load(found["state.safetensors"])["modules.policy.network.0.weight"].tolist()
    del found["result.json"]
    return found


def untimed(told: dict[str, Any]) -> dict[str, Any]:
    # metrics_bytes: times have more or fewer digits; sha256: of the file that says all these
    clock = ("seconds", "samples_per_second", "train_seconds", "metrics_bytes", "sha256")
    return {name: value for name, value in told.items() if name not in clock}


def assert_same_run(url: str, cloud: Cloud, whole: Path) -> None:
    assert content(open_location(url, cloud.options)) == content(open_location(whole))


@with_gcs
def test_a_run_folder_in_a_bucket_holds_what_a_local_one_holds(
    cloud: Cloud, data: Path, config: Path, whole: Path, told: Told
) -> None:
    out = f"{cloud.bucket()}/runs/one"
    found = told("train-bc", data, "--out", out, "--config", config, *TRAIN)
    assert found["run"] == out
    assert_same_run(out, cloud, whole)


def test_a_run_that_was_stopped_goes_on_to_the_same_end(
    cloud: Cloud, data: Path, config: Path, whole: Path, told: Told
) -> None:
    out = f"{cloud.bucket()}/run"
    for update in (7, 35):
        with pytest.raises(Interrupted):
            train_bc(data, out, config=config, resume=True, on_progress=signal_at(update), **OPTIONS)
    told("train-bc", data, "--out", out, "--resume")
    assert_same_run(out, cloud, whole)


# ---- faults ----
