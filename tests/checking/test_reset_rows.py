"""Files of gymnasium's vector environments that reset themselves: what validate says, and what --drop-reset-rows leaves out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import polars as pl
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch

Told = Callable[..., dict[str, Any]]
Columns = dict[str, NDArray[Any]]

STEPS = 150
RESETS = {"reset-row", "reset-observation"}
FLAT = {"actions": "actions", "rewards": "rewards", "terminateds": "terminals", "truncateds": "timeouts"}
"""Our columns by those of D4RL."""


def recorded(mode: AutoresetMode, envs: int = 1, env: str = "CartPole-v1", **options: Any) -> Columns:
    """(STEPS, envs, ...) of what a recorder sees that takes what `step` gives for the next observation."""
    made = gym.make_vec(env, envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **options)
    made.action_space.seed(1)
    obs, _ = made.reset(seed=1)
    rows = []
    for _ in range(STEPS):
        actions = made.action_space.sample()
        new, rewards, terminals, timeouts, _ = made.step(actions)
        rows.append((obs.copy(), actions, rewards, terminals, timeouts, new.copy()))
        obs = new
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))


def one_after_the_other(columns: Columns) -> Columns:
    """(STEPS * envs, ...): the rows of each environment together."""
    return {name: values.swapaxes(0, 1).reshape(-1, *values.shape[2:]) for name, values in columns.items()}


def table(columns: Columns) -> tuple[pl.DataFrame, str]:
    """Rows of steps as programs write them, a column for each number; and their mapping."""
    flat: dict[str, Any] = {}
    for name, short in (("observations", "o"), ("next_observations", "n")):
        if name in columns:
            flat |= {f"{short}{i}": columns[name][:, i] for i in range(columns[name].shape[1])}
    flat |= {name: columns[name].reshape(len(columns["rewards"])) for name in columns if name[:1] not in "on"}
    lines = [f'{ours} = "{theirs}"' for ours, theirs in FLAT.items()]
    lines += [f"{ours} = {[name for name in flat if name[0] == short]}" for ours, short in (("obs", "o"), ("new_obs", "n"))]
    lines += ['eps_id = "id"', 't = "time"'] if "id" in flat else []
    return pl.DataFrame(flat), "[columns]\n" + "\n".join(lines)


def written(folder: Path, columns: Columns, kind: str) -> list[Any]:
    """The file, and the options that read it."""
    path = folder / f"recorded.{kind}"
    if kind == "npz":
        np.savez(path, allow_pickle=False, **columns)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            for name, values in columns.items():
                file[name] = values
    else:
        frame, mapping = table(columns)
        frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
        (folder / "mapping.toml").write_text(mapping, encoding="utf-8")
        return [path, "--mapping", folder / "mapping.toml"]
    return [path]


def warned(told: Told, *source: Any) -> dict[str, int]:
    problems = told("validate", *source)["problems"]
    return {one["code"]: one["count"] for one in problems if one["severity"] == "warning" and one["code"] in RESETS}


def read(folder: Path) -> EpisodeBatch:
    return EpisodeBatch.concat(list(open_dataset(folder).batches()))


@pytest.mark.parametrize("kind", ["hdf5", "csv"])
@pytest.mark.parametrize(("mode", "code"), [("NEXT_STEP", "reset-row"), ("SAME_STEP", "reset-observation")])
def test_resets_that_were_recorded_as_steps_are_a_warning_of_every_format(
    told: Told, tmp_path: Path, mode: str, code: str, kind: str
) -> None:
    columns = one_after_the_other(recorded(AutoresetMode[mode]))
    ends = int(np.count_nonzero(columns["terminals"][:-1]))
    assert warned(told, *written(tmp_path, columns, kind)) == {code: ends}


def test_reset_rows_are_left_out_and_counted_and_nothing_else(told: Told, tmp_path: Path) -> None:
    columns = one_after_the_other(recorded(AutoresetMode.NEXT_STEP))
    source = written(tmp_path, columns, "parquet")
    result = told("convert", *source, "--out", tmp_path / "d", "--drop-reset-rows", "--env", "CartPole-v1")
    resets = np.append(False, columns["terminals"][:-1])
    assert result["assumptions"]["reset-row"] == np.count_nonzero(resets)
    assert open_dataset(tmp_path / "d").manifest.assumptions["reset-row"] == np.count_nonzero(resets)
    batch = read(tmp_path / "d")
    assert np.array_equal(batch.acted_obs(), columns["observations"][~resets])
    assert np.array_equal(batch.next_obs(), columns["next_observations"][~resets])
    assert np.array_equal(batch.actions, columns["actions"][~resets])
    assert (batch.rewards == 1).all()
    assert warned(told, tmp_path / "d") == {}


@pytest.mark.parametrize(("mode", "code"), [("NEXT_STEP", "reset-row"), ("SAME_STEP", "reset-observation")])
def test_episodes_of_several_environments_whose_rows_alternate_are_seen(
    told: Told, tmp_path: Path, mode: str, code: str
) -> None:
    columns = recorded(AutoresetMode[mode], envs=4)
    ends = columns["terminals"] | columns["timeouts"]
    number = np.concatenate([np.zeros((1, 4), np.int64), np.cumsum(ends, axis=0)[:-1]])
    columns |= {"id": number * 10 + np.arange(4), "time": np.broadcast_to(np.arange(STEPS)[:, None], (STEPS, 4))}
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in columns.items()}
    source = written(tmp_path, flat, "parquet")
    assert warned(told, *source) == {code: np.count_nonzero(ends[:-1])}
    result = told("convert", *source, "--out", tmp_path / "d", "--drop-reset-rows")
    assert result["assumptions"][code] == np.count_nonzero(ends[:-1])
    assert warned(told, tmp_path / "d") == {}


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_episodes_that_a_dataset_has_without_their_resets_are_known_when_they_come_again(
    told: Told, tmp_path: Path, mode: str
) -> None:
    source = written(tmp_path, one_after_the_other(recorded(AutoresetMode[mode])), "parquet")
    words = ("convert", *source, "--out", tmp_path / "d", "--drop-reset-rows")
    episodes = told(*words)["episodes"]
    again = told(*words, "--append")
    assert (again["episodes_appended"], again["duplicates_dropped"]) == (0, episodes)
