"""The `columns` table: RLlib's names, one row per step, and the same batch back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, assume, given, settings

from offline_cli.datasets.row_format import Rows
from offline_cli.datasets.step_rows import StepRows
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.fit import conform
from offline_cli.errors import BadData, BadEpisode
from offline_cli.tally import Tally
from offline_cli.testing import assert_same_batch, episode_batches

Make = Callable[..., EpisodeBatch]


def table_of(batch: EpisodeBatch, *, tally: Tally | None = None) -> pa.Table:
    return StepRows(batch.observation_space, batch.action_space, tally or Tally()).table(batch, where="shard")


def batch_of(table: pa.Table, like: EpisodeBatch, **options: Any) -> EpisodeBatch:
    rows_as = StepRows(like.observation_space, like.action_space, Tally(), **options)
    rows = Rows(table, rows_as.starts(table["eps_id"]))
    (batch,) = rows_as.batches(rows, range(len(table)), where="shard")
    return batch


def storable(batch: EpisodeBatch) -> EpisodeBatch:
    """`batch` without what rows of steps have no place for."""
    batch = batch.select(np.flatnonzero(batch.lengths))
    return replace(batch, custom_data=None, clock=None, multi_agent_ids=None, infos=batch.infos and [*map(plain, batch.infos)])


def plain(value: Any) -> Any:
    """An info as JSON gives it back."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return [plain(part) for part in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(episode_batches())
def test_a_batch_written_and_read_again_is_equal_leaf_by_leaf(batch: EpisodeBatch) -> None:
    batch = storable(batch)
    assume(len(batch))
    assert_same_batch(batch_of(table_of(batch), batch), batch)


def test_the_columns_are_rllibs_in_their_order(make_batch: Make) -> None:
    table = table_of(make_batch(extra={"b": np.zeros(9), "a": {"y": np.zeros((9, 2, 2)), "x": np.zeros(9)}}))
    assert table.column_names == [
        *("eps_id", "agent_id", "module_id", "t", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds"),
        *("a", "b", "source_id", "final_obs_assumed", "infos", "reset_infos"),
    ]
    kinds = {field.name: field.type for field in table.schema}
    assert kinds["agent_id"] == kinds["module_id"] == kinds["infos"] == pa.string()
    assert (kinds["t"], kinds["rewards"], kinds["terminateds"]) == (pa.int64(), pa.float64(), pa.bool_())
    assert kinds["a"] == pa.struct([("x", pa.float64()), ("y", pa.fixed_shape_tensor(pa.float64(), (2, 2)))])


def test_infos_stand_on_the_step_that_led_to_them_and_the_resets_at_the_start(make_batch: Make) -> None:
    infos = [{"reset": 1}, {"step": 0}, {}, {}, {"step": np.float32(2.5)}]
    table = table_of(make_batch((2, 1), infos=infos))
    assert table["infos"].to_pylist() == ['{"step":0}', None, '{"step":2.5}']
    assert table["reset_infos"].to_pylist() == ['{"reset":1}', None, None]


def test_arrays_in_infos_become_lists_and_are_counted(make_batch: Make) -> None:
    tally = Tally()
    table = table_of(make_batch((1,), infos=[{}, {"a": np.arange(3), "nan": float("nan")}]), tally=tally)
    assert json.loads(table["infos"].to_pylist()[0])["a"] == [0, 1, 2]
    assert tally.assumptions == {"info-array-to-list": 1}


@pytest.mark.parametrize("value", [b"bytes", 1j, np.array([1j])])
def test_infos_that_json_has_no_word_for_are_refused_by_episode_and_step(make_batch: Make, value: Any) -> None:
    with pytest.raises(BadData) as caught:
        table_of(make_batch((1, 2), infos=[{}, {}, {}, {"k": value}, {}]))
    assert caught.value.where == "episode episode-1, observation 1"


@pytest.mark.parametrize("name", ["obs", "t", "reset_infos"])
def test_an_extra_output_named_like_a_column_is_refused(make_batch: Make, name: str) -> None:
    with pytest.raises(BadEpisode, match=repr(name)):
        table_of(make_batch((2,), extra={name: np.zeros(2)}))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, np.float32),
        (1.5, np.int64),
        (-1, np.uint64),
        (300, np.uint8),
        (2**53 + 1, np.float64),
        (np.nan, np.int64),
        (1e300, np.float32),
    ],
)
def test_a_value_that_the_space_cannot_hold_is_refused_by_column_episode_and_step(
    make_batch: Make, value: Any, dtype: Any
) -> None:
    space = spaces.Box(0, 9, (), dtype)
    batch = replace(make_batch((2, 2)), obs=np.array([0, 0, 0, 0, value, 0]), observation_space=space)
    with pytest.raises(BadEpisode, match="'obs'") as caught:
        conform(batch, space, batch.action_space)
    assert caught.value.where == "episode episode-1, step 1"


def damaged(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, table.schema.field(name), pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("t", [0, 2, 0]),
        ("t", [1, 0, 0]),
        ("terminateds", [True, True, True]),
        ("rewards", [1.0, None, 1.0]),
        ("eps_id", ["a", None, "b"]),
        ("obs", [None, [0.0] * 4, [0.0] * 4]),
        ("infos", ["{}", "[1]", "{}"]),
        ("infos", ["{}", "{", "{}"]),
    ],
)
def test_rows_that_make_no_episodes_are_refused(make_batch: Make, name: str, values: list[Any]) -> None:
    batch = make_batch((2, 1), infos=[{"a": 1}] * 5)
    with pytest.raises(BadData, match=rf"\b{name}\b") as caught:
        batch_of(damaged(table_of(batch), name, values), batch)
    assert caught.value.where.startswith("shard")
