"""`diff`: what differs between two sources, found by id, value by value."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from offline_cli.cli.app import app
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import DiffResult, diff
from offline_cli.episodes.batch import EpisodeBatch

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
Make = Callable[..., EpisodeBatch]
Written = Callable[..., Path]


@pytest.fixture
def full(make_batch: Make) -> EpisodeBatch:
    """A batch with everything that an episode can hold."""
    return make_batch(
        (3, 1, 5),
        observation_space=spaces.Dict({"p": OBSERVATIONS, "q": spaces.Tuple((spaces.Discrete(3), OBSERVATIONS))}),
        extra={"logp": np.linspace(-1, 0, 9), "nested": {"k": np.arange(9)}},
        infos=[{"n": i, "v": np.float32(0.1), "w": [1, 2]} if i % 2 else {} for i in range(12)],
        agent_ids=("a", None, "b"),
        module_ids=("m", None, None),
        custom_data=({"source_id": "x"}, {}, {"source_id": "z"}),
    )


def place_of(result: DiffResult) -> tuple[Any, ...]:
    first = result.first
    assert first is not None
    return tuple(first[name] for name in ("episode", "step", "column", "index", "a", "b"))


def at(tree: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        tree = tree[int(part) if isinstance(tree, tuple) else part]
    return tree


def changed(batch: EpisodeBatch, path: str, row: Any, value: Any) -> EpisodeBatch:
    """`batch` with another value at a place of one leaf."""
    trees = {"obs": batch.obs, "actions": batch.actions, "rewards": batch.rewards, **batch.extra}
    from offline_cli.trees import map_leaves

    copied = {name: map_leaves(np.copy, tree) for name, tree in trees.items()}
    name, _, rest = path.partition(".")
    at(copied[name], rest)[row] = value
    extra = {name: copied[name] for name in batch.extra}
    return replace(batch, obs=copied["obs"], actions=copied["actions"], rewards=copied["rewards"], extra=extra)


@pytest.mark.parametrize("other", ["columns"])
@pytest.mark.parametrize(
    ("path", "row", "value", "found"),
    [
        ("obs.p", (6, 2), 7.0, ("episode-2", 0, "obs.p", [2])),
        ("obs.q.0", 4, 2, ("episode-1", 0, "obs.q.0", None)),
        ("actions", 2, 2, ("episode-0", 2, "actions", None)),
        ("rewards", 8, np.nan, ("episode-2", 4, "rewards", None)),
        ("nested.k", 0, 9, ("episode-0", 0, "nested.k", None)),
    ],
)
def test_one_changed_value_is_found_with_its_place(
    written: Callable[..., Path], full: EpisodeBatch, path: str, row: Any, value: Any, found: Any, other: str
) -> None:
    full = changed(changed(full, "obs.q.0", slice(None), 1), "actions", slice(None), 1)
    a, b = written("a", full), written("b", changed(full, path, row, value), other)
    result = diff(a, b)
    episode, step, column, index, _, theirs = place_of(result)
    assert (episode, step, column, index) == found
    assert theirs == (str(value) if isinstance(value, float) and not np.isfinite(value) else value)
    assert (result.equal, result.changed, result.missing) == (False, 1, 0)
    assert place_of(diff(b, a))[:4] == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"terminated": np.array([True, True, True]), "truncated": np.array([False] * 3)}, "terminated"),
        ({"infos": [{"n": 1}] * 12}, "infos"),
        ({"agent_ids": ("a", "c", "b")}, "agent_id"),
        ({"module_ids": ("m", None, "n")}, "module_id"),
        ({"custom_data": ({"source_id": "x"}, {"source_id": "y"}, {"source_id": "z"})}, "custom_data"),
        ({"multi_agent_ids": ("u", None, None)}, "multi_agent_episode_id"),
        ({"clock": np.array([[1.0, 2.0]] * 3)}, "clock"),
    ],
)
def test_nothing_that_an_episode_holds_is_hidden(
    written: Callable[..., Path], full: EpisodeBatch, fields: dict[str, Any], found: str
) -> None:
    none = np.array([False] * 3)
    full = replace(full, terminated=none, truncated=~none)
    assert place_of(diff(written("a", full), written("b", replace(full, **fields))))[2] == found


def test_clocks_of_today_differ_by_a_second(written: Callable[..., Path], full: EpisodeBatch) -> None:
    today = np.array([[1.7e9, 1.7e9 + 5]] * 3)
    a, b = written("a", replace(full, clock=today)), written("b", replace(full, clock=today + 1))
    assert place_of(diff(a, b))[2] == "clock"


def test_the_other_row_format_is_a_note_and_no_difference(written: Callable[..., Path], full: EpisodeBatch) -> None:
    a, b = written("a", full), written("b", full, "columns", max_rows_per_file=3, compression="snappy")
    result = diff(a, b)
    assert (result.equal, result.first, result.facts) == (True, None, ())
    assert "A is in the format episodes, B in columns" in result.notes[0]
    result.check()


def test_a_dataset_equals_itself_and_the_recording_that_it_was_made_from(
    written: Callable[..., Path], full: EpisodeBatch, tmp_path: Path
) -> None:
    a = written("a", full)
    assert diff(a, a).equal
    convert(a, tmp_path / "b")
    assert diff(a, tmp_path / "b").equal
    foreign = str(a / "data" / "*.parquet")
    assert diff(foreign, foreign).equal
    assert [fact["column"] for fact in diff(foreign, a).facts] == ["environment"]


def test_nan_equals_nan_and_minus_zero_zero(written: Callable[..., Path], make_batch: Make) -> None:
    batch = changed(make_batch((3, 4)), "rewards", slice(0, 4), [np.nan, -0.0, 0.0, 1.0])
    other = changed(batch, "rewards", slice(1, 3), [0.0, -0.0])
    assert diff(written("a", batch), written("b", other)).equal


def test_missing_episodes_are_counted_on_both_sides_and_the_first_are_named(
    written: Callable[..., Path], make_batch: Make
) -> None:
    batch = make_batch((1,) * 40)
    a, b = written("a", batch.select(slice(0, 30))), written("b", batch.select(slice(15, 40)))
    result = diff(a, b)
    assert (result.missing, result.missing_in_a, result.missing_in_b, result.changed) == (25, 10, 15, 0)
    assert result.ids["missing_in_b"] == tuple(f"episode-{i}" for i in range(10))
    assert result.ids["missing_in_a"] == tuple(f"episode-{i}" for i in range(30, 40))
    assert place_of(result) == ("episode-0", None, None, None, "there", "missing")


def test_the_command_ends_with_7_and_one_object_where_anything_differs(written: Written, make_batch: Make) -> None:
    batch = make_batch((3, 4))
    a, b = written("a", batch), written("b", changed(batch, "rewards", 5, 9.0), "columns")
    done = CliRunner().invoke(app, ["diff", str(a), str(b), "--json", "--quiet"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"], told["equal"], told["changed"], told["missing"]) == (7, 7, False, 1, 0)
    assert told["first"]["episode"] == "episode-1"
    assert (told["first"]["step"], told["first"]["column"], told["first"]["b"]) == (2, "rewards", 9.0)
    shown = CliRunner().invoke(app, ["diff", str(a), str(b), "--quiet"])
    assert shown.exit_code == 7
    assert "episode-1" in shown.stdout
    same = CliRunner().invoke(app, ["diff", str(a), str(a), "--json", "--quiet"])
    assert (same.exit_code, json.loads(same.stdout)["first"]) == (0, None)
