"""Items of a kind that was met before are read, and episodes of one kind written, as if each were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import BatchDecoder, decode_batch, encode, encode_batch, kinds
from offline_cli.episodes.codec.arrays import pack, unpack_raw
from offline_cli.episodes.codec.kinds import Kinds
from offline_cli.episodes.codec.plans import ItemPlan
from offline_cli.errors import BadData
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.testing import assert_same_batch

bounded = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def batch_of(lengths: Sequence[int], **changes: Any) -> EpisodeBatch:
    """Episodes of these lengths; their values differ."""
    count, steps = len(lengths), sum(lengths)
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "ids": tuple(f"{e:04}" for e in range(count)),
        "starts": np.cumsum([0, *lengths]),
        "obs": {"a": rng.normal(size=(steps + count, 3)).astype(np.float32), "b": rng.integers(0, 99, steps + count)},
        "actions": rng.integers(0, 2, steps),
        "rewards": rng.normal(size=steps),
        "terminated": np.ones(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
    }
    return EpisodeBatch(**{**fields, **changes})


def written(batch: EpisodeBatch) -> list[bytes]:
    return encode_batch(batch, where="test", tally=Tally())


@dataclass
class Read:
    """What came of some items."""

    batches: list[EpisodeBatch]
    refused: list[tuple[str, str, str, bytes]]
    assumed: dict[str, int]


def read(items: Sequence[Any]) -> Read:
    rejects, tally = Rejects(OnError.QUARANTINE), Tally()
    batches = list(decode_batch(items, where=lambda i: f"item {i}", rejects=rejects, tally=tally))
    return Read(batches, [(r.where, r.code, r.reason, r.raw) for r in rejects.kept], dict(tally.assumptions))


def read_alone(items: Sequence[Any]) -> Read:
    """As `read`, with no kind ever met."""
    with patch.object(Kinds, "read", lambda self, data: None):
        return read(items)


# ---- any items, many of them alike ----

texts = st.text(max_size=5) | st.sampled_from(("table:17", "é", "x" * 40, "y" * 300))
data = st.sampled_from(({}, {"seed": 3}, {"source_id": None}, {"a": "b", "c": "d"})) | st.builds(dict, source_id=texts)


@st.composite
def alike(draw: st.DrawFn) -> EpisodeBatch:
    """Up to 30 episodes of few lengths."""
    lengths = draw(st.lists(st.sampled_from((0, 1, 2, 15, 16)), min_size=1, max_size=30))
    count = len(lengths)

    def each(values: st.SearchStrategy[Any]) -> Any:
        found = draw(st.none() | st.lists(values, min_size=count, max_size=count))
        return None if found is None else tuple(found)

    names, clock, flags = st.none() | texts, each(st.floats(0, 1e9) | st.just(float("nan"))), each(st.booleans())
    t_started = each(st.sampled_from((0, 1, 200, 70_000)))
    return batch_of(
        lengths,
        ids=tuple(f"{draw(texts)}{e}" for e in range(count)),
        terminated=np.array(flags or [False] * count),
        t_started=None if t_started is None else np.array(t_started),
        agent_ids=each(names),
        multi_agent_ids=each(names),
        custom_data=each(data),
        clock=None if clock is None else np.array([clock, clock]).T.copy(),
        infos=each(st.none()) and [{"n": n} if n % 7 == 0 else {} for n in range(sum(lengths) + count)],
    )


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What happens to an item: a changed byte, a cut, bytes too many."""
    place, byte = draw(st.integers(0, 1 << 16)), draw(st.integers(0, 255))

    def changed(item: bytes) -> bytes:
        at = place % len(item)
        return item[:at] + bytes([byte]) + item[at + 1 :]

    return draw(st.sampled_from((changed, changed, lambda item: item[: place % len(item)], lambda item: item + b"\x80")))


