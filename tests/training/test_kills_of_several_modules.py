"""`kill -9` while games are recorded and modules learn, on disk and S3: `--resume` ends with an undisturbed run's bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mortal_commands import Zygote

from offline_cli import record
from offline_cli.files.locations import Location, open_location

pytestmark = pytest.mark.nightly

MOMENTS, KILLED = 5, -9
CLOCK = ("seconds", "samples_per_second")
WALKERS = "python:agent_games:Walkers"
CONFIG = (
    "hidden = [16]\nbatch_size = 64\nlog_every = 7\ncheckpoint_every = 10\nupdates = 40\nval_fraction = 0.25\neval_every = 15\n"
)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Where folders go, and the environment in which commands find it."""
    if request.param == "local":
        return str(tmp_path), {}
    server = request.getfixturevalue("s3")
    return server.bucket(), dict(server.environment)


@pytest.fixture
def zygote(root: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[Zygote]:
    """Runs commands that start in no time, and may be killed."""
    with Zygote(root[1], tmp_path / "stderr") as process:
        yield process


def content(folder: Location) -> dict[str, Any]:
    """Every file but checkpoints and results, whose times differ; rows and manifests without what the clock says."""
    found: dict[str, Any] = {}
    for file in folder.files():
        name = file.path.removeprefix(folder.path).strip("/")
        if "checkpoints/" in name or name.endswith(("result.json", "manifest.json")):
            continue
        found[name] = file.read_bytes()
        if name.endswith("metrics.jsonl"):
            rows = [json.loads(line) for line in found[name].splitlines()]
            found[name] = [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]
    return found


def killed_and_resumed(zygote: Zygote, root: str, words: list[str]) -> int:
    """How often a command was killed, each time at another storage operation, and resumed to the same content."""
    undisturbed = open_location(f"{root}/undisturbed")
    life = zygote.run([*words, "--out", undisturbed.url])
    assert life.code == 0, zygote.complaints()
    want, chance, killed = content(undisturbed), random.Random(5), 0
    for number in range(MOMENTS):
        out = open_location(f"{root}/killed-{number}")
        at = int((number + chance.random()) * 2 * len(life.operations) / MOMENTS)
        killed += zygote.run([*words, "--out", out.url], operation=at).code == KILLED
        assert zygote.run([*words, "--out", out.url, "--resume"]).code == 0, zygote.complaints()
        assert content(out) == want
    return killed


def test_killed_trainers_of_several_modules_end_with_the_same_bytes(
    root: tuple[str, dict[str, str]], zygote: Zygote, tmp_path: Path
) -> None:
    record(WALKERS, tmp_path / "D", policy="random", episodes=20, device="cpu")
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ["train", str(tmp_path / "D"), "--config", str(tmp_path / "config.toml"), "--device", "cpu", "--json", "--quiet"]
    words += ["--module-of", "*=shared", "--module-of", "helper=late", "--env", WALKERS, "--eval-episodes", "3"]
    assert killed_and_resumed(zygote, root[0], words) >= MOMENTS - 2


def test_killed_recorders_of_games_end_with_the_same_bytes(root: tuple[str, dict[str, str]], zygote: Zygote) -> None:
    words = ["record", WALKERS, "--policy", "random", "--episodes", "60", "--max-rows-per-file", "10", "--num-envs", "3"]
    assert killed_and_resumed(zygote, root[0], [*words, "--device", "cpu", "--json", "--quiet"]) >= MOMENTS - 2
