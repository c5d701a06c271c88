"""`evaluate RUN --offline D`, by command and function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corridor_walks import walks
from gymnasium import spaces

from offline_cli import EpisodeBatch, train_bc, write_dataset
from offline_cli.errors import BadConfig, SpaceMismatch, TargetNotMet, UsageError
from offline_cli.estimating.evaluate_offline import evaluate_offline
from offline_cli.training.algorithms.fqe import FOLD, NEXT_POLICY, Choices, tables

Command = Callable[..., Any]
SHORT: dict[str, Any] = {"epochs": 2, "eval_every": 1000}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with recordings at random (`half`), of a policy that learned from walks to the right (`run`), and others."""
    folder = tmp_path_factory.mktemp("made")
    write_dataset(walks(400, right=0.5), folder / "half")
    write_dataset(walks(400, right=0.5, logp=False), folder / "bare")
    write_dataset(walks(300, right=0.6, seed=1), folder / "right")
    train_bc(folder / "right", folder / "run", val_fraction=0.3, hidden=[8], updates=150, lr=0.02)
    return folder


def test_an_estimate_is_near_what_the_policy_earns(made: Path) -> None:
    found = evaluate_offline(made / "run", made / "half", explore=True)
    returns = walks(20_000, right=0.6, seed=9).returns
    assert found.behaviour == "action_logp"
    for one in found.estimates.values():
        assert one["reliable"]
        assert one["value"] == pytest.approx(returns.mean(), abs=0.25)
        assert one["low"] < one["value"] < one["high"]
    assert found.recorded["value"] == pytest.approx(walks(400, right=0.5).returns.mean())


def test_held_out_episodes_alone_are_taken_of_the_data_that_the_run_learned_from(made: Path) -> None:
    found = evaluate_offline(made / "run", made / "right", explore=True)
    assert (found.held_out, found.episodes) == (True, 90)
    assert evaluate_offline(made / "run", made / "half").held_out is None


def test_likelihood_and_accuracy_are_those_of_a_check_in_training(made: Path) -> None:
    from offline_cli.training.run_folder import RunFolder

    found, result = evaluate_offline(made / "run", made / "right"), RunFolder(made / "run").result()
    assert result is not None
    assert found.log_likelihood == pytest.approx(-result.val_loss, abs=1e-5)  # type: ignore[operator]
    assert found.accuracy == pytest.approx(result.val_accuracy, abs=1e-6)
    assert {name: one["recall"] for name, one in found.by_action.items()} == pytest.approx(result.val_recall, abs=1e-6)
    assert 0 <= found.calibration_error < 0.2


def test_a_greedy_policy_takes_the_likeliest_action_alone(made: Path) -> None:
    found = evaluate_offline(made / "run", made / "half").estimates["is"]
    assert found["without_support"] > 0.9
    assert not found["reliable"]


def test_a_behaviour_that_is_not_recorded_is_asked_for(made: Path) -> None:
    found = evaluate_offline(made / "run", made / "bare", explore=True)
    assert (found.behaviour, found.estimates) == (None, {})
    with pytest.raises(BadConfig) as caught:
        evaluate_offline(made / "run", made / "bare", explore=True, estimators=("is",))
    assert "--behaviour" in caught.value.fix


def test_a_uniform_behaviour_is_that_of_walks_at_random(made: Path) -> None:
    said = evaluate_offline(made / "run", made / "half", explore=True).estimates
    uniform = evaluate_offline(made / "run", made / "bare", explore=True, behaviour="uniform").estimates
    assert uniform["wis"]["value"] == pytest.approx(said["wis"]["value"], rel=1e-5)


def test_probabilities_that_are_not_what_played_are_refused(made: Path) -> None:
    wrong = walks(400, right=0.9, seed=3)
    write_dataset(
        EpisodeBatch(**{**fields(wrong), "extra": {"action_logp": np.full(2400, np.log(0.5), np.float32)}}), made / "wrong"
    )
    found = evaluate_offline(made / "run", made / "wrong", explore=True).estimates["is"]
    assert not found["reliable"]
    assert "average" in found["reason"]


def fields(batch: EpisodeBatch) -> dict[str, Any]:
    """Of a batch, to make another one."""
    names = ("ids", "starts", "obs", "actions", "rewards", "terminated", "truncated", "observation_space", "action_space")
    return {name: getattr(batch, name) for name in names}


def test_an_impossible_recorded_action_is_refused(made: Path) -> None:
    batch = walks(400, right=0.5, seed=4)
    batch.extra["action_logp"][7] = -np.inf  # type: ignore[index]
    write_dataset(batch, made / "impossible")
    found = evaluate_offline(made / "run", made / "impossible", explore=True).estimates["wis"]
    assert not found["reliable"]
    assert "probability 0" in found["reason"]