@bounded
@given(alike(), st.lists(st.tuples(st.integers(0, 59), damage()), max_size=12))
def test_items_are_read_and_refused_as_if_no_kind_had_been_met(batch: EpisodeBatch, damages: list[Any]) -> None:
    items = written(batch) * 5
    for index, change in damages:
        items[-1 - index % len(items)] = change(items[-1 - index % len(items)] or b"?")
    got, wanted = read(items), read_alone(items)
    assert (got.refused, got.assumed) == (wanted.refused, wanted.assumed)
    assert len(got.batches) == len(wanted.batches)
    for mine, theirs in zip(got.batches, wanted.batches, strict=True):
        assert_same_batch(mine, theirs)


@bounded
@given(alike())
def test_episodes_of_one_kind_are_written_as_each_alone(batch: EpisodeBatch) -> None:
    assert written(batch) == [encode(episode, where="test") for episode in batch]


# ---- damaged items among many ----

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda item: item[:-9],
    "a byte too many": lambda item: item + b"\x00",
    "another key": lambda item: item.replace(b"is_truncated", b"is_trumpeted"),
    "an id that is no text": lambda item: item[:8] + b"\xff" + item[9:],
    "another length": lambda item: pack({**unpack_raw(item, where="test"), "t": 3}),
    "a flag that is none": lambda item: pack({**unpack_raw(item, where="test"), "is_truncated": 7}),
    "no bytes": lambda item: None,  # type: ignore[arg-type,return-value]
}


def test_damaged_items_among_many_alike_are_refused_by_name_and_the_others_read() -> None:
    batch = batch_of([20] * 200)
    items = written(batch)
    bad = dict(zip(range(10, 200, 25), DAMAGES.values(), strict=False))
    for index, change in bad.items():
        items[index] = change(items[index])
    got = read(items)
    assert len(bad) == len(DAMAGES)
    assert [where.split(",")[0] for where, _, _, _ in got.refused] == [f"item {index}" for index in bad]
    [again] = got.batches
    assert_same_batch(again, batch.select([e for e in range(200) if e not in bad]))
    assert got.refused == read_alone(items).refused


# ---- what is known ----


