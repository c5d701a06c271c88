"""`kill -9` at any moment of train-bc and train, on disk and S3: `--resume` ends with the very bytes of an undisturbed run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mortal_commands import Zygote

from offline_cli import record
from offline_cli.storage.locations import Location, open_location

pytestmark = pytest.mark.integration

MOMENTS = 10
OPERATIONS = 6
KILLED = -9
CONFIG = "hidden = [16]\nbatch_size = 64\nlog_every = 7\ncheckpoint_every = 10\nupdates = 60\nval_fraction = 0.25\n"
CLOCK = ("seconds", "samples_per_second")


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Where run folders go, and the environment in which commands find it."""
    if request.param == "local":
        return str(tmp_path), {}
    server = request.getfixturevalue("s3")
    return server.bucket(), dict(server.environment)


@pytest.fixture
def zygote(root: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[Zygote]:
    """Runs commands that start in no time, and may be killed."""
    with Zygote(root[1], tmp_path / "stderr") as process:
        yield process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A local dataset, with a configuration beside it."""
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=20, num_env_runners=0)
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path / "D"


def train(data: Path, out: Location) -> list[str]:
    words = ["train-bc", str(data), "--out", out.url, "--config", str(data.parent / "config.toml")]
    return [*words, "--device", "cpu", "--json", "--quiet"]


"""Algorithms with the environment of their data and options, all with every part that a checkpoint may hold."""


def content(run: Location) -> dict[str, Any]:
    """Every file but checkpoints and the result, whose times differ; rows without what the clock says."""
    found: dict[str, Any] = {file.path.removeprefix(run.path).strip("/"): file.read_bytes() for file in run.files()}
    rows = [json.loads(line) for line in found["metrics.jsonl"].splitlines()]
    found["metrics.jsonl"] = [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]
    return {name: value for name, value in found.items() if not name.startswith("state.") and name != "result.json"}


def gone_on_with(zygote: Zygote, words: list[str], run: Location, want: dict[str, Any]) -> None:
    """Go on until it is done: what is there then is what an undisturbed run leaves."""
    assert zygote.run([*words, "--resume"]).code == 0, zygote.complaints()
    assert content(run) == want


@pytest.mark.nightly
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    root: tuple[str, dict[str, str]], zygote: Zygote, data: Path, record_property: Any
) -> None:
    undisturbed = open_location(f"{root[0]}/undisturbed")
    life = zygote.run(train(data, undisturbed))
    assert life.code == 0, zygote.complaints()
    want, chance, killed, begun = content(undisturbed), random.Random(2), 0, 0
    first = life.operations[0] / life.seconds  # reading the data leaves nothing
    for number in range(MOMENTS):
        run = open_location(f"{root[0]}/killed-{number}")
        words = train(data, run)
        share = first + (1 - first) * (number + chance.random()) / MOMENTS
        killed += zygote.run(words, moment=life.moment(share)).code == KILLED
        begun += run.join("config.toml").exists() and not run.join("result.json").exists()
        if number % 2:
            zygote.run([*words, "--resume"], moment=life.moment(share))
        gone_on_with(zygote, words, run, want)
    record_property("killed", killed)
    record_property("unfinished", begun)
    assert killed >= MOMENTS - 3
    assert begun >= MOMENTS // 3, "too few of the kills were between the first and the last word of the run"


def test_killed_at_storage_operations_from_first_to_last_it_ends_with_the_same_bytes(
    root: tuple[str, dict[str, str]], zygote: Zygote, data: Path
) -> None:
    for name in ("first", "undisturbed"):  # the first one makes caches of other packages, which are files too
        undisturbed = open_location(f"{root[0]}/{name}")
        operations = len(zygote.run(train(data, undisturbed)).operations)
    want = content(undisturbed)
    for number in range(OPERATIONS):
        run = open_location(f"{root[0]}/killed-{number}")
        words = train(data, run)
        at = 2 * ((operations - 1) * number // (OPERATIONS - 1)) + number % 2  # before or after it
        assert zygote.run(words, operation=at).code == KILLED
        gone_on_with(zygote, words, run, want)
