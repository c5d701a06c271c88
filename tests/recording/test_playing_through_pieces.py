"""Recording through connector pipelines: the same episodes in any number of slots, raw, with what the policy made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import open_dataset
from offline_cli.connectors.learner.default_pipeline import learner_pipeline
from offline_cli.connectors.pipeline_spec import load_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, SpaceMismatch, UsageError
from offline_cli.playing.plan import environment_seed
from offline_cli.policies.run_policy import load_policy
from offline_cli.recording.record import record
from offline_cli.trees import map_leaves

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
File = Callable[..., str]
ENV = "recording_envs:Count-v0"
STACK: dict[str, Any] = {"name": "frame_stacking", "num_frames": 4}
FILTER: dict[str, Any] = {"name": "mean_std_filter"}
SCALED: dict[str, Any] = {"use": "odd_pieces:Scaled"}
PREVIOUS: dict[str, Any] = {"name": "prev_actions_prev_rewards", "n_prev_actions": 2, "n_prev_rewards": 3}
MANNERS = [
    {"num_envs": 64},
    pytest.param({"num_envs": 5, "num_env_runners": 1}, marks=pytest.mark.integration),
    pytest.param({"num_envs": 2, "num_env_runners": 4}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 3, "vectorize": "async"}, marks=pytest.mark.nightly),
]


# ---- the same episodes ----


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: "-".join(map(str, manner.values())))
def test_slots_and_runners_do_not_matter_to_a_run_with_a_filter_and_stacked_frames(
    manner: dict[str, Any], recorded: Record, read: Read, same: Same, run_through_pieces: Callable[..., str]
) -> None:
    run = run_through_pieces(FILTER, STACK)
    one = read(recorded(policy=run, explore=True, num_envs=1, episodes=20))
    same(one, read(recorded(policy=run, explore=True, episodes=20, **manner)))
    assert len(set(one.actions.tolist())) == 3


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: "-".join(map(str, manner.values())))
def test_slots_and_runners_do_not_matter_to_a_policy_with_memory(
    manner: dict[str, Any], recorded: Record, read: Read, same: Same
) -> None:
    policy = "python:recording_pieces:memory"
    one = read(recorded(policy=policy, explore=True, num_envs=1, episodes=20))
    same(one, read(recorded(policy=policy, explore=True, episodes=20, **manner)))
    assert one.extra["state_out"]["h"].shape == (one.num_steps, 1, 5)


@pytest.mark.parametrize("slots", [3, 64])
def test_slots_do_not_matter_to_box_actions_that_are_drawn(
    slots: int, recorded: Record, read: Read, same: Same, pipeline_file: File
) -> None:
    options = {"policy": "python:recording_pieces:aiming", "env_to_module": pipeline_file(STACK), "explore": True}
    one = read(recorded("recording_envs:Aim-v0", **options, num_envs=1, episodes=30))
    same(one, read(recorded("recording_envs:Aim-v0", **options, num_envs=slots, episodes=30)))


def test_default_pipelines_change_nothing(recorded: Record, read: Read, pipeline_file: File) -> None:
    options: dict[str, Any] = {"policy": "python:recording_pieces:net", "explore": True}
    plain, piped = read(recorded(**options)), read(recorded(**options, env_to_module=pipeline_file(kind="env_to_module")))
    for name in ("obs", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(piped, name))
    for name, values in plain.extra.items():
        np.testing.assert_array_equal(values, piped.extra[name])
    assert not set(plain.ids) & set(piped.ids)


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")
def test_an_own_vector_class_plays_through_pieces_whatever_way_it_resets_itself(
    way: str, recorded: Record, read: Read, same: Same, pipeline_file: File
) -> None:
    file = pipeline_file(STACK)
    options = {"policy": "python:recording_pieces:stacked", "env_to_module": file, "vectorize": "auto", "num_envs": 4}
    batch = read(recorded(f"recording_envs:Own{way}-v0", **options, episodes=15))
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        seen = batch.obs[start : start + int(batch.lengths[e]) + 1]
        assert seen[:, 0].tolist() == list(range(len(seen)))
        assert len(seen) == 2 + int(seen[0, 1] + seen[0, 2])
    assert_seen_as_learned(batch, "stacked", file)
    same(batch, read(recorded(f"recording_envs:Own{way}-v0", **options, episodes=15)))


# ---- what is recorded ----


def learned_inputs(batch: EpisodeBatch, file: str, module: Any) -> Any:
    """What a learner pipeline makes of recorded episodes, for the module."""
    pipeline = load_pipeline(file, observation_space=batch.observation_space, action_space=batch.action_space, kind="learner")
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


def test_a_learner_makes_of_earlier_actions_and_rewards_what_the_policy_saw(
    recorded: Record, read: Read, pipeline_file: File
) -> None:
    file = pipeline_file(PREVIOUS, {"name": "flatten_observations"})
    for env, module in ((ENV, "after_choices"), ("recording_envs:Aim-v0", "after_aims")):
        batch = read(recorded(env, policy=f"python:recording_pieces:{module}", env_to_module=file, explore=True))
        assert_seen_as_learned(batch, module, file)


def test_a_learner_makes_of_the_recording_of_a_policy_with_memory_what_it_put_out(recorded: Record, read: Read) -> None:
    import recording_pieces

    batch = read(recorded(policy="python:recording_pieces:memory", num_envs=5))
    train = learner_pipeline(batch.observation_space, batch.action_space)(episodes=batch, rl_module=recording_pieces.memory)
    with torch.no_grad():
        found = recording_pieces.memory.forward_train(train)["action_dist_inputs"][train["loss_mask"]]
    np.testing.assert_allclose(found.numpy(), batch.extra["action_dist_inputs"], rtol=1e-5, atol=1e-6)


def test_a_filter_of_a_run_plays_with_what_it_learned_and_learns_no_more(
    recorded: Record, read: Read, run_through_pieces: Callable[..., str]
) -> None:
    run = run_through_pieces(FILTER)
    out = recorded(policy=run, episodes=30)
    batch, loaded = read(out), load_policy(run)
    assert loaded.trained is not None
    state = loaded.trained.state["MeanStdFilter"]
    moments = (state["own"] or state["shared"])["obs"]
    std = np.sqrt(moments["m2"] / (moments["count"] - 1))
    seen = np.clip((batch.acted_obs() - moments["mean"]) / (std + 1e-6), -10, 10).astype(np.float32)
    with torch.no_grad():
        wanted = loaded.module.forward_inference({"obs": torch.as_tensor(seen)})["action_dist_inputs"].numpy()
    np.testing.assert_allclose(batch.extra["action_dist_inputs"], wanted, rtol=1e-4, atol=1e-5)


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


def test_actions_that_a_pipeline_only_clips_are_recorded_in_the_environment_s_units(
    recorded: Record, pipeline_file: File
) -> None:
    files = {
        "env_to_module": pipeline_file(STACK),
        "module_to_env": pipeline_file(kind="module_to_env", normalize_actions=False),
    }
    out = recorded("recording_envs:Aim-v0", policy="python:recording_pieces:aiming", **files)
    assert open_dataset(str(out)).manifest.action_scale == "env"


def test_actions_are_recorded_as_the_pieces_leave_them(recorded: Record, read: Read, pipeline_file: File) -> None:
    file = pipeline_file({"use": "recording_pieces:Constant"}, kind="module_to_env")
    batch = read(recorded(policy="python:recording_pieces:net", module_to_env=file))
    assert set(batch.actions.tolist()) == {2}
    t = batch.timesteps()
    np.testing.assert_allclose(batch.rewards, t + 1 + 0.2)


def test_memory_is_recorded_in_both_formats(recorded: Record, read: Read) -> None:
    options: dict[str, Any] = {"policy": "python:recording_pieces:memory", "explore": True}
    rows, steps = (read(recorded(**options, format=format)) for format in ("episodes", "columns"))
    for name in ("h", "c"):
        np.testing.assert_array_equal(rows.extra["state_out"][name], steps.extra["state_out"][name])


def test_pieces_look_back_on_as_much_as_they_are_given(recorded: Record, read: Read, same: Same, pipeline_file: File) -> None:
    options = {"policy": "python:recording_pieces:stacked", "env_to_module": pipeline_file(STACK), "explore": True}
    whole, short = (read(recorded(**options, **more)) for more in ({}, {"lookback": 3}))
    np.testing.assert_array_equal(whole.extra["action_dist_inputs"], short.extra["action_dist_inputs"])
    assert not set(whole.ids) & set(short.ids)


def test_the_manifest_tells_the_pieces(recorded: Record, pipeline_file: File) -> None:
    out = recorded(policy="python:recording_pieces:stacked", env_to_module=pipeline_file(STACK), lookback=5)
    told = open_dataset(str(out)).manifest.provenance["recording"]
    assert told["env_to_module"] == {"kind": "learner", "pieces": [STACK]}
    assert told["lookback"] == 5


def test_builders_and_pieces_serve_as_well_as_files(recorded: Record, read: Read, pipeline_file: File) -> None:
    from odd_pieces import Scaled
    from recording_pieces import scaled

    options: dict[str, Any] = {"policy": "python:recording_pieces:net", "explore": True}
    found = [
        read(recorded(**options, env_to_module=given)).extra["action_dist_inputs"]
        for given in (pipeline_file(SCALED), scaled, Scaled(), [Scaled()])
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_pieces_see_episodes_with_the_ids_that_they_have_in_the_dataset(
    recorded: Record, read: Read, pipeline_file: File
) -> None:
    from recording_pieces import Where

    file = pipeline_file({"use": "recording_pieces:Where"}, kind="module_to_env")
    Where.ids.clear()
    batch = read(recorded(policy="python:recording_pieces:net", module_to_env=file, num_envs=5))
    assert set(batch.ids) == Where.ids


@pytest.mark.integration
def test_without_runners_pieces_run_in_the_calling_process(recorded: Record, pipeline_file: File) -> None:
    from recording_pieces import Where

    file = pipeline_file({"use": "recording_pieces:Where"}, kind="env_to_module")
    Where.pids.clear()
    recorded(policy="python:recording_pieces:net", env_to_module=file, num_env_runners=2)
    assert not Where.pids
    recorded(policy="python:recording_pieces:net", env_to_module=file, num_env_runners=0)
    assert Where.pids == {os.getpid()}


# ---- what is refused ----


@pytest.mark.parametrize("policy", ["random", "python:recording_envs:batched", "python:recording_envs:Teacher"])
def test_pieces_around_what_is_no_network_are_refused(policy: str, tmp_path: Path, pipeline_file: File) -> None:
    with pytest.raises(BadConfig, match="pipelines go around an RLModule") as caught:
        record(ENV, tmp_path / "D", policy=policy, episodes=1, env_to_module=pipeline_file(STACK), device="cpu")
    assert caught.value.exit_code == 4
    assert "--wrapper" in caught.value.fix
    assert not (tmp_path / "D").exists()


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


def test_files_of_the_wrong_kind_are_refused(tmp_path: Path, pipeline_file: File) -> None:
    after, before = pipeline_file(kind="module_to_env"), pipeline_file(kind="env_to_module")
    for given in ({"env_to_module": after}, {"module_to_env": before}):
        with pytest.raises(BadConfig, match="is needed here"):
            record(ENV, tmp_path / "D", policy="python:recording_pieces:net", episodes=1, **given)  # type: ignore[arg-type]


def test_a_lookback_that_is_too_short_for_a_piece_is_refused(tmp_path: Path, pipeline_file: File) -> None:
    options: dict[str, Any] = {
        "policy": "python:recording_pieces:stacked",
        "episodes": 1,
        "env_to_module": pipeline_file(STACK),
    }
    with pytest.raises(BadConfig, match="FrameStacking looks back 3 steps"):
        record(ENV, tmp_path / "D", **options, lookback=2)
    with pytest.raises(UsageError, match="--lookback 0"):
        record(ENV, tmp_path / "D", **options, lookback=0)


def test_a_lookback_that_is_too_short_for_a_runs_own_pieces_is_refused(
    tmp_path: Path, run_through_pieces: Callable[..., str]
) -> None:
    with pytest.raises(BadConfig, match="FrameStacking looks back 3 steps"):
        record(ENV, tmp_path / "D", policy=run_through_pieces(STACK), episodes=1, lookback=1)


def test_pieces_that_cannot_be_sent_to_runners_are_refused(tmp_path: Path) -> None:
    from recording_pieces import scaled

    options: dict[str, Any] = {"policy": "python:recording_pieces:net", "episodes": 1, "num_env_runners": 1}
    with pytest.raises(BadConfig, match="no other process can get"):
        record(ENV, tmp_path / "D", **options, env_to_module=lambda env: scaled(env))


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
