"""Published copies and processes of their own: commands that find the Hub by environment variables alone, other libraries."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hub_server import TOKEN, Hub, hub_server

import offline_cli
from benchmarks import rival_environments

NAME = "me/walker"
URL = f"hf://datasets/{NAME}"
TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "howto" / "share.md"
V30 = TESTS / "testdata" / "lerobot" / "v30"
LEROBOT = {str(one.relative_to(V30)): one.read_bytes() for one in V30.rglob("*") if one.is_file()}
REQUIREMENTS = TESTS / "support" / "requirements" / "datasets.txt"
Run = Callable[..., Any]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as server:
        yield server


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The variables with which the client finds the Hub, and a home of its own."""
    own = {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }
    return {**os.environ, **own}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs a command in a process of its own; what it told."""

    def command(*args: Any) -> Any:
        words = [sys.executable, "-m", "offline_cli", *map(str, args), "--json", "--quiet"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        return json.loads(done.stdout)

    return command


@pytest.fixture
def dataset(run: Run, tmp_path: Path) -> Path:
    """Twelve episodes of columns, in some shards."""
    options = ("--policy", "random", "--episodes", "12", "--format", "columns", "--max-rows-per-file", "60", "--seed", "3")
    run("record", "CartPole-v1", *options, "--out", tmp_path / "D")
    return tmp_path / "D"


@pytest.mark.integration
def test_commands_find_the_hub_by_the_clients_own_variables(run: Run, hub: Hub, dataset: Path, tmp_path: Path) -> None:
    told = run("publish", dataset, "--to", URL, "--license", "mit", "--private")
    assert told["private"]
    assert told["notes"] == []

    copied = run("convert", URL, "--out", tmp_path / "copy", "--engine", "processes", "--workers", "2", "--to", "columns")
    assert copied["episodes"] == 12
    assert run("diff", tmp_path / "copy", dataset)["equal"]
    assert json.loads((tmp_path / "copy" / "manifest.json").read_bytes())["provenance"]["sources"] == [told["to"]]


@pytest.mark.integration
def test_a_killed_upload_continues(environment: dict[str, str], run: Run, hub: Hub, dataset: Path) -> None:
    shards = len(list((dataset / "data").iterdir()))
    hub.slow = 1.0
    words = [sys.executable, "-m", "offline_cli", "publish", dataset, "--to", URL, "--license", "mit"]
    process = subprocess.Popen([*map(str, words)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not hub.objects and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert 0 < (before := len(hub.objects)) < shards
    assert "manifest.json" not in hub.repositories[NAME].files
    hub.slow = 0.0
    hub.requests.clear()

    run("publish", dataset, "--to", URL, "--license", "mit")

    assert len(hub.asked("PUT", "/objects/")) <= shards - before
    assert len(hub.repositories[NAME].titles) == 2


@pytest.mark.integration
def test_the_commands_of_the_page_run(environment: dict[str, str], hub: Hub, tmp_path: Path, make_batch: Any) -> None:
    offline_cli.write_dataset(make_batch((30, 40)), tmp_path / "D", action_scale="env")
    refs = hub.make("lerobot/pusht", LEROBOT).refs
    refs["v3.0"] = refs["main"]
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("offline-cli ")]
    assert len(lines) > 6
    for line in lines:
        if "s3://" in line:
            continue
        if "publish" in line:
            hub.repositories.pop("OWNER/NAME", None)
        words = [sys.executable, "-m", "offline_cli", *shlex.split(line)[1:]]
        done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.nightly
def test_hugging_face_datasets_and_pandas_open_a_published_copy_with_images(
    environment: dict[str, str], run: Run, hub: Hub, tmp_path: Path, make_batch: Any
) -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    offline_cli.write_dataset(make_batch((3, 4), observation_space=space), tmp_path / "D", format="columns")
    run("publish", tmp_path / "D", "--to", URL, "--license", "mit")
    if not rival_environments.install("datasets", REQUIREMENTS):
        pytest.skip("datasets cannot be installed here")
    code = f"""
import json, datasets, pandas
rows = datasets.load_dataset("{NAME}", split="train")
here = datasets.load_dataset("{tmp_path / "D"}", split="train")
frame = pandas.read_parquet("{URL}/data")
print(json.dumps([len(rows), len(here), len(frame), rows[6]["obs"]["camera"], rows[6]["obs"]["speed"]]))
"""
    elsewhere = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    words = [rival_environments.interpreter("datasets"), "-c", code]
    done = subprocess.run(words, env=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *lengths, camera, speed = json.loads(done.stdout.splitlines()[-1])
    assert lengths == [7, 7, 7]
    last = offline_cli.open_dataset(tmp_path / "D")[1].get_observations(3)
    assert camera == last["camera"].reshape(-1).tolist()
    assert speed == last["speed"].tolist()