def test_a_gate_passes_on_the_low_end_alone(made: Path) -> None:
    low = min(one["low"] for one in evaluate_offline(made / "run", made / "half", explore=True).estimates.values())
    evaluate_offline(made / "run", made / "half", explore=True, min_value=low - 0.01)
    with pytest.raises(TargetNotMet) as caught:
        evaluate_offline(made / "run", made / "half", explore=True, min_value=low + 0.01)
    assert caught.value.details["estimates"]


def test_a_gate_fails_where_nothing_is_reliable(made: Path) -> None:
    with pytest.raises(TargetNotMet):
        evaluate_offline(made / "run", made / "half", min_value=-1e9)


def test_a_gate_without_weights_names_the_option_that_gives_them(made: Path) -> None:
    with pytest.raises(TargetNotMet) as missed:
        evaluate_offline(made / "run", made / "bare", explore=True, min_value=-1e9)
    assert "--behaviour" in missed.value.fix


def test_data_of_other_spaces_is_refused(made: Path) -> None:
    batch = walks(3, right=0.5)
    other = {**fields(batch), "observation_space": spaces.Discrete(9), "extra": {}}
    write_dataset(EpisodeBatch(**other), made / "other")
    with pytest.raises(SpaceMismatch) as caught:
        evaluate_offline(made / "run", made / "other")
    assert "--env" not in f"{caught.value}"  # which evaluate --offline does not take


def test_a_policy_without_probabilities_is_a_usage_error(made: Path) -> None:
    with pytest.raises(UsageError):
        evaluate_offline("random", made / "half")


def test_weights_correct_a_q_that_does_not_know_when_walks_end_and_the_direct_method_is_no_gate(made: Path) -> None:
    found = evaluate_offline(made / "run", made / "half", explore=True, estimators=("dm", "dr", "wdr")).estimates
    returns = walks(20_000, right=0.6, seed=9).returns
    errors = {name: abs(one["value"] - returns.mean()) for name, one in found.items()}
    assert max(errors["dr"], errors["wdr"]) < 0.15
    assert errors["dm"] < 0.4
    assert {name: one["reliable"] for name, one in found.items()} == {"dm": False, "dr": True, "wdr": True}


def test_a_clone_is_near_the_recorded_probabilities(made: Path) -> None:
    said = evaluate_offline(made / "run", made / "half", explore=True, estimators=("wis",)).estimates["wis"]
    fitted = evaluate_offline(made / "run", made / "bare", explore=True, estimators=("wis",), behaviour="fit")
    assert fitted.behaviour == "fit"
    assert fitted.estimates["wis"]["value"] == pytest.approx(said["value"], abs=0.3)


def test_the_command_gives_the_keys_draws_a_figure_and_exits_with_7_at_a_missed_gate(call: Command, made: Path) -> None:
    command = ("evaluate", made / "run", "--offline", made / "half", "--explore", "--estimators", "wis,is")
    code, found = call(*command, "--plot", made / "figure.png")
    assert (code, sorted(found["estimates"])) == (0, ["is", "wis"])
    assert {"value", "low", "high", "effective_samples"} <= found["estimates"]["wis"].keys()
    assert (made / "figure.png").read_bytes().startswith(b"\x89PNG")
    code, failed = call(*command, "--min-value", 6)
    assert (code, failed["exit_code"]) == (7, 7)


def test_options_of_playing_are_refused_beside_recordings(call: Command, made: Path) -> None:
    code, failed = call("evaluate", made / "run", "--offline", made / "half", "--episodes", 5)
    assert (code, failed["error"]["where"]) == (2, "--episodes")


def test_a_wrong_estimator_is_named_before_anything_is_read(call: Command) -> None:
    code, failed = call("evaluate", "run", "--offline", "D", "--estimators", "wis,wsi")
    assert (code, failed["error"]["where"]) == (2, "offline-cli evaluate")
    assert "'wsi'" in failed["error"]["what"]