@pytest.fixture
def at_length(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The items that a plan had to read field by field."""
    seen: list[bytes] = []
    whole = ItemPlan._read

    def noting(plan: ItemPlan, item: bytes, fields: Any) -> Any:
        seen.append(item)
        return whole(plan, item, fields)

    monkeypatch.setattr(ItemPlan, "_read", noting)
    return seen


def decoded(items: list[bytes]) -> EpisodeBatch:
    [batch] = decode_batch(items, where=str, rejects=Rejects(), tally=Tally())
    return batch


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"custom_data": tuple({"source_id": f"{e:05}"} for e in range(60))},
        {"clock": np.arange(120.0).reshape(60, 2), "multi_agent_ids": tuple(f"all {e:05}" for e in range(60))},
        {"extra": {"action_logp": np.zeros(600, np.float32)}},
    ],
)
def test_three_items_of_each_length_are_read_field_by_field(changes: dict[str, Any], at_length: list[bytes]) -> None:
    batch = batch_of([4, 9, 17] * 20, **changes)
    items = written(batch)
    at_length.clear()
    assert_same_batch(decoded(items), batch)
    assert set(at_length) == set(items[:10])  # the first makes the plan


def test_items_with_infos_or_much_custom_data_are_read_field_by_field(at_length: list[bytes]) -> None:
    for changes in ({"infos": [{"n": n} for n in range(30)]}, {"custom_data": ({"seed": 3, "map": "b"},) * 10}):
        batch = batch_of([2] * 10, **changes)
        items = written(batch)
        at_length.clear()
        assert_same_batch(decoded(items), batch)
        assert set(at_length) == set(items)


def test_lengths_that_hardly_come_again_are_not_learned_and_when_others_do_not_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kinds, "PATIENCE", 5)
    for times, made in ((2, 0), (3, 6)):
        decoder = BatchDecoder(Rejects(), Tally())
        list(decoder.decode(written(batch_of([*range(50)] * times)), where=str))
        assert decoder.plans[0].kinds._made == made


def test_kinds_that_items_are_tried_for_in_vain_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "PATIENCE", 30)
    batch = batch_of([1] * 100, t_started=np.arange(1000, 1100))
    decoder = BatchDecoder(Rejects(), Tally())
    [again] = decoder.decode(written(batch), where=str)
    assert_same_batch(again, batch)
    assert not decoder.plans[0].kinds._by_size


def test_kinds_are_forgotten_when_they_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS_BYTES", 3000)
    batch = batch_of([*range(30)] * 5)
    decoder = BatchDecoder(Rejects(), Tally())
    [again] = decoder.decode(written(batch), where=str)
    assert_same_batch(again, batch)
    assert decoder.plans[0].kinds._bytes <= 3000


def test_large_items_are_no_kinds() -> None:
    batch = batch_of([4000] * 3)
    decoder = BatchDecoder(Rejects(), Tally())
    [again] = decoder.decode(written(batch), where=str)
    assert_same_batch(again, batch)
    assert not decoder.plans[0].kinds._bytes


def test_each_episode_has_its_own_custom_data() -> None:
    again = decoded(written(batch_of([2] * 9, custom_data=(*({},) * 8, {"source_id": "x"}))))
    assert again.custom_data is not None
    assert len(set(map(id, again.custom_data))) == 9


# ---- custom data and names that are written together ----


@pytest.mark.parametrize(
    "custom_data",
    [
        ({"source_id": "a"}, {"source_id": "b" * 300}, {"source_id": "é"}),
        ({"source_id": "a"}, {}, {"source_id": "b"}),
        ({"source_id": "a"}, {"file": "b"}, {"source_id": "c"}),
        ({"source_id": "a"}, {"source_id": 7}, {"source_id": "c"}),
        ({"source_id": "a"}, {"source_id": "line\nbreak"}, {"source_id": "\x00"}),
        ({7: "a"}, {7: "b"}, {7: "c"}),
        ({"nd": "a"}, {"nd": "b"}, {"nd": "c"}),
    ],
)
def test_custom_data_is_written_as_of_one_episode(custom_data: Any) -> None:
    batch, counts, wanted = batch_of([1, 2, 1], custom_data=custom_data), Tally(), Tally()
    items = encode_batch(batch, where="test", tally=counts)
    assert items == [encode(episode, where="test", tally=wanted) for episode in batch]
    assert counts == wanted


def test_a_text_that_utf8_cannot_hold_is_named_among_texts_that_it_can() -> None:
    custom_data = ({"source_id": "a"}, {"source_id": "\ud800"}, {"source_id": "c"})
    with pytest.raises(BadData, match="episode 0001, custom data, key 'source_id'"):
        written(batch_of([1, 2, 1], custom_data=custom_data))


@pytest.mark.parametrize(
    "ids", [("a", "b" * 31, "c" * 32), ("é" * 16, "b" * 255, "c"), ("a", "b" * 256, "c" * 70), ("", "b", "c")]
)
def test_ids_of_any_length_are_written_as_of_one_episode(ids: tuple[str, ...]) -> None:
    batch = batch_of([1, 2, 1], ids=ids, agent_ids=(None, "left", "right"), module_ids=("m", "m", "m"))
    assert written(batch) == [encode(episode, where="test") for episode in batch]
    assert decoded(written(batch)).ids == ids


def test_a_text_of_numpy_in_custom_data_is_read_as_by_itself() -> None:
    hello = {b"nd": False, b"type": "<U5", b"data": "hello".encode("utf-32-le")}
    items = []
    for item in written(batch_of([2] * 9, custom_data=({"source_id": "x"},) * 9)):
        state = msgpack.unpackb(item, strict_map_key=False)
        items.append(msgpack.packb({**state, "custom_data": {"k": hello}}))
    again = decoded(items)
    assert again.custom_data is not None
    assert [data["k"] for data in again.custom_data] == ["hello"] * 9
