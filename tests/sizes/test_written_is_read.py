"""Whatever `record` and `convert` commit, every command reads, over data that pack better than anything in the world."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_cli.checking.inspect import inspect
from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location
from offline_cli.formats import parquet_files
from offline_cli.parquet import safety
from offline_cli.parquet.shard_writing import COMPRESSIONS
from offline_cli.recording.record import record
from offline_cli.training.train import train_bc

KIB = 1 << 10
STATE = 300  # numbers in an info
KINDS = ("zeros", "frozen", "one pixel moves", "one hot")
FEW, MANY = 20, 200
FUZZ = int(os.environ.get("OFFLINE_CLI_EXAMPLES", MANY))


@dataclass(frozen=True)
class Case:
    """One dataset."""

    kind: str
    dtype: str
    width: int
    lengths: tuple[int, ...]
    infos: bool
    format: str
    compression: str
    max_rows: int | None
    recorded: bool
    to: str  # what it is converted to


CASES = st.builds(
    Case,
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(["uint8", "int8", "float32", "float64", "int64"]),
    width=st.sampled_from([1, 50, 1_000]),
    lengths=st.lists(st.sampled_from([1, 3, 30]), min_size=1, max_size=2).map(tuple),
    infos=st.booleans(),
    format=st.sampled_from(["episodes", "columns"]),
    compression=st.sampled_from(COMPRESSIONS),
    max_rows=st.sampled_from([None, 1, 2, 40]),
    recorded=st.booleans(),
    to=st.sampled_from(["episodes", "columns"]),
)


def observations(case: Case, steps: int) -> Any:
    """(steps, width): any two of them differ in two numbers at most."""
    made = np.zeros((steps, case.width), case.dtype)
    if case.kind == "frozen":
        made[:] = np.random.default_rng(0).integers(0, 100, case.width).astype(case.dtype)
    elif case.kind in ("one pixel moves", "one hot"):
        made[np.arange(steps), np.arange(steps) % case.width] = 1
    return made


class Still(gymnasium.Env[Any, Any]):
    """Plays the episodes of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.observation_space: Any = spaces.Box(0, 100, (case.width,), case.dtype)  # type: ignore[arg-type]
        self.action_space = spaces.Discrete(2)
        self.at, self.obs = 0, observations(case, max(case.lengths) + 1)

    def info(self) -> dict[str, Any]:
        return {"state": np.zeros(min(self.case.width, STATE))} if self.case.infos else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self.obs[0], self.info()

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.obs[self.at], 0.0, self.at == max(self.case.lengths), False, self.info()


def batch_of(case: Case) -> EpisodeBatch:
    starts = np.concatenate([[0], np.cumsum(case.lengths)])
    steps, rows = int(starts[-1]), int(starts[-1]) + len(case.lengths)
    return EpisodeBatch(
        ids=tuple(f"e{number}" for number in range(len(case.lengths))),
        starts=starts,
        obs=np.concatenate([observations(case, length + 1) for length in case.lengths]),
        actions=np.zeros(steps, np.int64),
        rewards=np.zeros(steps),
        terminated=np.ones(len(case.lengths), np.bool_),
        truncated=np.zeros(len(case.lengths), np.bool_),
        infos=[{"state": np.zeros(min(case.width, STATE))} for _ in range(rows)] if case.infos else None,
        observation_space=Still(case).observation_space,
        action_space=spaces.Discrete(2),
    )


def commit(case: Case, folder: Path) -> Path:
    """The dataset of a case, as a command wrote it."""
    out, shards = folder / "D", {"compression": case.compression, "max_rows_per_file": case.max_rows}
    if case.recorded:
        gymnasium.register("Still-v0", lambda: Still(case), disable_env_checker=True)
        try:
            record("Still-v0", out, policy="random", episodes=len(case.lengths), num_envs=2, format=case.format, **shards)
        finally:
            del gymnasium.registry["Still-v0"]
        return out
    batch = batch_of(case)
    found = {"observation_space": batch.observation_space, "action_space": batch.action_space, "action_scale": "env"}
    with DatasetWriter(open_location(folder / "plain"), format="episodes", compression="none", **found) as writer:
        writer.write(batch)
        writer.commit()
    convert(str(folder / "plain"), out, to=case.format, **shards)
    return out


def rows(folder: Path) -> EpisodeBatch:
    return EpisodeBatch.concat(list(Dataset.open(folder).batches()))


def same(left: EpisodeBatch, right: EpisodeBatch) -> None:
    for name in ("obs", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def every_command_reads(case: Case, folder: Path) -> None:
    out = commit(case, folder)
    first = rows(out)
    steps = first.num_steps
    assert inspect(str(out)).steps == steps
    assert not [problem for problem in validate(str(out), deep=True).problems if problem.severity == "error"]
    convert(str(out), folder / "copy", to=case.to)
    same(rows(folder / "copy"), first)
    train_bc(str(out), folder / "run", updates=1, batch_size=4, device="cpu")
    data = str(out / "data")
    assert not [problem for problem in validate(data).problems if problem.severity == "error"]
    convert(data, folder / "foreign")
    assert rows(folder / "foreign").num_steps == steps
    (out / "manifest.json").unlink()
    repair(str(out))
    same(rows(out), first)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs are four thousand times as small."""
    monkeypatch.setattr(safety, "MAX_BYTES", 16 * KIB)
    monkeypatch.setattr(safety, "MAX_RATIO", 20)
    monkeypatch.setattr(safety, "SMALL", KIB)
    monkeypatch.setattr(parquet_files, "BIG", 16 * KIB)


def check(case: Case) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        every_command_reads(case, folder)
    finally:
        shutil.rmtree(folder)


FEWER_THAN_ONE_MORE_GROUP = (  # what is missing to the bound is less than a row group adds
    Case("zeros", "float32", 1_000, (1, 3), True, "episodes", "zstd", None, True, "episodes"),
    Case("zeros", "uint8", 1_000, (30,), True, "columns", "zstd", None, False, "episodes"),
)
QUIET: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@given(CASES)
@settings(max_examples=FEW, **QUIET)
def test_whatever_is_committed_is_read_by_every_command(lowered: None, case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", FEWER_THAN_ONE_MORE_GROUP, ids=["episodes", "columns"])
def test_a_file_that_is_a_few_bytes_short_of_the_bound_is_cut_too(lowered: None, case: Case) -> None:
    check(case)


@pytest.mark.nightly
@given(CASES)
@settings(max_examples=FUZZ, **QUIET)
def test_whatever_is_committed_is_read_by_every_command_in_more_cases(lowered: None, case: Case) -> None:
    check(case)


@pytest.mark.nightly
@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_frames_in_which_one_pixel_moves_are_read_without_a_manifest(format: str, tmp_path: Path) -> None:
    """84x84x4 bytes a step, 5,000 steps: packed they take a thousandth of a thousandth."""
    case = Case("one pixel moves", "uint8", 84 * 84 * 4, (5_000,) * 2, False, format, "zstd", None, False, format)
    batch = batch_of(case)
    found = {"observation_space": batch.observation_space, "action_space": batch.action_space, "action_scale": "env"}
    with DatasetWriter(open_location(tmp_path / "D"), format=case.format, **found) as writer:
        writer.write(batch)
        writer.commit()
    assert convert(str(tmp_path / "D" / "data"), tmp_path / "copy", dry_run=True).steps == 10_000
    assert sum(part.num_steps for part in Dataset.open(tmp_path / "D").batches()) == 10_000
