"""`evaluate RUN --offline D`: incomplete data, data elsewhere, tables, several agents, and policies without a spread."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import corridor_walks
import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import EpisodeBatch, evaluate_offline, train, train_bc, write_dataset
from offline_cli.errors import BadConfig, BadEpisode, TargetNotMet
from offline_cli.estimating.estimators import OF_WEIGHTS, Episodes, distribution_free, estimates
from offline_cli.estimating.intervals import bootstrapped

Command = Callable[..., Any]
MAPPING = """
[columns]
eps_id = "who"
t = "t"
obs = "place"
actions = "way"
rewards = "gain"
terminateds = "ended"
[extra]
action_logp = "logp"
[spaces]
observation = {type = "Discrete", n = 4}
action = {type = "Discrete", n = 2}
"""


walks = partial(corridor_walks.walks, shared_ids=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `run`, the data it `learned` from, and `other` data with the same ids."""
    folder = tmp_path_factory.mktemp("made")
    write_dataset(walks(300, 1, right=0.6), folder / "learned")
    write_dataset(walks(300), folder / "other")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_bc("learned", "run", val_fraction=0.4, hidden=[8], updates=150, lr=0.02)
    return folder


@pytest.mark.parametrize("column", ["action_logp", "rewards"])
def test_episodes_without_a_number_are_left_out_counted_and_make_estimates_unreliable(
    made: Path, tmp_path: Path, column: str
) -> None:
    batch = walks(300)
    numbers: Any = batch.extra["action_logp"] if column == "action_logp" else batch.rewards
    numbers[[6, 7, 60]] = np.nan
    write_dataset(batch, tmp_path / "data")
    found = evaluate_offline(made / "run", tmp_path / "data", explore=True, estimators=("wis", "dr"))
    whole = np.setdiff1d(np.arange(300), [1, 10])
    write_dataset(walks(300).select(whole), tmp_path / "rest")
    rest = evaluate_offline(made / "run", tmp_path / "rest", explore=True, estimators=("wis",))
    assert found.left_out == {column: {"steps": 3, "episodes": 2}}
    assert found.episodes == 298
    assert found.estimates["wis"]["value"] == pytest.approx(rest.estimates["wis"]["value"])
    assert np.isfinite(found.estimates["dr"]["value"])
    assert not found.estimates["wis"]["reliable"]
    assert column in found.estimates["wis"]["reason"]
    assert rest.estimates["wis"]["reliable"]
    assert rest.left_out == {}


