"""CartPole without velocities: what plain cloning cannot learn, stacked and filtered observations teach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from blind_cartpole import POSITIONS, BlindCartPole

from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.files.locations import open_location
from offline_cli.playing.evaluate import evaluate
from offline_cli.recording.record import record
from offline_cli.training.train import train_bc

pytestmark = pytest.mark.nightly

STACKED = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n'


@pytest.fixture(scope="module")
def blind_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 episodes of an expert that sees velocities, recorded with them; then these are dropped."""
    folder = tmp_path_factory.mktemp("recordings")
    slippery = "python:blind_cartpole:SlipperyCartPole"
    record(slippery, folder / "whole", policy="python:blind_cartpole:expert", episodes=60)
    env = BlindCartPole()
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    with DatasetWriter(open_location(str(folder / "blind")), format="episodes", action_scale="env", **spaces) as writer:
        for batch in read_episodes(str(folder / "whole"), on_progress=lambda progress: None):
            writer.write(replace(batch, obs=batch.obs[:, POSITIONS], observation_space=env.observation_space))
        writer.commit()
    return folder / "blind"


def return_of_a_clone(recording: Path, run: Path, pipeline: Path | None) -> float:
    """Its mean over 100 episodes, played by the run folder alone."""
    train_bc(recording, run, pipeline=pipeline, device="cpu")
    return evaluate(run, env="python:blind_cartpole:BlindCartPole", episodes=100, device="cpu").return_mean


def test_a_clone_that_sees_one_observation_at_a_time_cannot_balance_the_pole(blind_recording: Path, tmp_path: Path) -> None:
    """Seen with three seeds: 41 to 42."""
    assert return_of_a_clone(blind_recording, tmp_path / "plain", None) < 100


def test_a_clone_that_sees_four_filtered_observations_balances_it(blind_recording: Path, tmp_path: Path) -> None:
    """Seen with three seeds: 500."""
    (tmp_path / "pipeline.toml").write_text(STACKED)
    assert return_of_a_clone(blind_recording, tmp_path / "stacked", tmp_path / "pipeline.toml") >= 400


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_a_clone_with_a_memory_balances_it(blind_recording: Path, tmp_path: Path, memory: str, seed: int) -> None:
    """Seen with these seeds: 500, after 200 updates."""
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    (tmp_path / "c.toml").write_text(f'hidden = [64]\nlr = 0.003\n[network]\nmemory = "{memory}"\nmemory_size = 64\n')
    told = train_bc(
        blind_recording,
        tmp_path / "run",
        config=tmp_path / "c.toml",
        pipeline=tmp_path / "pipeline.toml",
        env="python:blind_cartpole:BlindCartPole",
        until_return=450,
        eval_every=200,
        updates=2000,
        seed=seed,
        device="cpu",
    )
    assert (told.stopped_by, told.eval_episodes) == ("target", 100)
    assert told.eval_return_mean is not None
    assert told.eval_return_mean >= 450
