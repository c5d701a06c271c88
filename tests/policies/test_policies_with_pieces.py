"""A policy's files where it was trained through pieces: whatever is broken, missing or mixed up is an error that names it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_json import tell, told_in

from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadConfig, BadData
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

STATE, POLICY = "connectors.msgpack", "policy.json"


@pytest.fixture
def run(write_dataset: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run that was trained through a filter."""
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\n")
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "c.toml", updates=2, pipeline=tmp_path / "pipeline.toml")
    return tmp_path / "run"


def cut(run: Path) -> None:
    (run / STATE).write_bytes((run / STATE).read_bytes()[:-3])


def taken_away(run: Path) -> None:
    (run / STATE).unlink()


def of_another_run(run: Path) -> None:
    changed(run, lambda state: state["MeanStdFilter"]["obs"].update(mean=np.ones(3)))


def changed(run: Path, change: Callable[[Any], Any], *, hash_too: bool = False) -> None:
    state = unpack((run / STATE).read_bytes(), where="test")
    change(state)
    (run / STATE).write_bytes(pack(state))
    if hash_too:
        rehashed(run)


def rehashed(run: Path) -> None:
    described = told_in(run / POLICY)
    described["pipeline"]["state_sha256"] = hashlib.sha256((run / STATE).read_bytes()).hexdigest()
    tell(run / POLICY, described)


def described_as(**other: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        described = told_in(run / POLICY)
        described["pipeline"] = {**described["pipeline"], **other}
        tell(run / POLICY, described)

    return change


def without_pipeline(run: Path) -> None:
    described = told_in(run / POLICY)
    del described["pipeline"]
    tell(run / POLICY, described)


def of_another_version(run: Path) -> None:
    tell(run / POLICY, {**told_in(run / POLICY), "version": 6})


def objects(run: Path) -> None:
    (run / STATE).write_bytes(pack({"x": np.zeros(2)}).replace(b"<f8", b"|O8"))
    rehashed(run)


def no_map(run: Path) -> None:
    (run / STATE).write_bytes(pack([1, 2]))
    rehashed(run)


@pytest.mark.parametrize(
    ("breaking", "match"),
    [
        (cut, "connectors.msgpack is not the one that policy.json was written with"),
        (taken_away, "connectors.msgpack is missing"),
        (of_another_run, "connectors.msgpack is not the one"),
        (described_as(document=[1]), "describes no pipeline"),
        (described_as(pieces=None), "describes no pipeline"),
        (without_pipeline, "connectors.msgpack is not the one"),
        (of_another_version, "version"),
        (objects, "O8"),
        (no_map, "no state"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_broken_files_are_bad_data(run: Path, breaking: Callable[[Path], None], match: str) -> None:
    breaking(run)
    with pytest.raises(BadData, match=match) as caught:
        load_policy(str(run))
    assert str(run) in caught.value.where


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["MeanStdFilter"].update(own={"obs": "mean"}),
        lambda state: state["MeanStdFilter"]["obs"].update(count="many"),
        lambda state: state["MeanStdFilter"]["obs"].pop("m2"),
        lambda state: state.update(MeanStdFilter=[1]),
    ],
)
def test_a_state_that_fits_its_hash_and_no_piece_is_an_error_all_the_same(run: Path, change: Callable[[Any], Any]) -> None:
    changed(run, change, hash_too=True)
    with pytest.raises((BadData, BadConfig)) as caught:
        evaluate(run, env="Sign-v0", episodes=1)
    assert caught.value.exit_code in (3, 4)
