"""Nothing whole is lost: failures, and going on after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, OutputExists, UsageError
from offline_cli.recording.record import record

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
ENV = "recording_envs:Count-v0"
OPTIONS: dict[str, Any] = {"policy": "random", "vectorize": "sync", "device": "cpu"}


@pytest.mark.parametrize(
    "manner",
    [
        {},
        pytest.param({"num_env_runners": 2}, marks=pytest.mark.integration),
        pytest.param({"vectorize": "async", "num_envs": 3}, marks=pytest.mark.integration),
    ],
    ids=["here", "runners", "async"],
)
def test_an_environment_that_raises_loses_no_whole_episode_and_can_be_gone_on_with(
    manner: dict[str, Any], tmp_path: Path, recorded: Record, read: Read, same: Same
) -> None:
    out, options = tmp_path / "D", {**OPTIONS, **manner, "episodes": 150, "env_kwargs": {"fail_at": 20}}
    with pytest.raises(BadData, match="the motor is on fire") as caught:
        record(ENV, out, **options)
    error = caught.value
    assert error.exit_code == 3
    name, episode, step = error.where.split(", ")
    assert (name, step) == (ENV, "step 2")
    manifest = open_dataset(str(out)).manifest
    assert not manifest.complete
    assert 0 < manifest.counts.episodes <= int(episode.removeprefix("episode "))
    assert error.details["episodes"] == manifest.counts.episodes
    assert "--resume" in error.fix
    with pytest.raises(BadData, match="the motor is on fire"):
        record(ENV, out, **options, resume=True)
    kept = read(out)
    same(kept, read(recorded(policy="random", episodes=len(kept), env_kwargs={"fail_at": 20})))


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("exits", r"SystemExit\(5\)"),
        ("shape", r"\(2,\).*\(3,\)"),
        ("four", "5.*4"),
    ],
)
def test_an_environment_that_goes_wrong_in_any_way_is_named_and_what_is_whole_is_kept(
    how: str, named: str, tmp_path: Path
) -> None:
    out, options = tmp_path / "D", {**OPTIONS, "num_envs": 2, "env_kwargs": {"how": how}}
    with pytest.raises(BadData, match=named) as caught:
        record("recording_envs:Spoiled-v0", out, **options, episodes=150)
    name, episode, step = caught.value.where.split(", ")
    assert (name, step) == ("recording_envs:Spoiled-v0", "step 3")
    assert 0 < open_dataset(str(out)).manifest.counts.episodes <= int(episode.removeprefix("episode "))


@pytest.mark.integration
@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_a_copy_in_a_process_of_its_own_that_hangs_or_dies_is_named_and_what_is_whole_is_kept(how: str, tmp_path: Path) -> None:
    out, options = tmp_path / "D", {"policy": "random", "device": "cpu", "vectorize": "async", "step_timeout": 2.0}
    with pytest.raises(BadData) as caught:
        record("recording_envs:Spoiled-v0", out, **options, num_envs=2, episodes=150, env_kwargs={"how": how})
    name, episode, step = caught.value.where.split(", ")
    assert (name, step) == ("recording_envs:Spoiled-v0", "step 3")
    assert 0 < open_dataset(str(out)).manifest.counts.episodes <= int(episode.removeprefix("episode "))


def test_a_failure_before_any_episode_is_whole_leaves_nothing(tmp_path: Path) -> None:
    import numpy as np

    from offline_cli.policies.policy import reset_seed as environment_seed

    lengths = (int(np.random.default_rng(environment_seed(seed, 0)).integers(1, 31)) for seed in range(99))
    seed, length = next((seed, length) for seed, length in enumerate(lengths) if length > 2)
    with pytest.raises(BadData):
        record(ENV, tmp_path / "D", **OPTIONS, episodes=5, seed=seed, env_kwargs={"fail_at": length})
    assert not (tmp_path / "D").exists()


def test_a_recording_that_is_gone_on_with_must_be_the_same_one(tmp_path: Path) -> None:
    options = {**OPTIONS, "episodes": 150, "env_kwargs": {"fail_at": 20}}
    with pytest.raises(BadData):
        record(ENV, tmp_path / "D", **options)
    with pytest.raises(BadConfig, match="--seed"):
        record(ENV, tmp_path / "D", **{**options, "seed": 1}, resume=True)
    assert not open_dataset(str(tmp_path / "D")).manifest.complete  # still committed


def test_a_finished_recording_is_left_alone_by_resume_and_kept_from_another(tmp_path: Path) -> None:
    first = record(ENV, tmp_path / "D", **OPTIONS, episodes=8)
    before = (tmp_path / "D" / "manifest.json").read_bytes()
    again = record(ENV, tmp_path / "D", **OPTIONS, episodes=8, resume=True)
    assert (again.episodes, again.steps, again.complete) == (first.episodes, first.steps, True)
    for options, error in (
        ({"episodes": 8}, OutputExists),
        ({"episodes": 9, "resume": True}, OutputExists),
        ({"episodes": 8, "resume": True, "seed": 1}, BadConfig),
    ):
        with pytest.raises(error):
            record(ENV, tmp_path / "D", **OPTIONS, **options)
    assert (tmp_path / "D" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "--episodes.*--steps"),
        ({"episodes": 1, "steps": 1}, "--episodes.*--steps"),
        ({"episodes": 0, "num_envs": 0}, "--episodes.*; --num-envs"),
        ({"episodes": 1, "step_timeout": 2.0}, "--step-timeout.*--vectorize async"),
        ({"episodes": 1, "vectorize": "quickly"}, "--vectorize"),
    ],
)
def test_options_that_make_no_sense_are_told_all_at_once(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named):
        record(ENV, tmp_path / "D", policy="random", **options)