def test_a_policy_without_a_learned_spread_has_no_weights(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    batch = EpisodeBatch(
        ids=tuple(map(str, range(30))),
        starts=np.arange(31) * 2,
        obs=chance.random((90, 1), np.float32),
        actions=chance.random((60, 1), np.float32),
        rewards=chance.random(60),
        terminated=np.ones(30, np.bool_),
        truncated=np.zeros(30, np.bool_),
        extra={"action_logp": np.zeros(60, np.float32)},
        observation_space=spaces.Box(0, 1, (1,), np.float32),
        action_space=spaces.Box(0, 1, (1,), np.float32),
    )
    write_dataset(batch, tmp_path / "data", action_scale="env")
    train(tmp_path / "data", tmp_path / "run", algorithm="td3-bc", hidden=[4], updates=2)
    with pytest.raises(BadConfig) as caught:
        evaluate_offline(tmp_path / "run", tmp_path / "data", explore=True, estimators=("wis",))
    assert "dm" in caught.value.fix


def test_one_long_episode_among_short_ones_takes_little_memory() -> None:
    lengths = np.append(np.full(2000, 2), 200_000)
    logp = np.random.default_rng(0).uniform(-0.1, 0, (2, lengths.sum()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    episodes = Episodes(lengths, np.ones(lengths.sum()), logp[0], logp[1], gamma=0.99)
    found = estimates(episodes, OF_WEIGHTS)
    limits = bootstrapped([found[name] for name in ("is", "wis", "pdis")], 0, draws=20)
    free = distribution_free(episodes, "pdis")
    assert np.isfinite([*[one.value for one in found.values()], *limits[0], *free]).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB; an array of all steps has 3.2 GB


def test_sources_of_which_one_has_no_probabilities_need_another_behaviour(made: Path, tmp_path: Path) -> None:
    write_dataset(replace(walks(300, 5), ids=tuple(f"bare {n}" for n in range(300)), extra={}), tmp_path / "bare")
    sources = [made / "other", tmp_path / "bare"]
    with pytest.raises(BadEpisode) as caught:
        evaluate_offline(made / "run", sources, explore=True)
    assert "--behaviour fit" in caught.value.fix
    found = evaluate_offline(made / "run", sources, explore=True, behaviour="uniform", estimators=("wis",))
    assert (found.behaviour, found.episodes, found.estimates["wis"]["reliable"]) == ("uniform", 600, True)


def test_data_that_the_run_learned_from_is_known_elsewhere_and_in_part(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "learned", tmp_path / "copy")
    found = evaluate_offline(made / "run", tmp_path / "copy", explore=True, estimators=("wis",))
    assert (found.held_out, found.episodes) == (True, 120)
    write_dataset(walks(300, 1, right=0.6).select(slice(0, 100)), tmp_path / "part")
    found = evaluate_offline(made / "run", tmp_path / "part", explore=True, estimators=("wis",))
    assert (found.held_out, found.estimates["wis"]["reliable"]) == (False, False)
    assert "learned from" in found.estimates["wis"]["reason"]
    assert evaluate_offline(made / "run", made / "other").held_out is None


def paths(count: int, seed: int = 0) -> EpisodeBatch:
    """Walks whose observations are numbers of their own."""
    batch = walks(count, seed)
    obs = np.random.default_rng(seed).normal(size=(7 * count, 1))
    return replace(batch, obs=obs, observation_space=spaces.Box(-np.inf, np.inf, (1,), np.float64))


def test_episodes_under_other_ids_or_with_other_rewards_are_still_what_the_run_learned_from(tmp_path: Path) -> None:
    batch = paths(200)
    renamed, paid = replace(batch, ids=tuple(f"new-{one}" for one in batch.ids)), replace(batch, rewards=batch.rewards + 1)
    for name, data in (("data", batch), ("renamed", renamed), ("paid", paid), ("fresh", paths(200, 9))):
        write_dataset(data, tmp_path / name)
        write_dataset(data.select(slice(0, 80)), tmp_path / f"part of {name}")
    train_bc(tmp_path / "data", tmp_path / "run", val_fraction=0.4, hidden=[4], updates=2)
    held = {}
    for one in ("renamed", "part of renamed", "part of paid"):
        found = evaluate_offline(tmp_path / "run", tmp_path / one, explore=True, estimators=("wis",))
        assert "learned from" in found.estimates["wis"]["reason"]
        held[one] = found.held_out, found.estimates["wis"]["reliable"]
    assert {*held.values()} == {(False, False)}
    found = evaluate_offline(tmp_path / "run", tmp_path / "paid", explore=True, estimators=("wis",))
    assert (found.held_out, found.episodes) == (True, 80)
    assert evaluate_offline(tmp_path / "run", tmp_path / "fresh").held_out is None


def test_what_the_runs_of_init_from_learned_from_makes_estimates_unreliable(tmp_path: Path) -> None:
    for seed, name in enumerate(("first", "second", "third", "fresh")):
        write_dataset(paths(100, seed), tmp_path / name)
    begun: Any = {}
    for name in ("first", "second", "third"):
        train(tmp_path / name, tmp_path / f"run {name}", algorithm="bc", hidden=[4], updates=2, **begun)
        begun = {"init_from": tmp_path / f"run {name}"}
    for name in ("first", "second"):
        found = evaluate_offline(tmp_path / "run third", tmp_path / name, explore=True, estimators=("wis",))
        assert (found.held_out, found.estimates["wis"]["reliable"]) == (False, False)
        assert "--init-from learned from 100%" in found.estimates["wis"]["reason"]
    assert evaluate_offline(tmp_path / "run third", tmp_path / "fresh").held_out is None


def test_of_data_whose_best_episodes_were_learned_from_the_held_out_ones_are_taken(made: Path, tmp_path: Path) -> None:
    train(made / "learned", tmp_path / "run", algorithm="bc", top_fraction=0.5, val_fraction=0.4, hidden=[8], updates=5)
    found = evaluate_offline(tmp_path / "run", made / "learned")
    assert found.held_out is True
    assert 90 < found.episodes < 150  # the 60 held-out ones of the best, and as large a share of the others


def test_a_run_without_its_checkpoint_is_not_known_to_hold_episodes_out(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    for file in (tmp_path / "run").glob("state.*"):
        file.unlink()
    found = evaluate_offline(tmp_path / "run", made / "other", explore=True, estimators=("wis",))
    assert (found.held_out, found.estimates["wis"]["reliable"]) == (False, False)


def test_the_direct_method_passes_no_gate(made: Path) -> None:
    with pytest.raises(TargetNotMet) as caught:
        evaluate_offline(made / "run", made / "other", explore=True, estimators=("dm",), min_value=-1e9)
    assert "error of Q" in caught.value.details["estimates"]["dm"]["reason"]


def test_a_table_is_measured_by_its_mapping(call: Command, made: Path, tmp_path: Path) -> None:
    batch = walks(300)
    columns = (np.repeat(np.arange(300), 6), np.tile(np.arange(6), 300), np.delete(batch.obs, np.arange(6, 2100, 7)))
    columns += (batch.actions, batch.rewards, np.tile([0, 0, 0, 0, 0, 1], 300), batch.extra["action_logp"])
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / "walks.csv").write_text("\n".join(["who,t,place,way,gain,ended,logp", *rows]))
    (tmp_path / "walks.toml").write_text(MAPPING)
    command = ("evaluate", made / "run", "--explore", "--estimators", "wis", "--offline")
    code, found = call(*command, tmp_path / "walks.csv", "--mapping", tmp_path / "walks.toml")
    assert (code, found["behaviour"]) == (0, "action_logp")
    expected = call(*command, made / "other")[1]["estimates"]["wis"]["value"]
    assert found["estimates"]["wis"]["value"] == pytest.approx(expected, rel=1e-5)


def test_one_module_of_several_is_measured(call: Command, made: Path, tmp_path: Path) -> None:
    batch = walks(300)
    write_dataset(replace(batch, agent_ids=("red", "blue") * 150, module_ids=("first", "second") * 150), tmp_path / "both")
    command = ("evaluate", made / "run", "--offline", tmp_path / "both", "--explore")
    code, failed = call(*command)
    assert (code, "--module-id" in failed["error"]["fix"]) == (4, True)
    code, found = call(*command, "--module-id", "second")
    assert (code, found["episodes"]) == (0, 150)


def test_fitted_q_evaluation_is_no_algorithm_of_train(made: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig):
        train(made / "other", tmp_path / "run", algorithm="fqe", updates=1)
