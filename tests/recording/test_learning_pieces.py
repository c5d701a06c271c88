"""What pieces learn while a recording is made: merged over runners, counted once, kept in the manifest, gone on with."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import open_dataset
from offline_cli.connectors import MeanStdFilter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, BadPiece, Interrupted
from offline_cli.recording.learned_state import connector_state, from_plain, to_plain
from offline_cli.recording.record import record

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
File = Callable[..., str]
ENV = "recording_envs:Count-v0"
FILTER: dict[str, Any] = {"name": "mean_std_filter"}
STACK: dict[str, Any] = {"name": "frame_stacking", "num_frames": 4}
CARELESS: dict[str, Any] = {"policy": "python:recording_pieces:careless", "explore": True}  # does not mind what it sees
MANNERS = [
    {"num_envs": 1},
    {"num_envs": 16},
    pytest.param({"num_envs": 3, "num_env_runners": 1}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 2, "num_env_runners": 4}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 3, "vectorize": "async"}, marks=pytest.mark.nightly),
]


def moments(out: Path) -> dict[str, Any]:
    state = connector_state(out)["env_to_module"]["MeanStdFilter"]
    assert not state["own"], "merged states are shared ones"
    found: dict[str, Any] = state["shared"]["obs"]
    return found


def assert_moments_of(found: dict[str, Any], observations: Any) -> None:
    rows = np.asarray(observations, np.float64)
    assert found["count"] == len(rows)
    np.testing.assert_allclose(found["mean"], rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["m2"], np.square(rows - rows.mean(0)).sum(0), rtol=1e-12)


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: "-".join(map(str, manner.values())))
def test_a_filter_has_counted_every_observation_once_whoever_played(
    manner: dict[str, Any], recorded: Record, read: Read, pipeline_file: File
) -> None:
    out = recorded(**CARELESS, env_to_module=pipeline_file(FILTER), episodes=40, **manner)
    assert_moments_of(moments(out), read(out).obs)


@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")
@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_a_filter_counts_no_observation_of_a_vector_s_idle_slots(
    way: str, recorded: Record, read: Read, pipeline_file: File
) -> None:
    options = {**CARELESS, "env_to_module": pipeline_file(FILTER), "vectorize": "auto", "num_envs": 4}
    out = recorded(f"recording_envs:Own{way}-v0", **options, episodes=10)
    assert_moments_of(moments(out), read(out).obs)


def test_pieces_that_learn_nothing_leave_nothing(recorded: Record, pipeline_file: File) -> None:
    for out in (recorded(policy="python:recording_pieces:stacked", env_to_module=pipeline_file(STACK)), recorded()):
        assert connector_state(out) == {}
        assert "connector_state" not in open_dataset(str(out)).manifest.provenance


def test_what_was_learned_is_taken_over_by_a_piece(recorded: Record, pipeline_file: File) -> None:
    out = recorded(**CARELESS, env_to_module=pipeline_file(FILTER))
    piece = MeanStdFilter(as_learner_connector=True)
    piece.set_state(connector_state(out)["env_to_module"]["MeanStdFilter"])
    assert piece.get_state()["shared"]["obs"]["count"] == moments(out)["count"]


def test_episodes_that_were_begun_and_not_kept_are_counted_too(recorded: Record, read: Read, pipeline_file: File) -> None:
    out = recorded(**CARELESS, env_to_module=pipeline_file(FILTER), steps=20, num_envs=16)
    batch = read(out)
    assert moments(out)["count"] > batch.num_steps + len(batch)


# ---- going on ----


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_recording_that_was_broken_off_goes_on_from_what_was_learned(
    runners: int, tmp_path: Path, read: Read, pipeline_file: File
) -> None:
    out, file = tmp_path / "D", pipeline_file({"use": "recording_pieces:Failing"}, FILTER, kind="env_to_module")
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "num_envs": 3, "num_env_runners": runners}
    with pytest.raises(BadData, match="piece Failing raised"):
        record(ENV, out, **options, episodes=60, env_to_module=file)
    before, kept = moments(out), len(read(out))
    assert before["count"] >= len(read(out).obs)
    with pytest.raises(BadData, match="piece Failing raised"):
        record(ENV, out, **options, episodes=60, env_to_module=file, resume=True)
    assert len(read(out)) >= kept
    assert moments(out)["count"] > before["count"]


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_what_was_learned_before_a_signal_is_kept(runners: int, tmp_path: Path, read: Read, pipeline_file: File) -> None:
    out, file, once = tmp_path / "D", pipeline_file(FILTER), iter([signal.SIGTERM])
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "num_envs": 3, "num_env_runners": runners}

    def stop(progress: Any) -> None:
        for number in once:
            signal.raise_signal(number)

    with pytest.raises(Interrupted, match="SIGTERM"):
        record("recording_envs:Slow-v0", out, **options, episodes=100_000, env_to_module=file, on_progress=stop)
    batch = read(out)
    assert moments(out)["count"] >= len(batch.obs)
    episodes = len(batch) + 1
    with pytest.raises(BadConfig, match="identity"):
        record("recording_envs:Slow-v0", out, **options, episodes=episodes, resume=True)
    record("recording_envs:Slow-v0", out, **options, episodes=episodes, env_to_module=file, resume=True)
    assert len(read(out)) == episodes


def test_other_pieces_are_another_recording(tmp_path: Path, pipeline_file: File) -> None:
    out, failing = tmp_path / "D", {"use": "recording_pieces:Failing"}
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "episodes": 60}
    with pytest.raises(BadData):
        record(ENV, out, **options, env_to_module=pipeline_file(failing, kind="env_to_module"))
    with pytest.raises(BadConfig, match="identity"):
        record(ENV, out, **options, env_to_module=pipeline_file(FILTER, kind="env_to_module"), resume=True)


def test_what_died_with_its_process_is_not_gone_on_without(tmp_path: Path, pipeline_file: File) -> None:
    out, file = tmp_path / "D", pipeline_file(FILTER)
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "episodes": 60, "max_rows_per_file": 5}
    with pytest.raises(Killed):
        record(ENV, out, **options, env_to_module=file, on_progress=_killed)
    assert list((out / "data").iterdir())
    with pytest.raises(BadConfig, match=r"what the connector pieces had learned .* is lost") as caught:
        record(ENV, out, **options, env_to_module=file, resume=True)
    assert "--first-episode" in caught.value.fix
    assert (out / "_writing.json").exists()
    assert not (out / "manifest.json").exists()


@pytest.mark.nightly
def test_what_died_with_a_runner_is_said_to_be_lost(tmp_path: Path, pipeline_file: File) -> None:
    out, file = tmp_path / "D", pipeline_file({"use": "recording_pieces:Dying"}, FILTER, kind="env_to_module")
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "episodes": 150, "num_envs": 1}
    options |= {"num_env_runners": 2, "env_to_module": file}
    with pytest.raises(BadData, match="a runner process ended with exit code 9") as caught:
        record(ENV, out, **options)
    assert "what the pieces had learned is lost: runner-" in caught.value.what
    assert "--first-episode" in caught.value.fix
    assert open_dataset(str(out)).manifest.counts.episodes
    assert connector_state(out) == {}
    with pytest.raises(BadConfig, match="is lost"):
        record(ENV, out, **options, resume=True)


def test_a_frozen_filter_has_nothing_to_lose(
    tmp_path: Path, recorded: Record, read: Read, same: Any, run_through_pieces: Callable[..., str]
) -> None:
    out, run = tmp_path / "D", run_through_pieces(FILTER, STACK)
    options: dict[str, Any] = {"policy": run, "vectorize": "sync", "device": "cpu", "episodes": 60, "max_rows_per_file": 5}
    with pytest.raises(Killed):
        record(ENV, out, **options, on_progress=_killed)
    record(ENV, out, **options, resume=True)
    same(read(out), read(recorded(policy=run, episodes=60)))


class Killed(BaseException):
    """In place of a signal that nobody can catch."""


def _killed(progress: Any) -> None:
    if progress.done >= 20:
        raise Killed


# ---- states that cannot be kept ----


@pytest.mark.nightly
def test_runners_whose_states_do_not_merge_lose_no_episode(tmp_path: Path, read: Read, pipeline_file: File) -> None:
    file = pipeline_file({"use": "recording_pieces:Counting"}, kind="module_to_env")
    options: dict[str, Any] = {**CARELESS, "vectorize": "sync", "device": "cpu", "episodes": 9, "module_to_env": file}
    with pytest.raises(BadData, match="does not say how states of parallel runners merge") as caught:
        record(ENV, tmp_path / "D", **options, num_env_runners=2)
    assert "all 9 episodes are committed" in caught.value.what
    assert (len(read(tmp_path / "D")), open_dataset(str(tmp_path / "D")).manifest.complete) == (9, True)
    record(ENV, tmp_path / "E", **options)
    assert connector_state(tmp_path / "E")["module_to_env"]["Counting"]["calls"] > 0


def test_a_state_without_a_form_in_json_loses_no_episode(tmp_path: Path, read: Read, pipeline_file: File) -> None:
    file = pipeline_file({"use": "recording_pieces:Unstorable"}, kind="env_to_module")
    with pytest.raises(BadData, match="set has no form in JSON") as caught:
        record(ENV, tmp_path / "D", **CARELESS, episodes=9, env_to_module=file, device="cpu")
    assert "env_to_module, Unstorable, calls" in caught.value.what
    assert len(read(tmp_path / "D")) == 9


def test_states_are_the_same_after_json() -> None:
    rng = np.random.default_rng(0)
    state: dict[str, Any] = {
        "wide": rng.normal(size=(3, 4)) * 1e-300,
        "narrow": np.array([0.1, np.nan, -np.inf], np.float32),
        "counts": np.array([[2**62, -(2**63)]]),
        "flags": np.array([True, False]),
        "nothing": np.zeros((0, 3)),
        "plain": [1, 2.5, "three", None, True, {"inf": float("inf")}],
        "moments": {"count": 7, "mean": np.float64(1 / 3)},
    }
    found = from_plain(json.loads(json.dumps(to_plain(state, where="state"), allow_nan=False)), where="test")
    for name in ("wide", "narrow", "counts", "flags", "nothing"):
        assert found[name].dtype == state[name].dtype
        np.testing.assert_array_equal(found[name], state[name])
    assert found["plain"] == state["plain"]
    assert (found["moments"]["count"], float(found["moments"]["mean"])) == (7, 1 / 3)


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {"dtype": 1, "shape": 2, "values": 3}, np.array([object()]), 2**70, "\ud800", {1, 2}]
)
def test_what_json_has_no_form_for_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(BadPiece, match="no form in JSON") as caught:
        to_plain({"a": [0, value]}, where="state")
    assert caught.value.where == "state, a, 1"


@pytest.mark.parametrize(
    "plain",
    [
        {"dtype": "|O", "shape": [1], "values": [1]},
        {"dtype": "<f8", "shape": [3], "values": [1.0]},
        {"dtype": "<f8", "shape": [1], "values": [{}]},
        {"float": []},
    ],
)
def test_what_is_no_state_in_json_is_refused(plain: Any) -> None:
    with pytest.raises(BadData, match="cannot be read"):
        from_plain({"a": plain}, where="manifest")


# ---- RLlib ----


def as_rllib_filters(cls: type, episodes: int) -> tuple[Any, list[Any]]:
    """RLlib's statistics after so many episodes of an environment, and the environment's observations episode by episode."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter as TheirFilter
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = PPOConfig().environment(cls).debugging(seed=3)
    pieces = {"env_to_module_connector": lambda env, spaces, device: TheirFilter()}
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=1, **pieces)
    runner = SingleAgentEnvRunner(config=config)
    lengths = [len(episode) for episode in runner.sample(num_episodes=episodes)]
    rows = np.stack(cls.given)  # type: ignore[attr-defined]
    return runner._env_to_module[TheirFilter][0]._filters[None].running_stats, np.split(rows, np.cumsum(np.add(lengths, 1)))


@pytest.mark.integration
def test_a_filter_learns_what_rllib_s_filter_learns_beside_its_env_runner(
    recorded: Record, read: Read, pipeline_file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")
    import recording_envs

    theirs, episodes = as_rllib_filters(recording_envs.Noting, episodes=8)
    assert len(episodes[-1]) == 0, "RLlib has seen nothing but those episodes, their last observations included"
    monkeypatch.setattr(recording_envs.Replay, "episodes", episodes[:-1])
    out = recorded("python:recording_envs:Replay", **CARELESS, env_to_module=pipeline_file(FILTER), episodes=8, num_envs=1)
    np.testing.assert_array_equal(read(out).obs, np.concatenate(episodes))
    ours, precision = moments(out), 1e-6  # RLlib's figures are float32, as its observations are
    assert ours["count"] == theirs.n
    np.testing.assert_allclose(ours["mean"], theirs.mean, rtol=precision)
    np.testing.assert_allclose(np.sqrt(ours["m2"] / (ours["count"] - 1)), theirs.std, rtol=precision)
