"""Held-out accuracy beside the majority's, the recall of each action, and gates on held-out figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_json import told_in
from gymnasium import spaces
from stored_steps import columns_in

from offline_cli import load_policy, train, train_bc, write_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, TargetNotMet
from offline_cli.training.config import resolve_config
from offline_cli.training.training_data import load_data

Make = Callable[..., EpisodeBatch]
SPLIT: dict[str, Any] = {"val_fraction": 0.4, "seed": 3}
OPTIONS: dict[str, Any] = {**SPLIT, "hidden": (16,), "batch_size": 64, "lr": 0.01, "updates": 30, "device": "cpu"}
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def chosen(batch: EpisodeBatch, count: int, seed: int = 0) -> Any:
    """(N,) one of `count` choices for each step, the first ones most often; a quarter does not follow from what was seen."""
    random = np.random.default_rng(seed)
    follows = np.clip((batch.acted_obs()[:, seed] + 0.7).astype(np.int64), 0, count - 1)
    return np.where(random.random(batch.num_steps) < 0.25, random.integers(0, count, batch.num_steps), follows)


def of_choices(batch: EpisodeBatch) -> EpisodeBatch:
    return replace(batch, actions=chosen(batch, 4), action_space=spaces.Discrete(4))


def counted_from_minus_one(batch: EpisodeBatch) -> EpisodeBatch:
    return replace(batch, actions=chosen(batch, 3) - 1, action_space=spaces.Discrete(3, start=-1))


def of_several(batch: EpisodeBatch) -> EpisodeBatch:
    several = np.stack([chosen(batch, 3), chosen(batch, 2, 1)], -1)
    return replace(batch, actions=several, action_space=spaces.MultiDiscrete([3, 2]))


def nested(batch: EpisodeBatch) -> EpisodeBatch:
    pushed = np.zeros((batch.num_steps, 2), np.float32)
    actions: Any = {"gear": chosen(batch, 3), "lamps": np.stack([chosen(batch, 2, 1), chosen(batch, 2)], -1).astype(np.int8)}
    space = spaces.Dict({"gear": spaces.Discrete(3), "lamps": spaces.MultiBinary(2), "push": BOX})
    return replace(batch, actions={**actions, "push": pushed}, action_space=space)


KINDS: dict[str, tuple[Callable[[EpisodeBatch], EpisodeBatch], dict[str, Any], Any]] = {
    "numbers": (of_choices, {}, [None, ["0", "1", "2", "3"]]),
    "categories": (
        of_choices,
        {"actions": [{"name": "lever", "categories": ["down", "hold", "up", "off"]}]},
        [None, ["down", "hold", "up", "off"]],
    ),
    "from -1": (counted_from_minus_one, {"actions": [{"categories": ["back", "stay", "on"]}]}, [None, ["back", "stay", "on"]]),
    "several": (
        of_several,
        {"actions": [{"name": "gear", "categories": ["1", "2", "R"]}, {}]},
        ["gear", ["1", "2", "R"], "actions[1]", ["0", "1"]],
    ),
    "nested": (
        nested,
        {"actions.gear": [{"categories": ["1", "2", "R"]}]},
        ["actions.gear", ["1", "2", "R"], "actions.lamps[0]", ["0", "1"], "actions.lamps[1]", ["0", "1"]],
    ),
}


def elements(actions: Any) -> Any:
    """(N, E) of discrete parts."""
    parts = [part for name, part in actions.items() if name != "push"] if isinstance(actions, dict) else [actions]
    return np.concatenate([np.asarray(part).reshape(len(part), -1) for part in parts], -1)


def split_of(data: Path, **options: Any) -> tuple[Any, Any]:
    """The columns of the steps that are learned from, and of those that are held out."""
    made = load_data(data, resolve_config({**SPLIT, **options}), on_progress=lambda _: None)
    with closing(made):
        return columns_in(made.train), columns_in(made.val)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_recall_and_the_accuracy_of_the_most_frequent_action_are_what_numpy_counts(
    make_batch: Make, tmp_path: Path, kind: str, streaming: bool
) -> None:
    made, meanings, named = KINDS[kind]
    write_dataset(made(make_batch()), tmp_path / "D", meanings=meanings, action_scale="env")
    result = train_bc(tmp_path / "D", tmp_path / "run", streaming=streaming, **OPTIONS)
    learned, held = split_of(tmp_path / "D")
    recorded, before = elements(held["actions"]), elements(learned["actions"])
    guessed = elements(load_policy(tmp_path / "run").act(held["obs"].numpy()))
    assert result.val_accuracy == pytest.approx((guessed == recorded).all(-1).mean(), abs=1e-12)
    most = [np.unique(column, return_counts=True) for column in before.T]
    majority = np.array([values[counts.argmax()] for values, counts in most])
    assert result.val_accuracy_majority == pytest.approx((recorded == majority).all(-1).mean(), abs=1e-12)
    wanted: dict[Any, dict[str, Any]] = {}
    for number, (name, labels) in enumerate(zip(named[::2], named[1::2], strict=True)):
        first = -1 if kind == "from -1" else 0
        wanted[name] = {}
        for value, label in enumerate(labels, first):
            of_it = recorded[:, number] == value
            wanted[name][label] = (guessed[of_it, number] == value).mean() if of_it.any() else None
    flat: Any = wanted.get(None, wanted)
    assert list(result.val_recall) == list(flat)
    for name, one in flat.items():
        assert result.val_recall[name] == (pytest.approx(one) if one is not None else None)
    assert told_in(tmp_path / "run" / "result.json")["val_recall"] == result.val_recall


@pytest.mark.parametrize("streaming", [False, True])
def test_a_step_is_learned_from_or_held_out_and_never_both(make_batch: Make, tmp_path: Path, streaming: bool) -> None:
    batch = make_batch()
    write_dataset(batch, tmp_path / "D")
    learned, held = split_of(tmp_path / "D", streaming=streaming)
    assert len(learned["actions"]) + len(held["actions"]) == batch.num_steps


def test_an_action_that_no_held_out_step_has_has_no_recall(make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch()
    write_dataset(replace(batch, action_space=spaces.Discrete(3)), tmp_path / "D")
    found = train_bc(tmp_path / "D", tmp_path / "run", **OPTIONS).val_recall
    assert found["2"] is None
    assert found["0"] is not None


def test_a_note_tells_of_an_accuracy_that_is_no_better_than_one_action(make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch()
    rare = (np.random.default_rng(0).random(batch.num_steps) < 0.05).astype(np.int64)
    notes = []
    for name, actions in (("rare", rare), ("learned", batch.actions)):
        write_dataset(replace(batch, actions=actions), tmp_path / name)
        result = train_bc(tmp_path / name, tmp_path / f"run-{name}", **OPTIONS)
        notes.append([note for note in result.notes if "most frequent" in note])
    assert [len(one) for one in notes] == [1, 0]


# ---- gates ----


def gated(data: Path, run: Path, **more: Any) -> Mapping[str, Any]:
    """What the error says beside where, of a run that misses its gates."""
    with pytest.raises(TargetNotMet) as caught:
        train_bc(data, run, **{**OPTIONS, **more})
    assert caught.value.exit_code == 7
    assert caught.value.details == told_in(run / "result.json")
    return {"what": caught.value.what, **caught.value.details}


@pytest.fixture
def noisy(make_batch: Make, tmp_path: Path) -> Path:
    write_dataset(of_choices(make_batch()), tmp_path / "D")
    return tmp_path / "D"


def test_a_gate_that_is_missed_is_exit_7_with_figure_and_bound_and_the_run_is_whole(noisy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    told = gated(noisy, run, max_val_loss=0.01, min_accuracy=0.999)
    for text in (f"{told['val_loss']:.6g}", "0.01", f"{told['val_accuracy']:.6g}", "0.999"):
        assert text in told["what"]
    assert load_policy(run).act(np.zeros(3, np.float32)) in range(4)


def test_the_figure_is_that_of_the_policy_that_is_kept(noisy: Path, tmp_path: Path) -> None:
    told = gated(noisy, tmp_path / "run", max_val_loss=0.01, lr=0.3, eval_every=10)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    checked = {row["update"]: row["val_loss"] for row in rows if "val_loss" in row}
    assert told["policy_update"] == min(checked, key=checked.__getitem__)
    assert told["val_loss"] == min(checked.values())


@pytest.mark.parametrize("algorithm", ["bc", "td3-bc"])
def test_a_gate_on_the_accuracy_of_box_actions_is_refused_before_training(
    make_batch: Make, tmp_path: Path, algorithm: str
) -> None:
    write_dataset(make_batch(continuous=True), tmp_path / "D", action_scale="env")
    with pytest.raises(BadConfig) as caught:
        train(tmp_path / "D", tmp_path / "run", algorithm=algorithm, min_accuracy=0.5, **OPTIONS)
    assert (caught.value.exit_code, caught.value.where) == (4, "--min-accuracy")
    assert not (tmp_path / "run").exists()
