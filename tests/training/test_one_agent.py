"""`train --agent`: one agent of a game learns from its own episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.training.train import train, train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 32, "device": "cpu"}


@pytest.fixture
def teams(make_batch: Make) -> EpisodeBatch:
    """Twelve episodes of two agents in turn, who act by one module."""
    return replace(make_batch(), agent_ids=("red", "blue") * 6, module_ids=("shared",) * 12)


def weights(run: Path) -> bytes:
    return (run / "policy.safetensors").read_bytes()


# ---- whose episodes ----


@pytest.mark.parametrize("how", [{}, {"val_fraction": 0.25, "streaming": True}], ids=str)
def test_the_chosen_agent_learns_as_from_a_dataset_of_its_own(
    how: dict[str, Any], teams: EpisodeBatch, write_dataset: Write, tmp_path: Path
) -> None:
    alone = write_dataset(teams.select(range(1, 12, 2)), name="alone")
    chosen = train_bc(write_dataset(teams), tmp_path / "chosen", agent="blue", updates=8, **SMALL, **how)
    train_bc(alone, tmp_path / "run", updates=8, **SMALL, **how)
    assert chosen.episodes == 6
    assert weights(tmp_path / "chosen") == weights(tmp_path / "run")


def test_an_agent_that_is_not_there_is_refused_with_those_that_are(
    teams: EpisodeBatch, write_dataset: Write, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=r"'green'.* red \(6\), blue \(6\)") as caught:
        train_bc(write_dataset(teams), tmp_path / "run", agent="green", updates=2, **SMALL)
    assert "--agent red" in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_data_without_agents_has_none_to_choose(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"without an agent id \(12\)"):
        train_bc(write_dataset(), tmp_path / "run", agent="red", updates=2, **SMALL)


def test_agent_and_module_name_one_selection(make_batch: Make, write_dataset: Write, tmp_path: Path) -> None:
    names = {"agent_ids": ("red", "red", "blue") * 4, "module_ids": ("old", "new", "new") * 4}
    data = write_dataset(replace(make_batch(), **names))
    with pytest.raises(BadConfig, match=r"old \(4\), new \(4\)"):
        train(data, tmp_path / "run", agent="red", updates=2, **SMALL)
    assert train(data, tmp_path / "run", agent="red", module_id="new", updates=2, **SMALL).episodes == 4
    with pytest.raises(BadConfig, match=r"no episode is of module 'old': the data holds new \(4\)"):
        train(data, tmp_path / "other", agent="blue", module_id="old", updates=2, **SMALL)


def test_a_resumed_run_keeps_its_agent_and_takes_no_other(teams: EpisodeBatch, write_dataset: Write, tmp_path: Path) -> None:
    data = write_dataset(teams)
    train_bc(data, tmp_path / "run", agent="red", updates=4, **SMALL)
    with pytest.raises(BadConfig, match="agent: the run has red, this call asks for blue"):
        train_bc(data, tmp_path / "run", agent="blue", resume=True, updates=8)
    assert train_bc(data, tmp_path / "run", resume=True, updates=8).episodes == 6


def test_an_environment_of_several_agents_is_refused(teams: EpisodeBatch, write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="game of several agents") as caught:
        train_bc(write_dataset(teams), tmp_path / "run", agent="red", env="python:agent_games:Seesaw", updates=2, **SMALL)
    assert (caught.value.where, caught.value.exit_code) == ("--env", 4)
    assert not (tmp_path / "run").exists()
