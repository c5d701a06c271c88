"""Playing between connector pieces: the policy sees what it learned from, and whoever fails is named with the place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli import Columns
from offline_cli.applying.learner_batches import in_learner_units
from offline_cli.connectors import MeanStdFilter
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.environments import Environment, open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, SpaceMismatch
from offline_cli.modules import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.returns import play
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Purpose
from offline_cli.training.config import resolve_config
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
FILTER = {"name": "mean_std_filter"}
STACK = {"name": "frame_stacking", "num_frames": 3}
BEFORE = {"name": "prev_actions_prev_rewards", "n_prev_actions": 2, "n_prev_rewards": 2}


def file_of(*pieces: dict[str, Any], kind: str = "env_to_module") -> Any:
    return PipelineSpec.from_document({"kind": kind, "pieces": list(pieces)}, where="pipeline.toml")


def played(module: RLModule, name: str, pieces: PlaySpec | None, episodes: int = 20, **options: Any) -> Any:
    with open_environment(name) as environment:
        return play(module, environment, episodes, seed=0, purpose=Purpose.EVALUATE, pieces=pieces, **options)


def policy_for(name: str, scale: str = "env") -> RLModule:
    env = gym.make(name)
    return build_module(env.observation_space, env.action_space, hidden=[8], action_scale=scale)


def test_a_filter_that_has_learned_nothing_is_refused_and_one_with_a_state_learns_nothing_while_it_plays() -> None:
    module = policy_for("Sign-v0")
    with pytest.raises(BadConfig, match="MeanStdFilter"):
        played(module, "Sign-v0", PlaySpec(file_of(FILTER)), 1)
    piece = MeanStdFilter()
    piece.set_state({"obs": {"count": 9, "mean": np.ones(3), "m2": np.ones(3)}})
    pieces = PlaySpec(PipelineSpec("env_to_module", custom=[piece]))
    one, two = (played(module, "Sign-v0", pieces, 40, num_envs=slots) for slots in (1, 4))
    assert one.returns.tolist() == two.returns.tolist()


# ---- what the policy sees ----


class NotingEnv(gym.Env[Any, Any]):
    """Random observations for eleven steps; notes all that it gives and is given."""

    def __init__(self, action_space: Any) -> None:
        self.observation_space, self.action_space = spaces.Box(-np.inf, np.inf, (3,), np.float32), action_space
        self.seen: list[Any] = []
        self.given: list[Any] = []
        self.rewards: list[float] = []

    def _observe(self) -> Any:
        self.seen.append(self.np_random.normal(size=3).astype(np.float32))
        return self.seen[-1].copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.given.append(action)
        self.rewards.append(float(self.np_random.normal()))
        return self._observe(), self.rewards[-1], len(self.given) == 11, False, {}

    def episode(self) -> EpisodeBatch:
        return EpisodeBatch(
            ids=("played",),
            starts=np.array([0, len(self.given)]),
            obs=np.stack(self.seen),
            actions=np.stack(self.given),
            rewards=np.array(self.rewards),
            terminated=np.array([True]),
            truncated=np.array([False]),
            observation_space=self.observation_space,
            action_space=self.action_space,
        )


@pytest.mark.parametrize(
    ("action_space", "pieces"),
    [
        (spaces.Discrete(3, start=-1), (FILTER, STACK)),
        (spaces.Box(-2.0, 3.0, (2,), np.float32), (FILTER, BEFORE)),
        (spaces.MultiDiscrete([2, 3]), (STACK,)),
    ],
    ids=["discrete", "box", "multi-discrete"],
)
def test_the_policy_sees_while_playing_the_rows_that_learners_get_for_the_episode(
    make_batch: Make, write_dataset: Write, action_space: Any, pieces: Any
) -> None:
    action_space.seed(0)
    batch = make_batch()
    actions = np.stack([action_space.sample() for _ in range(batch.num_steps)])
    recorded = write_dataset(replace(batch, actions=actions, action_space=action_space), action_scale="env")
    file = file_of(*pieces, kind="learner")
    data = load_data(recorded, resolve_config({}), pipeline=file, on_progress=lambda progress: None)
    module = build_module(data.observation_space, action_space, hidden=[8], action_scale="env")
    rows: list[Any] = []
    forward = module.forward_inference

    def spied(batch: Any) -> Any:
        rows.append(batch[Columns.OBS])
        return forward(batch)

    module.forward_inference = spied  # type: ignore[method-assign]
    env = NotingEnv(action_space)
    assert data.trained is not None
    play(
        module,
        Environment("Noting", lambda: env, None),
        1,
        seed=0,
        purpose=Purpose.EVALUATE,
        pieces=PlaySpec(trained=data.trained),
    )
    learner = file.build(Setting(env.observation_space, action_space))
    learner.set_state(data.trained.state)
    learner.freeze()
    wanted = learner(episodes=in_learner_units(env.episode(), action_space, "env"))[Columns.OBS]
    assert len(rows) == 11
    for path, leaf in wanted.items() if isinstance(wanted, dict) else {"": wanted}.items():
        found = torch.cat([row[path] if path else row for row in rows])
        torch.testing.assert_close(found, leaf, rtol=1e-5, atol=1e-5)


# ---- evaluate ----


@pytest.fixture
def stacked_run(write_dataset: Write, tmp_path: Path) -> Path:
    """A finished run that was trained through a filter and stacked frames."""
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\nlr = 0.01\n")
    (tmp_path / "pipeline.toml").write_text(
        'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n'
    )
    options: dict[str, Any] = {"config": tmp_path / "c.toml", "env": "Sign-v0", "updates": 60, "eval_episodes": 1}
    train_bc(write_dataset(), tmp_path / "run", pipeline=tmp_path / "pipeline.toml", **options)
    return tmp_path / "run"


def test_a_run_plays_between_its_own_pieces(stacked_run: Path) -> None:
    found = evaluate(stacked_run, episodes=40)
    assert found.return_mean > 0.85 * found.length_mean
    assert evaluate(stacked_run, episodes=40).as_dict() == found.as_dict()


def test_a_file_in_place_of_the_pieces_has_to_give_what_the_policy_takes(stacked_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('kind = "env_to_module"\n[[pieces]]\nname = "mean_std_filter"\n')
    with pytest.raises(SpaceMismatch):
        evaluate(stacked_run, env_to_module=other)
    other.write_text('kind = "env_to_module"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n')
    with pytest.raises(BadConfig, match="'MeanStdFilter'"):
        evaluate(stacked_run, env_to_module=other)


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A module, `bomb`, that leaves a file behind when it is imported."""
    (tmp_path / "bomb.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')\nfrom odd_pieces import Scaled\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "exploded"


def test_code_that_a_run_folder_names_is_imported_only_where_the_user_names_it(
    no_import: Path, write_dataset: Write, tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('kind = "learner"\n[[pieces]]\nuse = "bomb:Scaled"\nfactor = 3.0\n')
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\nlr = 0.01\n")
    train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "c.toml", pipeline=file, updates=40)
    assert no_import.exists()
    no_import.unlink()
    del sys.modules["bomb"]
    with pytest.raises(BadConfig) as caught:
        evaluate(tmp_path / "run", env="Sign-v0")
    assert not no_import.exists()
    assert "--env-to-module" in caught.value.fix
    assert evaluate(tmp_path / "run", env="Sign-v0", episodes=20, env_to_module=file).return_mean > 7
    assert no_import.exists()
    del sys.modules["bomb"]
