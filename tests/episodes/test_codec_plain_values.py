"""What happens to infos and custom data on their way into bytes."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode, encode, encode_batch
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.errors import BadData
from offline_cli.tally import Tally

CHANGED: dict[str, tuple[dict[Any, Any], dict[str, Any], dict[str, int]]] = {  # given, written, counted
    "int keys": ({1: "a", 2: "b"}, {"1": "a", "2": "b"}, {"non-string-key-to-text": 2}),
    "bytes keys": ({b"nd": True}, {"nd": True}, {"non-string-key-to-text": 1}),
    "sets": ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}, {"set-to-list": 1}),
    "tuples": ({"a": (1, (2, 3))}, {"a": [1, [2, 3]]}, {"tuple-to-list": 2}),
    "times": (
        {"a": datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.UTC)},
        {"a": "2024-01-02T03:04:00+00:00"},
        {"datetime-to-text": 1},
    ),
    "arrays of dates": ({"a": np.array(["2024-01-02"], "M8[D]")}, {"a": ["2024-01-02"]}, {"datetime-to-text": 1}),
}

REFUSED: dict[str, Any] = {
    "an object": object(),
    "an object array": np.array([object()]),
    "a large integer": 1 << 64,
    "text with half a character": "\ud800",
    "two keys with one text": {1: "a", "1": "b"},
}


def plain(values: dict[Any, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    tally = Tally()
    return plain_mapping(values, tally=tally, where="here"), dict(tally.assumptions)


@pytest.mark.parametrize("case", CHANGED)
def test_a_value_is_made_plain_and_counted(case: str) -> None:
    given, written, counted = CHANGED[case]
    assert plain(given) == (written, counted)


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_no_other_program_could_read_is_refused_with_its_key(case: str) -> None:
    with pytest.raises(BadData) as caught:
        plain({"outer": {"inner": REFUSED[case]}})
    assert caught.value.where.startswith("here, key 'outer.inner")
    assert caught.value.exit_code == 3


def test_a_value_that_holds_itself_is_refused() -> None:
    circle: dict[str, Any] = {}
    circle["me"] = circle
    with pytest.raises(BadData):
        plain(circle)


def batch_with(infos: list[dict[Any, Any]], **changes: Any) -> EpisodeBatch:
    """One episode of two steps that began at t = 5."""
    fields: dict[str, Any] = {
        "ids": ("ride",),
        "starts": np.array([0, 2]),
        "obs": np.zeros((3, 2)),
        "actions": np.zeros(2, np.int64),
        "rewards": np.zeros(2),
        "terminated": np.array([True]),
        "truncated": np.array([False]),
        "t_started": np.array([5]),
        "infos": infos,
    }
    return EpisodeBatch(**{**fields, **changes})


def test_the_error_for_an_info_names_episode_step_and_key() -> None:
    batch = batch_with([{}, {"a": 1}, {"where": object()}])
    with pytest.raises(BadData) as many:
        encode_batch(batch, where="part-0", tally=Tally())
    with pytest.raises(BadData) as one:
        encode(batch[0], where="part-0")
    assert many.value.where == one.value.where == "part-0, episode ride, infos at t=7, key 'where'"


def test_timesteps_of_errors_count_from_before_the_lookback_buffer() -> None:
    episode = batch_with([{}, {}, {}], terminated=np.array([False]))[0].cut(len_lookback_buffer=2)
    episode.infos.data[0] = {"where": object()}  # at the start of the buffer, two steps before t = 7
    with pytest.raises(BadData) as caught:
        encode(episode, where="part-0")
    assert caught.value.where == "part-0, episode ride, infos at t=5, key 'where'"


def test_changes_are_counted_once_however_an_episode_is_written() -> None:
    batch = batch_with([{1: (2,)}, {}, {}], custom_data=({"tags": {"x"}},))
    counts = []
    for write in (lambda tally: encode(batch[0], tally=tally), lambda tally: encode_batch(batch, where="x", tally=tally)):
        tally = Tally()
        write(tally)
        counts.append(dict(tally.assumptions))
    assert counts == [{"non-string-key-to-text": 1, "tuple-to-list": 1, "set-to-list": 1}] * 2


def test_arrays_and_numpy_scalars_in_infos_keep_their_type() -> None:
    infos = [{"a": np.float32(0.5), "b": np.arange(3, dtype=np.int16), "c": np.True_}, {}, {}]
    again = decode(encode(batch_with(infos)[0]), where="test").get_infos(0)
    assert [type(again[key]) for key in "abc"] == [np.float32, np.ndarray, np.bool_]
    assert again["b"].dtype == np.int16
