"""Pieces that learn: one pass over the training episodes, then frozen; the same numbers streaming, in `apply` and in play."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from stored_steps import columns_in

from offline_cli import apply, load_policy, write_dataset
from offline_cli.applying import learner_batches
from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.pipeline_spec import Setting
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OfflineCliError
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.training.config import resolve_config
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
FILTER = 'name = "mean_std_filter"'
LARGEST, CENTRED, MEDIAN = (f'use = "learning_pieces:{name}"' for name in ("Largest", "Centred", "Median"))
PIPELINES = [(FILTER,), (LARGEST,), (CENTRED,), (CENTRED, FILTER), (FILTER, CENTRED, LARGEST), (LARGEST, FILTER, FILTER)]


@pytest.fixture(autouse=True)
def several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_batches, "PART_BYTES", 700)


def file_of(folder: Path, pieces: Sequence[str], name: str = "pipeline.toml") -> Path:
    text = 'kind = "learner"\n' + "".join(f"[[pieces]]\n{piece}\n" for piece in pieces)
    (folder / name).write_text(text)
    return folder / name


def loaded(data: Path, pipeline: Any, **options: Any) -> TrainingData:
    return load_data(data, resolve_config(options), pipeline=pipeline, on_progress=lambda progress: None)


def observations(steps: Any) -> np.ndarray[Any, Any]:
    return np.asarray(columns_in(steps)["obs"].numpy())


def applied(data: Path, out: Path, pipeline: Path, **options: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """The observations of all batches, and what is kept of the pieces."""
    apply(str(data), str(out), pipeline=str(pipeline), format="safetensors", **options)
    found = np.concatenate([load_file(path)["obs"].numpy() for path in sorted((out / "data").iterdir())])
    return found, state_from_bytes((out / "connectors.msgpack").read_bytes(), where="test")


def in_order(rows: np.ndarray[Any, Any]) -> list[tuple[float, ...]]:
    return sorted(map(tuple, rows.tolist()))


def bits(state: Any) -> str:
    return repr(sorted(state.items()))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.sampled_from(PIPELINES),
    count=st.integers(4, 9),
    seed=st.integers(0, 99),
    val_fraction=st.sampled_from([None, 0.3]),
    per_batch=st.integers(1, 90),
)
def test_what_pieces_learn_and_make_is_the_same_in_memory_streaming_applied_and_beside_an_environment(
    make_batch: Make, pieces: Sequence[str], count: int, seed: int, val_fraction: float | None, per_batch: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, batch = Path(name), make_batch(episodes=count, length=25, seed=seed)
        data, file = written(folder / "data", batch), file_of(folder, pieces)
        memory, streamed = (loaded(data, file, streaming=way, val_fraction=val_fraction) for way in (False, True))
        assert memory.trained is not None
        assert streamed.trained is not None
        assert bits(memory.trained.state) == bits(streamed.trained.state)
        assert in_order(observations(memory.train)) == in_order(observations(streamed.train))
        if val_fraction is None:
            found, state = applied(data, folder / "out", file, steps_per_batch=per_batch)
            assert bits(state) == bits(memory.trained.state)
            np.testing.assert_array_equal(found, observations(memory.train))
        else:
            assert in_order(observations(memory.val)) == in_order(observations(streamed.val))
        played = PlaySpec(PlaySpec.of(file).env_to_module, trained=memory.trained).build(
            Setting(batch.observation_space, batch.action_space)
        )
        rows = np.concatenate([seen_while_playing(played.env_to_module, episode) for episode in batch])
        wanted = [observations(part) for part in (memory.train, memory.val) if part is not None]
        assert in_order(rows) == in_order(np.concatenate(wanted))
        assert bits(played.env_to_module.get_state()) == bits(memory.trained.state)
        streamed.close()


def written(place: Path, batch: EpisodeBatch) -> Path:
    spaces: dict[str, Any] = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    write_dataset(batch, place, format="episodes", action_scale="env", **spaces)
    return place


def seen_while_playing(pipeline: Any, recorded: Any) -> np.ndarray[Any, Any]:
    """(T, 3) what a policy sees at the steps of an episode that is played."""
    from offline_cli import SingleAgentEpisode

    rows, seen = [], recorded.get_observations()
    episode = SingleAgentEpisode(observation_space=recorded.observation_space, action_space=recorded.action_space)
    episode.add_env_reset(np.array(seen[0]))
    for step in range(len(recorded)):
        rows.append(np.asarray(pipeline(episodes=[episode])["obs"]).reshape(1, -1))
        episode.add_env_step(np.array(seen[step + 1]), recorded.get_actions(step), 0.0)
    return np.concatenate(rows)


@pytest.mark.parametrize("piece", [FILTER, CENTRED])
def test_a_run_its_checks_evaluate_and_load_policy_play_by_what_was_learned_and_leave_it(
    piece: str, write_dataset: Write, tmp_path: Path
) -> None:
    data, file = write_dataset(), file_of(tmp_path, [piece])
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 64\n")
    options: dict[str, Any] = {"config": tmp_path / "c.toml", "pipeline": file, "updates": 20, "env": "Sign-v0"}
    for run, way in (("memory", False), ("streamed", True)):
        train_bc(data, tmp_path / run, streaming=way, eval_every=5, eval_episodes=3, **options)
    kept = (tmp_path / "memory" / "connectors.msgpack").read_bytes()
    assert kept == (tmp_path / "streamed" / "connectors.msgpack").read_bytes()
    results = [
        evaluate(tmp_path / "memory", env="Sign-v0", episodes=8, num_envs=slots, env_to_module=file).as_dict()
        for slots in (1, 4)
    ]
    assert results[0]["return_mean"] == results[1]["return_mean"]
    policy = load_policy(tmp_path / "memory", env="Sign-v0", env_to_module=file)
    first = [int(policy.act(np.full(3, value, np.float32))) for value in (0.5, -0.2, 0.1)]
    for _ in range(20):
        policy.act(np.full(3, 1000.0, np.float32))
    assert [int(policy.act(np.full(3, value, np.float32))) for value in (0.5, -0.2, 0.1)] == first
    assert (tmp_path / "memory" / "connectors.msgpack").read_bytes() == kept


@pytest.mark.parametrize("way", ["memory", "streaming", "apply"])
@pytest.mark.parametrize("piece", ["Nameless", "Stateless", "Deaf", "OneWay", "Caching"])
def test_a_piece_whose_numbers_would_change_later_is_refused_by_name_before_training(
    piece: str, way: str, write_dataset: Write, tmp_path: Path
) -> None:
    data, file = write_dataset(), file_of(tmp_path, [f'use = "learning_pieces:{piece}"'])
    with pytest.raises(OfflineCliError, match=piece) as caught:
        if way == "apply":
            apply(str(data), str(tmp_path / "run"), pipeline=str(file))
        else:
            train_bc(data, tmp_path / "run", pipeline=file, streaming=way == "streaming")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run").exists()