def continuous(count: int, *, logp: bool) -> EpisodeBatch:
    """Episodes of 4 steps with actions between 0 and 4, drawn around the observation."""
    chance = np.random.default_rng(0)
    seen = chance.uniform(1, 3, (count * 5, 1)).astype(np.float32)
    acted = np.delete(seen, np.arange(4, count * 5, 5), 0)
    noise = chance.normal(0, 0.3, acted.shape)
    density = -0.5 * (noise / 0.3) ** 2 - np.log(0.3 * np.sqrt(2 * np.pi))
    return EpisodeBatch(
        ids=tuple(map(str, range(count))),
        starts=np.arange(count + 1) * 4,
        obs=seen,
        actions=(acted + noise).astype(np.float32),
        rewards=-np.abs(noise[:, 0]),
        terminated=np.ones(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        extra={"action_logp": density[:, 0].astype(np.float32)} if logp else {},
        observation_space=spaces.Box(0, 4, (1,), np.float32),
        action_space=spaces.Box(0, 4, (1,), np.float32),
    )


def test_densities_of_the_environments_units_are_compared_in_the_networks(tmp_path: Path) -> None:
    write_dataset(continuous(300, logp=True), tmp_path / "data", action_scale="env")
    train_bc(tmp_path / "data", tmp_path / "run", hidden=[16], updates=400, lr=0.01)
    found = evaluate_offline(tmp_path / "run", tmp_path / "data", explore=True)
    assert found.estimates["wis"]["reliable"], found.estimates["wis"]["reason"]
    assert found.estimates["wis"]["effective_samples"] > 200
    assert found.mse == pytest.approx((0.3 / 2) ** 2, rel=0.3)
    assert found.calibration_error < 0.1


def test_a_greedy_policy_of_continuous_actions_has_no_weights(tmp_path: Path) -> None:
    write_dataset(continuous(30, logp=True), tmp_path / "data", action_scale="env")
    train_bc(tmp_path / "data", tmp_path / "run", hidden=[4], updates=5)
    with pytest.raises(BadConfig) as caught:
        evaluate_offline(tmp_path / "run", tmp_path / "data", estimators=("wis",))
    assert "dm" in caught.value.fix


def test_a_policy_with_memory_sees_whole_episodes(made: Path, tmp_path: Path) -> None:
    config = tmp_path / "memory.toml"
    config.write_text('[network]\nname = "mlp"\nmemory = "gru"\nmemory_size = 4\nmax_seq_len = 2\n')
    train_bc(made / "right", tmp_path / "run", config=config, hidden=[4], updates=20)
    found = evaluate_offline(tmp_path / "run", made / "half", explore=True)
    assert found.steps == 2400
    assert found.estimates["wis"]["low"] < found.estimates["wis"]["high"]


@pytest.mark.parametrize("piece", ["mean_std_filter", "frame_stacking"])
def test_a_policy_with_pieces_sees_what_it_saw_in_training(tmp_path: Path, piece: str) -> None:
    from offline_cli.training.run_folder import RunFolder

    (tmp_path / "pieces.toml").write_text(f'kind = "learner"\n[[pieces]]\nname = "{piece}"\n')
    write_dataset(continuous(300, logp=True), tmp_path / "data", action_scale="env")
    trained: dict[str, Any] = {"pipeline": tmp_path / "pieces.toml", "val_fraction": 0.3, "hidden": [8], "updates": 50}
    train_bc(tmp_path / "data", tmp_path / "run", **trained)
    found, result = evaluate_offline(tmp_path / "run", tmp_path / "data", explore=True), RunFolder(tmp_path / "run").result()
    assert result is not None
    assert (found.log_likelihood, found.mse) == pytest.approx((-result.val_loss, result.val_mse), abs=1e-5)  # type: ignore[operator]
    assert found.estimates["wis"]["effective_samples"] > 10


def test_recordings_without_rewards_have_no_estimates(made: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = "\n".join(f"{who},{step},{step % 4},1,{int(step == 5)}" for who in range(60) for step in range(6))
    (tmp_path / "walks.csv").write_text(f"eps_id,t,obs,actions,terminateds\n{rows}\n")
    mapping = {
        "columns": {name: name for name in ("eps_id", "t", "obs", "actions", "terminateds")},
        "spaces": {"observation": {"type": "Discrete", "n": 4}, "action": {"type": "Discrete", "n": 2}},
    }
    told: dict[str, Any] = {"mapping": mapping, "behaviour": "uniform", "plot": str(tmp_path / "none.png")}
    found = evaluate_offline(made / "run", tmp_path / "walks.csv", **told)
    assert (found.episodes, found.estimates, found.recorded) == (60, {}, {})
    assert not recwarn.list
    assert found.accuracy is not None
    assert any("rewards" in note for note in found.notes)
    with pytest.raises(TargetNotMet):
        evaluate_offline(made / "run", tmp_path / "walks.csv", **told, min_value=-1e9)


def test_part_of_the_recordings_that_the_run_learned_from(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    train_bc(["half", "right"], tmp_path / "run", val_fraction=0.3, hidden=[8], updates=5)
    for sources in ("half", [made / "right"]):
        found = evaluate_offline(tmp_path / "run", sources, explore=True)
        assert found.held_out is False
        assert {one["reliable"] for one in found.estimates.values()} == {False}
        assert "learned from" in found.estimates["wis"]["reason"]
    for both in (["./half", made / "right"], ["right", "half"]):
        found = evaluate_offline(tmp_path / "run", both, explore=True)
        assert (found.held_out, found.episodes) == (True, 210)


def test_recordings_of_another_action_scale(call: Command, tmp_path: Path) -> None:
    write_dataset(continuous(300, logp=True), tmp_path / "data", action_scale="env")
    train_bc(tmp_path / "data", tmp_path / "run", hidden=[16], updates=400, lr=0.01)
    batch = continuous(300, logp=True)
    batch.extra["action_logp"] += np.log(2).astype(np.float32)
    normalized = EpisodeBatch(**{**fields(batch), "actions": batch.actions / 2 - 1, "extra": batch.extra})
    write_dataset(normalized, tmp_path / "normalized", action_scale="normalized")
    both = [evaluate_offline(tmp_path / "run", tmp_path / name, explore=True) for name in ("data", "normalized")]
    assert both[1].mse == pytest.approx(both[0].mse, rel=1e-4)
    assert both[1].estimates["wis"]["value"] == pytest.approx(both[0].estimates["wis"]["value"], rel=1e-3)


def test_one_episode_has_no_spread_and_no_clone(tmp_path: Path) -> None:
    write_dataset(continuous(300, logp=True), tmp_path / "data", action_scale="env")
    train_bc(tmp_path / "data", tmp_path / "run", hidden=[4], updates=5)
    write_dataset(continuous(1, logp=True), tmp_path / "one", action_scale="env")
    plot = tmp_path / "one.png"
    result = evaluate_offline(tmp_path / "run", tmp_path / "one", explore=True, plot=str(plot))
    found = result.estimates["is"]
    assert plot.exists()
    assert np.isnan([one[end] for one in (found, found["distribution_free"], result.recorded) for end in ("low", "high")]).all()
    with pytest.raises(BadConfig) as caught:
        evaluate_offline(tmp_path / "run", tmp_path / "one", explore=True, behaviour="fit")
    assert caught.value.where == "--behaviour fit"


def test_fitted_q_of_one_episode_is_refused(made: Path, tmp_path: Path) -> None:
    write_dataset(walks(1, right=0.5), tmp_path / "one")
    with pytest.raises(BadConfig) as caught:
        evaluate_offline(made / "run", tmp_path / "one", explore=True, estimators=("dm",))
    assert caught.value.where == "--estimators"


@pytest.mark.parametrize("gamma", [0.999, 1.0])
def test_a_table_that_never_ends_has_its_value_below_gamma_1_and_none_at_1(gamma: float) -> None:
    two, choices = spaces.Discrete(2), Choices(spaces.Discrete(1))
    columns: dict[str, Any] = {"obs": torch.tensor([0, 1]), "actions": torch.tensor([0, 0]), "new_obs": torch.tensor([1, 0])}
    columns |= {"rewards": torch.full((2,), 0.1), "terminateds": torch.zeros(2, dtype=torch.bool)}
    columns |= {NEXT_POLICY: torch.ones(2, 1), FOLD: torch.ones(2)}
    if gamma < 1:
        (table,) = tables(two, choices, columns, gamma, 1)
        assert table(torch.tensor([0])).item() == pytest.approx(100, abs=0.01)
        return
    with pytest.raises(BadConfig) as caught:
        tables(two, choices, columns, gamma, 1)
    assert caught.value.where == "--gamma"


def test_weights_that_are_all_0_give_no_value(made: Path) -> None:
    places = np.delete(walks(400, right=0.5).obs, np.arange(6, 2800, 7))
    batch = walks(400, right=0.5)
    batch.actions[places == 0] = 0  # the policy goes to the right
    write_dataset(batch, made / "away")
    found = evaluate_offline(made / "run", made / "away").estimates["wis"]
    assert np.isnan(found["value"])
    assert not found["reliable"]


def test_probabilities_that_are_all_missing_give_no_estimate(tmp_path: Path) -> None:
    write_dataset(continuous(300, logp=True), tmp_path / "data", action_scale="env")
    train_bc(tmp_path / "data", tmp_path / "run", hidden=[4], updates=5)
    batch = continuous(30, logp=True)
    batch.extra["action_logp"][:] = np.nan
    write_dataset(batch, tmp_path / "unknown", action_scale="env")
    found = evaluate_offline(tmp_path / "run", tmp_path / "unknown", explore=True)
    assert found.estimates == {}
    assert found.left_out["action_logp"]["episodes"] == 30
