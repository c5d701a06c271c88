"""`evaluate` in environments of several agents: who plays what, and the returns of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError, SpaceMismatch, TargetNotMet
from offline_cli.exporting.export import export
from offline_cli.formats.opening import open_source
from offline_cli.playing.evaluate import evaluate
from offline_cli.recording.record import record
from offline_cli.training.train import train

WALKERS = "python:agent_games:Walkers"
HEAP = "python:agent_games:Heap"
DRAWN = "python:agent_games:Drawn"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for the two that are there first, and one for the third."""
    folder = tmp_path_factory.mktemp("run")
    record(WALKERS, folder / "D", policy="python:agent_games:walk", episodes=20, device="cpu")
    options: dict[str, Any] = {"hidden": (16,), "batch_size": 64, "updates": 60, "device": "cpu"}
    train(folder / "D", folder / "run", module_of=["*=sides", "helper=late"], **options)
    return folder / "run"


def found(run: Path | str, **options: Any) -> dict[str, Any]:
    told = evaluate(run, **{"env": WALKERS, "episodes": 12, "device": "cpu", **options}).as_dict()
    return {name: value for name, value in told.items() if name not in ("seconds",)}


def test_a_return_is_the_sum_over_agents_of_a_game(run: Path) -> None:
    told = found(run, episodes=40)
    assert set(told["return_by_agent"]) == {"left", "right", "helper"}
    assert told["return_by_agent"]["left"]["games"] == 40
    assert 0 < told["return_by_agent"]["helper"]["games"] <= 40
    total = sum(one["return_mean"] * one["games"] for one in told["return_by_agent"].values())
    assert told["return_mean"] == pytest.approx(total / 40)


def test_another_policy_may_play_an_agent_and_changes_no_other(run: Path) -> None:
    own, other = found(run), found(run, policy=["helper=random"])
    assert own["return_by_agent"]["left"] == other["return_by_agent"]["left"]
    assert own["return_by_agent"]["helper"] != other["return_by_agent"]["helper"]


def test_a_run_of_one_module_plays_every_agent(run: Path) -> None:
    assert (
        found(run / "modules" / "sides", policy=[f"helper={run / 'modules' / 'late'}"])["return_mean"]
        == found(run)["return_mean"]
    )
    assert set(found(run / "modules" / "late")["return_by_agent"]) == {"left", "right", "helper"}


def test_a_recording_of_the_run_names_its_modules(run: Path, tmp_path: Path) -> None:
    record(WALKERS, tmp_path / "D", policy=str(run), episodes=4, device="cpu", explore=False)
    modules = {(one.agent_id, one.module_id) for batch in open_dataset(str(tmp_path / "D")).batches() for one in batch}
    assert modules <= {("left", "sides"), ("right", "sides"), ("helper", "late")}
    assert all("action_logp" in batch.extra for batch in open_dataset(str(tmp_path / "D")).batches())


def test_a_gate_is_on_the_return_of_games(run: Path) -> None:
    with pytest.raises(TargetNotMet):
        found(run, min_return=1000.0)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"env": "CartPole-v1"}, BadConfig, "has modules of several agents"),
        ({"env": HEAP}, SpaceMismatch, r"the policy has Box\(3, float32\)"),
        ({"policy": ["up=random"]}, BadConfig, "no agent is called so"),
        ({"env_to_module": [{"name": "mean_std_filter"}]}, OfflineCliError, "pieces"),
    ],
)
def test_what_cannot_be_played_is_named(options: dict[str, Any], kind: type[OfflineCliError], said: str, run: Path) -> None:
    with pytest.raises(kind, match=said):
        found(run, **options)


def test_a_reward_that_is_no_number_is_not_taken_for_an_absent_agent(run: Path) -> None:
    with pytest.raises(BadData, match="a return of nan"):
        found(run, env="python:agent_games:Strange", env_kwargs={"rule": "nan"})


def test_a_module_that_remembers_learns_and_is_refused_by_name_where_several_play(run: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('hidden = [8]\n[network]\nmemory = "gru"\nmemory_size = 8\n')
    options: dict[str, Any] = {"config": tmp_path / "c.toml", "updates": 2, "device": "cpu", "module_of": ["*=shared"]}
    train(run.parent / "D", tmp_path / "run", **options)
    with pytest.raises(BadConfig, match="remembers"):
        found(tmp_path / "run")
    with pytest.raises(BadConfig, match="remember"):
        train(run.parent / "D", tmp_path / "other", **options, env=WALKERS)


def test_a_run_of_several_modules_is_not_taken_for_a_table(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NoData, match="this is a run of train-bc, not recordings"):
        open_source(str(run))


def test_a_run_of_several_modules_is_named_where_one_agent_plays(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NoData) as caught:
        record("CartPole-v1", tmp_path / "E", policy=str(run), episodes=1)
    assert "/modules/NAME" in caught.value.fix


@pytest.mark.integration
def test_a_module_is_exported_alone_and_its_file_plays_as_it_does(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    export(run / "modules" / "sides", tmp_path / "sides.onnx", to="onnx")
    own = found(run, episodes=40)["return_by_agent"]
    everyone = found(f"onnx:{tmp_path}/sides.onnx", episodes=40)["return_by_agent"]
    late = found(f"onnx:{tmp_path}/sides.onnx", episodes=40, policy=[f"helper={run}/modules/late"])["return_by_agent"]
    assert everyone["helper"] != own["helper"]
    assert late == own


@pytest.mark.parametrize("shape", [(36, 36, 1)], ids=str)
def test_agents_that_see_frames_are_recorded_learned_and_played(shape: tuple[int, ...], tmp_path: Path) -> None:
    game: dict[str, Any] = {"env_kwargs": {"shape": shape}, "device": "cpu"}
    record(DRAWN, tmp_path / "D", policy="python:agent_games:walk_by_sight", episodes=4, **game)
    options: dict[str, Any] = {"hidden": (8,), "batch_size": 16, "updates": 2, "device": "cpu"}
    train(tmp_path / "D", tmp_path / "run", module_of=["*=sides", "helper=late"], **options)
    told = found(tmp_path / "run", env=DRAWN, episodes=3, **game)
    assert told["return_by_agent"]["left"]["games"] == 3
    assert found(tmp_path / "run", env=DRAWN, episodes=3, num_envs=2, **game) == told


def test_a_policy_between_pieces_learns_and_is_refused_by_name_where_several_play(run: Path, tmp_path: Path) -> None:
    pieces = tmp_path / "stack.toml"
    pieces.write_text('kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n')
    options: dict[str, Any] = {"hidden": (8,), "updates": 2, "device": "cpu", "module_of": ["*=shared"], "pipeline": pieces}
    train(run.parent / "D", tmp_path / "run", **options)
    with pytest.raises(BadConfig, match="between connector pieces"):
        found(tmp_path / "run")
    with pytest.raises(BadConfig, match="between pieces"):
        train(run.parent / "D", tmp_path / "other", **options, env=WALKERS)


def test_a_policy_for_one_agent_of_one_is_a_mistake(run: Path) -> None:
    with pytest.raises((BadConfig, SpaceMismatch)):
        found(run / "modules" / "sides", env="CartPole-v1", policy=["a=random"])
