"""Recordings with one problem each: files, rows, episodes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from faulty import Make, made
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.meanings import Element, Meanings

# ---- places and files ----


@made({"unreadable-source": 1})
def two_formats_in_one_folder(make: Make) -> Path:
    folder = make.items(make.packed())
    make.lines(make.columns()).rename(folder / "notes.json")
    return folder


@made({"no-episodes": 1})
def a_table_without_rows(make: Make) -> Path:
    return make.rows({name: values[:0] for name, values in make.columns().items()})


@made({"unreadable-file": 1})
def a_file_that_breaks_off_among_others(make: Make) -> Path:
    items = make.packed()
    folder = make.items(items[:1], items[1:2], items[2:])
    os.truncate(folder / "part-1.parquet", 200)
    return folder


@made({"unreadable-row": 2})
def bytes_that_are_no_episode(make: Make) -> Path:
    items = make.packed()
    return make.items([items[0], b"\xc1", items[1], b"text", items[2]])


@made({"unreadable-row": 1, "incomplete-episode": 1})
def a_step_without_an_observation(make: Make) -> Path:
    columns = make.columns()
    return make.rows({**columns, "obs": [None, *columns["obs"].tolist()[1:]]})


@made({"length-mismatch": 1})
def as_many_observations_as_actions(make: Make) -> Path:
    first, *others = make.packed()

    def cut(state: dict[str, Any]) -> None:
        state["observations"]["data"] = state["observations"]["data"][:-1]

    return make.items([make.repacked(first, cut), *others])


@made({"unsafe-data": 1})
def an_array_of_objects(make: Make) -> Path:
    first, *others = make.packed()
    hostile = {b"nd": True, b"type": "|O", b"kind": b"", b"shape": [5], b"data": b"\0" * 40}
    return make.items([make.repacked(first, lambda state: state["observations"].update(data=hostile)), *others])


@made({"unsupported-space": 1})
def an_episode_of_text_observations(make: Make) -> Path:
    first, *others = make.packed()
    text = {"space": "text", "min_length": 1, "max_length": 5}
    return make.items([make.repacked(first, lambda state: state.update(_observation_space=text)), *others])


# ---- episodes ----


@made({"conflicting-episode": 1})
def two_episodes_with_one_id(make: Make) -> Path:
    return make.items(make.packed(make.batch(ids=("e0", "e1", "e0"))))


@made({"duplicate-episode": 2})
def episodes_written_again(make: Make) -> Path:
    items = make.packed()
    return make.items(items, items[1:])


@made({"gap-in-episode": 1})
def two_steps_that_are_missing(make: Make) -> Path:
    return make.rows({name: np.delete(np.array(values), [1, 2], axis=0) for name, values in make.columns().items()})


@made({"steps-after-end": 1})
def an_end_flag_in_the_middle(make: Make) -> Path:
    columns = make.columns()
    columns["terminateds"][1] = True
    return make.rows(columns)


@made({"broken-chain": 1})
def an_observation_that_a_step_did_not_lead_to(make: Make) -> Path:
    columns = make.columns()
    columns["new_obs"][1] += 1
    return make.rows(columns)


@made({"repeated-steps": 2})
def steps_that_are_written_twice(make: Make) -> Path:
    columns = make.columns()
    return make.rows({name: np.concatenate([np.array(values)[:2], values]) for name, values in columns.items()})


@made({"unfinished-episode": 2})
def episodes_without_an_end(make: Make) -> Path:
    return make.items(make.packed(make.batch(terminated=np.array([True, False, False]))))


@made({"both-flags": 1})
def an_episode_that_ends_twice(make: Make) -> Path:
    return make.items(make.packed(make.batch(truncated=np.array([False, True, False]))))


@made({"zero-length-episode": 1})
def an_episode_without_a_step(make: Make) -> Path:
    return make.items(make.packed(make.batch((4, 0, 5))))


@made({"missing-final-observation": 3})
def rows_without_next_observations(make: Make) -> Path:
    return make.rows({name: values for name, values in make.columns().items() if name != "new_obs"})


def episodes_around_points_of_their_own(make: Make) -> EpisodeBatch:
    """Five episodes of four steps, whose observations hardly change within them."""
    batch: EpisodeBatch = make.batch((4,) * 5)
    batch.obs[:] = 0.01 * batch.obs + np.repeat(np.linspace(-0.8, 0.8, 5, dtype=np.float32), 5)[:, None]
    return batch


@made({"reset-row": 4})
def first_rows_in_which_the_environment_was_reset(make: Make) -> Path:
    batch = episodes_around_points_of_their_own(make)
    batch.obs[5::5], batch.rewards[4::4] = batch.obs[4:-1:5], 0
    return make.rows(make.columns(batch))


@made({"reset-observation": 4})
def final_observations_of_the_next_reset(make: Make) -> Path:
    batch = episodes_around_points_of_their_own(make)
    batch.obs[4:-1:5] = batch.obs[5::5]
    return make.dataset(batch)


@made({"missing-rewards": 12})
def lines_without_rewards(make: Make) -> Path:
    return make.lines({name: values for name, values in make.columns().items() if name != "rewards"})


@made({"dones-disagree": 1})
def dones_that_say_something_else(make: Make) -> Path:
    columns = make.columns()
    dones = np.array(columns["terminateds"])
    dones[1] = True
    return make.lines({**columns, "dones": dones})


@made({"mixed-structures": 1})
def an_episode_with_an_output_more(make: Make) -> Path:
    batch = make.batch()
    more = replace(batch.select([2]), extra={"action_logp": np.zeros(5, np.float32)})
    return make.items([*make.packed(batch.select([0, 1])), *make.packed(more)])


@made({"mixed-action-scales": 1})
def datasets_of_two_action_scales(make: Make) -> list[Path]:
    other = make.batch(boxes=True, ids=("x0", "x1", "x2"))
    return [make.dataset(make.batch(boxes=True)), make.dataset(other, action_scale="normalized")]


@made({"mixed-meanings": 1})
def datasets_of_two_units(make: Make) -> list[Path]:
    one, two = (Meanings({"actions": (Element("heat", unit=unit),)}) for unit in ("W", "kW"))
    return [make.dataset(meanings=one), make.dataset(make.batch(ids=("x0", "x1", "x2")), meanings=two)]


@made({"meaning-assumed": 1})
def datasets_of_which_one_says_units(make: Make) -> list[Path]:
    said = Meanings({"actions": (Element("heat", unit="W"),)})
    return [make.dataset(meanings=said), make.dataset(make.batch(ids=("x0", "x1", "x2")))]


@made({"mixed-spaces": 1})
def an_episode_of_another_space(make: Make) -> Path:
    other = make.batch((5,), ids=("other",), observation_space=spaces.Box(-20, 20, (3,), np.float32))
    return make.items([*make.packed(), *make.packed(other)])


# ---- tables without ids ----

NO_IDS = {"action_scale": "env", "columns": {"obs": ["x"], "actions": "a", "rewards": "r", "t": "t", "terminateds": "end"}}


def without_ids(make: Make) -> Path:
    """A table that end flags alone divide, whose `t` falls in data row 2."""
    path: Path = make.path(".csv")
    path.write_text("t,x,a,r,end\n1,0.1,0,1,0\n2,0.2,1,2,0\n0,0.3,0,3,0\n3,0.4,1,4,1\n", encoding="utf-8")
    return path


@made({"t-falls-back": 1, "missing-final-observation": 1}, mapping=NO_IDS)
def a_table_without_ids_and_not_in_order(make: Make) -> Path:
    return without_ids(make)
