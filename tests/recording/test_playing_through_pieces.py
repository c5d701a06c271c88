"""Recording through connector pipelines: the same episodes in any number of slots, raw, with what the policy made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import open_dataset
from offline_cli.connectors.learner.added_columns import learner_pipeline
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, SpaceMismatch, UsageError
from offline_cli.policies.policy import reset_seed as environment_seed
from offline_cli.recording.record import record
from offline_cli.trees import map_leaves

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
File = Callable[..., str]
ENV = "recording_envs:Count-v0"
STACK: dict[str, Any] = {"name": "frame_stacking", "num_frames": 4}
SCALED: dict[str, Any] = {"use": "odd_pieces:Scaled"}


# ---- the same episodes ----


def test_default_pipelines_change_nothing(recorded: Record, read: Read, pipeline_file: File) -> None:
    options: dict[str, Any] = {"policy": "python:recording_pieces:net", "explore": True}
    plain, piped = read(recorded(**options)), read(recorded(**options, env_to_module=pipeline_file(kind="env_to_module")))
    for name in ("obs", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(piped, name))
    for name, values in plain.extra.items():
        np.testing.assert_array_equal(values, piped.extra[name])
    assert not set(plain.ids) & set(piped.ids)


# ---- what is recorded ----


def learned_inputs(batch: EpisodeBatch, file: str, module: Any) -> Any:
    """What a learner pipeline makes of recorded episodes, for the module."""
    pipeline = PipelineSpec.from_file(file, "learner").build(Setting(batch.observation_space, batch.action_space))
    return pipeline(episodes=batch, rl_module=module)


def assert_seen_as_learned(batch: EpisodeBatch, module_name: str, file: str) -> None:
    import recording_pieces

    module = getattr(recording_pieces, module_name)
    with torch.no_grad():
        wanted = module.forward_inference(learned_inputs(batch, file, module))["action_dist_inputs"]
    np.testing.assert_allclose(batch.extra["action_dist_inputs"], wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_a_learner_makes_of_the_recording_what_the_policy_saw(recorded: Record, read: Read, pipeline_file: File) -> None:
    file = pipeline_file(STACK)
    batch = read(recorded(policy="python:recording_pieces:stacked", env_to_module=file, num_envs=5))
    assert_seen_as_learned(batch, "stacked", file)


def test_a_learner_makes_of_the_recording_of_a_policy_with_memory_what_it_put_out(recorded: Record, read: Read) -> None:
    import recording_pieces

    batch = read(recorded(policy="python:recording_pieces:memory", num_envs=5))
    train = learner_pipeline(batch.observation_space, batch.action_space)(episodes=batch, rl_module=recording_pieces.memory)
    with torch.no_grad():
        found = recording_pieces.memory.forward_train(train)["action_dist_inputs"][train["loss_mask"]]
    np.testing.assert_allclose(found.numpy(), batch.extra["action_dist_inputs"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_observations_are_those_of_the_environment_stepped_by_hand(
    format: str, recorded: Record, read: Read, pipeline_file: File
) -> None:
    env = gym.make(ENV).unwrapped
    writing = [{"name": "add_observations_from_episodes_to_batch"}, {"name": "write_observations_to_episodes"}]
    pieces = [SCALED, {"use": "recording_pieces:Scribbling"}, *writing]
    file = pipeline_file(*pieces, kind="env_to_module")
    policy = "python:recording_pieces:net"
    batch = read(recorded(policy=policy, env_to_module=file, explore=True, format=format, num_envs=4))
    assert batch.infos is not None
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        seen, info = env.reset(seed=environment_seed(0, e))
        steps = [(seen, info)]
        for action in batch.actions[batch.starts[e] : batch.starts[e + 1]].tolist():
            seen, reward, terminated, truncated, info = env.step(action)
            steps.append((seen, info))
        rows = slice(start, start + len(steps))
        np.testing.assert_array_equal(batch.obs[rows], np.stack([seen for seen, _ in steps]))
        assert [dict(told) for told in batch.infos[rows]] == [told for _, told in steps]
        assert (batch.terminated[e], batch.truncated[e]) == (terminated, truncated)
        assert batch.rewards[batch.starts[e + 1] - 1] == reward


def test_box_actions_are_recorded_as_the_network_put_them_out(recorded: Record, read: Read, pipeline_file: File) -> None:
    file = pipeline_file(STACK)
    out = recorded(
        "recording_envs:Aim-v0", policy="python:recording_pieces:aiming", env_to_module=file, explore=True, episodes=30
    )
    batch = read(out)
    assert open_dataset(str(out)).manifest.action_scale == "normalized"
    assert batch.actions.dtype == np.float32
    assert np.abs(batch.actions).max() > 1.5, "drawn actions leave the bounds, and nothing clips them here"


# ---- what is refused ----


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": "stacked"}, r"Box\(12, float32\).*Box\(3, float32\)"),
        ({"policy": "net", "pieces": [STACK]}, r"Box\(3, float32\).*Box\(12, float32\)"),
        ({"policy": "memory_stacked"}, r"Box\(12, float32\).*Box\(3, float32\)"),
        ({"policy": "aiming", "pieces": [STACK]}, r"actions"),
    ],
)
def test_a_policy_that_does_not_take_what_comes_out_of_the_pieces_is_refused_before_anything_is_played(
    options: dict[str, Any], told: str, tmp_path: Path, pipeline_file: File
) -> None:
    file = pipeline_file(*options["pieces"]) if "pieces" in options else None
    with pytest.raises(SpaceMismatch, match=told) as caught:
        record(ENV, tmp_path / "D", policy=f"python:recording_pieces:{options['policy']}", episodes=1, env_to_module=file)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "D").exists()


def test_a_lookback_that_is_too_short_for_a_piece_is_refused(tmp_path: Path, pipeline_file: File) -> None:
    options: dict[str, Any] = {
        "policy": "python:recording_pieces:stacked",
        "episodes": 1,
        "env_to_module": pipeline_file(STACK),
    }
    with pytest.raises(BadConfig, match="FrameStacking"):
        record(ENV, tmp_path / "D", **options, lookback=2)
    with pytest.raises(UsageError, match="--lookback "):
        record(ENV, tmp_path / "D", **options, lookback=0)


def test_a_dry_run_names_the_pieces_and_writes_nothing(tmp_path: Path, pipeline_file: File) -> None:
    policy, file = "python:recording_pieces:stacked", pipeline_file(STACK)
    result = record(ENV, tmp_path / "D", policy=policy, episodes=1, env_to_module=file, dry_run=True)
    assert result.env_to_module is not None
    assert result.module_to_env is not None
    assert (result.env_to_module[0], result.module_to_env[0]) == ("FrameStacking", "GetActions")
    assert not (tmp_path / "D").exists()
    assert record(ENV, tmp_path / "D", policy="random", episodes=1, dry_run=True).env_to_module is None


def test_nested_observations_and_actions_go_through_pieces(recorded: Record, read: Read, pipeline_file: File) -> None:
    env = gym.make("recording_envs:Nested-v0")
    file = pipeline_file({"name": "flatten_observations"})
    batch = read(recorded("recording_envs:Nested-v0", policy="python:recording_pieces:nested", env_to_module=file, num_envs=3))
    np.testing.assert_array_equal(batch.acted_obs()["pair"][0], batch.timesteps())
    choice, push = batch.actions
    assert set(np.unique(choice)) <= {5, 6, 7}
    assert push.dtype == env.action_space.spaces[1].dtype  # type: ignore[attr-defined]
    assert_seen_as_learned(batch, "nested", file)
    assert map_leaves(lambda leaf: leaf.dtype, batch.obs)["bits"] == np.int8
