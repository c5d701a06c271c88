"""Episodes of several modules: one policy learns from those of one of them, and nothing is mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
FILTER = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n'
MANNERS = pytest.mark.parametrize("how", [{}, {"val_fraction": 0.25, "streaming": True}], ids=str)


@pytest.fixture
def teams(make_batch: Make) -> EpisodeBatch:
    """Twelve episodes, attackers and defenders in turn."""
    return replace(make_batch(), module_ids=("attacker", "defender") * 6)


def weights(run: Path) -> bytes:
    return (run / "policy.safetensors").read_bytes()


@MANNERS
def test_several_modules_are_refused_with_the_choice_before_anything_is_written(
    how: dict[str, Any], teams: EpisodeBatch, write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=r"attacker \(6\), defender \(6\)") as caught:
        train_bc(write_dataset(teams), tmp_path / "run", config=config, updates=2, **how)
    assert (caught.value.exit_code, "--module-id attacker" in caught.value.fix) == (4, True)
    assert not (tmp_path / "run").exists()


@MANNERS
def test_the_chosen_module_learns_as_from_a_dataset_of_its_own(
    how: dict[str, Any], teams: EpisodeBatch, write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    alone = write_dataset(teams.select(range(1, 12, 2)), name="alone")
    options: dict[str, Any] = {"config": config, "updates": 8, **how}
    chosen = train_bc(write_dataset(teams), tmp_path / "chosen", module_id="defender", **options)
    train_bc(alone, tmp_path / "alone-run", **options)
    assert chosen.episodes == 6
    assert weights(tmp_path / "chosen") == weights(tmp_path / "alone-run")


def test_pieces_learn_from_the_chosen_module_alone_and_the_run_resumes_with_it(
    teams: EpisodeBatch, write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(FILTER)
    data, alone = write_dataset(teams), write_dataset(teams.select(range(0, 12, 2)), name="alone")
    options: dict[str, Any] = {"pipeline": tmp_path / "p.toml", "config": config}
    train_bc(data, tmp_path / "run", module_id="attacker", updates=5, **options)
    with pytest.raises(BadConfig, match="2"):
        train_bc(data, tmp_path / "run", resume=True, updates=10, **options)
    with pytest.raises(BadConfig, match="the data"):
        train_bc(data, tmp_path / "run", resume=True, updates=10, module_id="defender", **options)
    train_bc(data, tmp_path / "run", resume=True, updates=10, module_id="attacker", **options)
    train_bc(alone, tmp_path / "straight", updates=10, **options)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")
