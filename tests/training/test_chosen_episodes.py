"""`train --top-fraction`: what is learned from is what `filter --top-fraction` writes, in memory and in streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.converting.operations.selecting import filter as filtered
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.training.chosen_episodes import HeldOut
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 30, "batch_size": 32, "hidden": (8,), "device": "cpu"}
MANNERS = pytest.mark.parametrize("manner", [{}, {"streaming": True, "val_fraction": 0.3}], ids=str)


@pytest.fixture
def rewarded(make_batch: Make) -> Callable[..., EpisodeBatch]:
    """Episodes whose returns differ."""

    def made(seed: int = 0, **shape: Any) -> EpisodeBatch:
        batch = make_batch(seed=seed, **shape)
        return replace(batch, rewards=np.random.default_rng(seed).normal(size=batch.num_steps))

    return made


def told(run: Path) -> list[Any]:
    """What a run learned: its rows without times, and its policy."""
    rows = [[row.get(name) for name in ("update", "loss", "val_loss")] for row in RunFolder(run).metrics()]
    return [rows, (run / "policy.safetensors").read_bytes()]


@MANNERS
def test_it_learns_what_a_dataset_that_filter_wrote_teaches(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path, manner: dict[str, Any]
) -> None:
    sources = [write_dataset(rewarded(seed), name=f"data-{seed}") for seed in (1, 2)]
    best = filtered(sources, tmp_path / "best", top_fraction=0.25)
    result = train(sources, tmp_path / "run", top_fraction=0.25, **OPTIONS, **manner)
    other = train(tmp_path / "best", tmp_path / "other", **OPTIONS, **manner)
    assert told(tmp_path / "run") == told(tmp_path / "other")
    assert (result.episodes, result.steps) == (best.episodes, best.steps) == (other.episodes, other.steps)


def test_the_result_says_how_many_were_chosen_and_their_least_return(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path
) -> None:
    batch = rewarded(1)
    result = train(
        write_dataset(batch), tmp_path / "run", algorithm="marwil", set={"refresh_every": 0}, top_fraction=0.25, **OPTIONS
    )
    assert result.as_dict()["chosen"] == {"episodes": 3, "of": 12, "least_return": pytest.approx(np.sort(batch.returns)[-3])}


def test_a_return_is_summed_over_all_fragments_of_an_episode(tmp_path: Path) -> None:
    rows = [(0, t, 1.0) for t in range(6)] + [(1, t, 2.0) for t in range(4)]
    for name, part in (("a.csv", rows[:4] + rows[6:]), ("b.csv", rows[4:6])):
        lines = [f"{e},{t},{e},{t % 2},{reward},{int(t == (5, 3)[e])}" for e, t, reward in part]
        (tmp_path / name).write_text("\n".join(["eps_id,t,obs,actions,rewards,terminated", *lines]) + "\n")
    result = train([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "run", top_fraction=0.5, mapping=MAPPED, **OPTIONS)
    assert result.as_dict()["chosen"] == {"episodes": 1, "of": 2, "least_return": 8.0}
    assert result.steps == 4


MAPPED = {
    "columns": {
        "eps_id": "eps_id",
        "t": "t",
        "obs": ["obs"],
        "actions": "actions",
        "rewards": "rewards",
        "terminateds": "terminated",
    }
}


def test_equal_returns_take_the_first_episodes_and_say_so(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch(length=1)
    result = train(write_dataset(batch), tmp_path / "run", top_fraction=0.25, **OPTIONS)
    assert result.chosen == {"episodes": 3, "of": 12, "least_return": 1.0}
    assert "--top-fraction" in result.notes[0]


def test_episodes_whose_return_is_not_a_number_are_not_chosen_and_named(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path
) -> None:
    batch = rewarded(1)
    batch.rewards[batch.starts[2]] = np.nan
    result = train(write_dataset(batch), tmp_path / "run", top_fraction=0.99, **OPTIONS)
    assert (result.chosen["episodes"], result.rewards_not_finite) == (11, {})
    assert result.notes[0] == "1 episodes have rewards that are NaN: --top-fraction takes none of them"
    batch.rewards[:] = np.nan
    with pytest.raises(NoData, match="no episode has a return that is a number"):
        train(write_dataset(batch, name="none"), tmp_path / "none-run", top_fraction=0.5, **OPTIONS)


@pytest.mark.parametrize("streaming", [False, True])
def test_data_without_rewards_is_refused_whatever_the_algorithm(tmp_path: Path, streaming: bool) -> None:
    rows = [f"run-{e},{t},{t % 2}" for e in range(6) for t in range(5)]
    (tmp_path / "arm.csv").write_text("\n".join(["run,x,turn", *rows]) + "\n")
    mapping = {"columns": {"eps_id": "run", "obs": ["x"], "actions": "turn"}}
    with pytest.raises(BadData, match="--top-fraction chooses by rewards") as caught:
        train(tmp_path / "arm.csv", tmp_path / "run", mapping=mapping, top_fraction=0.5, streaming=streaming, **OPTIONS)
    assert (caught.value.exit_code, caught.value.fix.endswith("or leave out --top-fraction")) == (3, True)


def test_a_run_resumes_with_its_own_share_alone(
    write_dataset: Write, rewarded: Callable[..., EpisodeBatch], tmp_path: Path
) -> None:
    source, whole, parts = write_dataset(rewarded(1)), tmp_path / "whole", tmp_path / "parts"
    train(source, whole, top_fraction=0.5, **OPTIONS)
    train(source, parts, top_fraction=0.5, **{**OPTIONS, "updates": 12})
    with pytest.raises(BadConfig, match=r"top_fraction: the run has 0\.5, this call asks for 0\.25"):
        train(source, parts, resume=True, top_fraction=0.25)
    assert train(source, parts, resume=True, updates=30).chosen == train(source, whole, resume=True).chosen
    assert told(whole)[1] == told(parts)[1]


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.26, 3), (0.38, 4), (0.99, 9)], ids=str)
def test_the_share_held_out_is_rounded_and_leaves_one_on_either_side(fraction: float, count: int, make_batch: Make) -> None:
    batch = make_batch(episodes=10)
    assert HeldOut([batch], fraction, 0, "here").among(batch).sum() == count
