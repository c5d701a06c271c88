"""Bytes made to harm: each trick is refused by name, naming its place, with nothing executed and memory bounded."""

from __future__ import annotations

import base64
import pickle
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from offline_cli.episodes.codec import arrays, decode, decode_batch
from offline_cli.errors import BadData, BadEpisode, UnsafeData, UnsupportedSpace
from offline_cli.tally import OnError, Rejects, Tally

PLACE = "part-0.parquet row 3"
ROW = np.arange(3, dtype=np.float32)


def node(**changes: Any) -> dict[bytes, Any]:
    """Three float32 as msgpack-numpy writes them, with changes; a key set to `...` is left out."""
    plain = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [3], b"data": ROW.tobytes()}
    changed = {**plain, **{key.encode(): value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not ...}


def buffer(data: Any, *, lookback: Any = 0, finalized: bool = True) -> dict[str, Any]:
    return {"data": data, "lookback": lookback, "finalized": finalized, "space": None}


def state(**changes: Any) -> dict[Any, Any]:
    """Two steps as we write them, with changes."""
    return {
        "id_": "e",
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(node()),
        "actions": buffer(node(shape=[2], data=ROW[:2].tobytes())),
        "rewards": buffer(node(shape=[2], data=ROW[:2].tobytes())),
        "infos": buffer([{}, {}, {}], finalized=False),
        "extra_model_outputs": None,
        "is_terminated": True,
        "is_truncated": False,
        "t_started": 0,
        "t": 2,
        "_observation_space": None,
        "_action_space": None,
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
        **changes,
    }


def packed(**changes: Any) -> bytes:
    return msgpack.packb(state(**changes), strict_types=False)


def observed(**changes: Any) -> bytes:
    """An episode whose observations are a node with these changes."""
    return packed(observations=buffer(node(**changes)))


def stepped(**changes: Any) -> bytes:
    """An episode with a list of observations, the last a node with these changes."""
    scalar = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [], b"data": ROW[:1].tobytes()}
    changed = {**scalar, **{key.encode(): value for key, value in changes.items()}}
    return packed(observations=buffer([scalar, scalar, changed], finalized=False))


def without(*keys: str) -> bytes:
    return msgpack.packb({key: value for key, value in state().items() if key not in keys})


def twice(key: str) -> bytes:
    """The state with one key in it two times."""
    pairs = [*state().items(), (key, state()[key])]
    return msgpack.Packer().pack_map_pairs(pairs)


def nested(depth: int) -> bytes:
    """A list in a list in a list, as custom data."""
    return packed(custom_data={"x": 1}).replace(msgpack.packb({"x": 1}), b"\x81\xa1x" + b"\x91" * depth + b"\xc0")


def in_custom_data(value: bytes) -> bytes:
    return packed(custom_data={"x": 1}).replace(msgpack.packb({"x": 1}), b"\x81\xa1x" + value)


def npy(shape: str, *, dtype: str = "'<f4'", data: bytes = b"") -> str:
    """A .npy file that says this of itself, as RLlib packs bounds."""
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return base64.b64encode(zlib.compress(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)).decode()


def boxed(bound: str, **more: Any) -> bytes:
    """An episode whose observation space has this text for a bound."""
    return packed(_observation_space={"space": "box", "low": bound, "high": bound, "shape": [3], "dtype": "<f4", **more})


def many_boxes(count: int) -> bytes:
    bomb = npy(f"({60 << 20},)", dtype="'|u1'", data=bytes(60 << 20))
    box = {"space": "box", "low": bomb, "high": bomb, "shape": [60 << 20], "dtype": "|u1"}
    return packed(_observation_space={"space": "dict", "spaces": {f"k{i}": box for i in range(count)}})


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 0


POINTERS = bytes(24)
UNSAFE: dict[str, bytes] = {
    "object dtype with an innocent kind": observed(type="|O", kind=b"", data=POINTERS),
    "object dtype without a kind": observed(type="|O", kind=..., data=POINTERS),
    "object dtype as bytes": observed(type=b"|O", data=POINTERS),
    "object dtype by its short name": observed(type="O", data=POINTERS),
    "object dtype among steps": stepped(type="|O", data=bytes(8)),
    "object dtype as a scalar": observed(nd=False, type="|O", data=bytes(8)),
    "structured dtype with an object": observed(type=[["a", "O"]], shape=[3], data=POINTERS),
    "structured dtype of kind V": observed(type=[["a", "<f4"]], kind=b"V"),
    "comma dtype with an object": observed(type="f8,O", shape=[1], data=bytes(16)),
    "comma dtype of numbers": observed(type="<f2,<f2"),
    "subarray dtype": observed(type="(2,)<f4", shape=[3], data=bytes(24)),
    "void dtype": observed(type="|V4"),
    "datetime dtype": observed(type="<M8[s]", shape=[3], data=bytes(24)),
    "timedelta dtype": observed(type="<m8[s]", shape=[3], data=bytes(24)),
    "kind O over a number dtype": observed(kind=b"O"),
    "kind O as text": observed(kind="O"),
    "dtype as a dict": observed(type={"names": ["a"], "formats": ["O"]}),
    "zero-width strings": observed(type="<U0", shape=[1 << 40], data=b""),
    "object dtype in an info": packed(infos=buffer([{"a": node(type="|O", data=POINTERS)}, {}, {}], finalized=False)),
    "object dtype in custom data": packed(custom_data={"a": node(type="|O", data=POINTERS)}),
    "object dtype in an extra output": packed(extra_model_outputs={"x": buffer(node(type="|O", data=POINTERS))}),
    "extension type": in_custom_data(msgpack.packb(msgpack.ExtType(5, b"123"))),
    "a list of 2^32-1 values": in_custom_data(b"\xdd\xff\xff\xff\xff"),
    "a map of 2^32-1 pairs": in_custom_data(b"\xdf\xff\xff\xff\xff"),
    "lists nested 3000 deep": nested(3000),
    "more numbers as keys than a map may have": packed(custom_data={"x": dict.fromkeys(range(70_000))}),
    "a space bound of objects": boxed(npy("(3,)", dtype="'|O'", data=POINTERS)),
    "a space bound of records": boxed(npy("(3,)", dtype="[('a', '<f4')]", data=bytes(12))),
    "a space bound that promises a terabyte": boxed(npy("(1000000000000,)")),
    "a space bound of a negative size": boxed(npy("(-3,)", data=bytes(12))),
    "a space bound whose header is a riddle": boxed(npy("(3," + "(" * 200, data=bytes(12))),
    "a space bound that is a zip archive": boxed(base64.b64encode(zlib.compress(b"PK\x05\x06" + bytes(18))).decode()),
    "a space bound that is no base64": boxed("!"),
    "space bounds that are small by themselves": many_boxes(2),
    "a space with a deep key that no space has": packed(
        _action_space={"space": "discrete", "n": 2, "more": [deep(300), deep(900)]}
    ),
}

MALFORMED: dict[str, bytes] = {
    "nothing at all": b"",
    "a list": msgpack.packb([1, 2]),
    "a number": msgpack.packb(7),
    "an array": msgpack.packb(node()),
    "trailing bytes": packed() + b"\x00",
    "two episodes in one": packed() * 2,
    "a reserved code": in_custom_data(b"\xc1"),
    "one key twice": twice("observations"),
    "one key of an array twice": in_custom_data(b"\x82\xc4\x02nd\xc3\xc4\x02nd\xc2"),
    "a list as a key": in_custom_data(b"\x81\x90\x01"),
    "without observations": without("observations"),
    "without id and flags": without("id_", "is_terminated"),
    "without infos": without("infos"),
    "id that is NaN": packed(id_=float("nan")),
    "id that is None": packed(id_=None),
    "id that is a list": packed(id_=["e"]),
    "id that is not UTF-8": packed().replace(b"\xa1e", b"\xa1\xff", 1),
    "flag that is text": packed(is_terminated="yes"),
    "flag that is None": packed(is_truncated=None),
    "t before t_started": packed(t_started=5),
    "t of another length": packed(t=9),
    "t that is negative": packed(t=-1),
    "t beyond all clocks": packed(t=1 << 62, t_started=(1 << 62) - 2),
    "t that is a fraction": packed(t=2.5),
    "start time that is text": packed(_start_time="noon"),
    "buffer that is a list": packed(observations=[1, 2, 3]),
    "buffer without data": packed(actions={"lookback": 0, "finalized": True}),
    "lookback beyond the data": packed(observations=buffer(node(), lookback=9)),
    "lookback that is negative": packed(observations=buffer(node(), lookback=-1)),
    "lookback of observations alone": packed(observations=buffer(node(), lookback=1)),
    "too few actions": packed(actions=buffer(node(shape=[1], data=ROW[:1].tobytes()))),
    "too many rewards": packed(rewards=buffer(node())),
    "too few infos": packed(infos=buffer([{}, {}], finalized=False)),
    "infos that are numbers": packed(infos=buffer([1, 2, 3], finalized=False)),
    "too many of an extra output": packed(extra_model_outputs={"x": buffer(node())}),
    "extra outputs that are a list": packed(extra_model_outputs=[1]),
    "custom data that is a list": packed(custom_data=[1]),
    "leaves of two lengths": packed(observations=buffer({"a": node(), "b": node(shape=[1], data=bytes(4))})),
    "observations of rank 0": observed(shape=[], data=bytes(4)),
    "negative shape": observed(shape=[-3]),
    "shape with two negatives": observed(shape=[-1, -3]),
    "shape whose product overflows to its size": observed(shape=[1 << 62, 4, 3]),
    "shape with a fraction": observed(shape=[3.0]),
    "shape with a bool": observed(shape=[True, 3]),
    "shape that is a number": observed(shape=3),
    "shape that is missing": observed(shape=...),
    "shape of a hundred axes": observed(shape=[1] * 100, data=bytes(4)),
    "shape larger than its bytes": observed(shape=[4]),
    "bytes more than the shape": observed(data=bytes(16)),
    "bytes that are missing": observed(data=...),
    "bytes that are text": observed(data="abcdefghijkl"),
    "empty axis beside a huge one": observed(shape=[0, 1 << 62], data=b""),
    "nd that is neither true nor false": observed(nd=1),
    "width that numpy does not know": observed(type="<f3", shape=[4]),
    "bool that is neither 0 nor 1": observed(type="|b1", data=b"\x00\x01\x02"),
    "characters out of range": observed(type="<U1", data=b"\xff" * 12),
    "a complex number that is none": in_custom_data(msgpack.packb({b"complex": True, b"data": "1+"})),
    "a space that is a number": packed(_observation_space=7),
    "a space without bounds": packed(_observation_space={"space": "box"}),
    "a space whose keys are numbers": packed(_action_space={"space": "dict", "spaces": {1: {"space": "discrete", "n": 2}}}),
    "a space of values larger than memory": packed(_action_space={"space": "multi-binary", "n": [1 << 40, 1 << 40]}),
    "start time that is complex": packed(_start_time={b"nd": False, b"type": "<c8", b"data": bytes(8)}),
}
RAGGED: dict[str, bytes] = {  # a single episode keeps its steps as they are until it is numpy'ized
    "steps of two shapes": stepped(shape=[1]),
    "steps of numbers and text": stepped(type="<U1", data="x".encode("utf-32-le")),
    "steps that are missing": packed(observations=buffer([None, None, None], finalized=False)),
    "rewards that are text": packed(rewards=buffer(node(type="<U1", shape=[2], data="xy".encode("utf-32-le")))),
    "rewards that are vectors": packed(rewards=buffer(node(shape=[2, 1], data=bytes(8)))),
}


def decode_one(data: bytes) -> object:
    return decode(data, where=PLACE)


def decode_alone(data: bytes) -> object:
    return list(decode_batch([data], where=lambda _: PLACE, rejects=Rejects(), tally=Tally()))


def decode_after_good_ones(data: bytes) -> object:
    good = packed()
    place = lambda i: PLACE if i == 2 else f"item {i}"  # noqa: E731
    return list(decode_batch([good, good, data], where=place, rejects=Rejects(), tally=Tally()))


READERS = (decode_one, decode_alone, decode_after_good_ones)
EVERY_READER = pytest.mark.parametrize("read", READERS)


def test_the_episode_that_every_trick_starts_from_is_good() -> None:
    assert len(decode(packed(), where=PLACE)) == 2


@pytest.mark.parametrize("trick", UNSAFE)
def test_bytes_that_would_build_objects_or_bombs_are_unsafe(trick: str) -> None:
    for read in READERS:
        with pytest.raises(UnsafeData) as caught:
            read(UNSAFE[trick])
        assert PLACE in caught.value.where


@pytest.mark.parametrize("trick", MALFORMED)
def test_bytes_that_are_no_episode_are_refused(trick: str) -> None:
    for read in READERS:
        with pytest.raises(BadEpisode) as caught:
            read(MALFORMED[trick])
        assert PLACE in caught.value.where


@pytest.mark.parametrize("read", [decode_alone, decode_after_good_ones])
@pytest.mark.parametrize("trick", RAGGED)
def test_steps_that_cannot_be_rows_of_one_array_are_refused(trick: str, read: Callable[[bytes], object]) -> None:
    with pytest.raises(BadEpisode) as caught:
        read(RAGGED[trick])
    assert f"{PLACE}, episode e" in caught.value.where


@EVERY_READER
def test_an_episode_cut_anywhere_is_refused(read: Callable[[bytes], object]) -> None:
    data = packed()
    for tenth in range(10):
        with pytest.raises(BadEpisode, match="cut off") as caught:
            read(data[: len(data) * tenth // 10])
        assert PLACE in caught.value.where


@EVERY_READER
@pytest.mark.parametrize("kind", [b"O", "O", b""])
def test_a_pickle_in_an_array_is_refused_unread(kind: Any, read: Callable[[bytes], object], tmp_path: Path) -> None:
    proof = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (proof,)

    with pytest.raises(UnsafeData):
        read(observed(type="|O", kind=kind, data=pickle.dumps(Payload())))
    assert not proof.exists()
    pickle.loads(pickle.dumps(Payload()))
    assert proof.exists()  # the payload does work where it is let in


def test_bad_items_are_set_aside_in_their_place_and_good_ones_read() -> None:
    rejects = Rejects(OnError.QUARANTINE)
    items = [packed(id_="a"), UNSAFE["object dtype with an innocent kind"], packed(id_="b"), packed()[:-9], packed(id_="c")]
    batches = list(decode_batch(items, where=lambda i: f"row {i}", rejects=rejects, tally=Tally()))
    assert [name for batch in batches for name in batch.ids] == ["a", "b", "c"]
    assert [(kept.where.split(",")[0], kept.code) for kept in rejects.kept] == [
        ("row 1", "unsafe-data"),
        ("row 3", "bad-episode"),
    ]
    assert rejects.kept[1].raw == packed()[:-9]


@pytest.mark.parametrize("on_error", [OnError.SKIP, OnError.QUARANTINE])
def test_an_episode_whose_space_nobody_can_store_is_a_bad_row(on_error: OnError) -> None:
    rejects = Rejects(on_error)
    items = [packed(id_="a"), packed(_observation_space={"space": "text"}), packed(id_="b")]
    batches = list(decode_batch(items, where=lambda i: f"row {i}", rejects=rejects, tally=Tally()))
    assert [name for batch in batches for name in batch.ids] == ["a", "b"]
    assert rejects.count == 1
    assert [kept.code for kept in rejects.kept] == ["unsupported-space"] * (on_error is OnError.QUARANTINE)


@EVERY_READER
def test_a_space_that_nobody_can_store_is_named_where_bad_rows_are_errors(read: Callable[[bytes], object]) -> None:
    with pytest.raises(UnsupportedSpace, match="'text' spaces") as caught:
        read(packed(_observation_space={"space": "text"}))
    assert PLACE in caught.value.where


@pytest.mark.parametrize("value", [b"\x80", b"\x90"], ids=["maps", "lists"])
def test_more_maps_and_lists_than_memory_is_for_are_refused(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = in_custom_data(b"\xdc\x03\xe8" + value * 1000)
    decode_one(data)
    monkeypatch.setattr(arrays, "MAX_CONTAINERS", 1000)
    for read in (decode_one, decode_alone):
        with pytest.raises(UnsafeData, match="more than 1000 maps and lists"):
            read(data)


def test_text_keys_may_be_as_many_as_there_are() -> None:
    assert len(decode(packed(custom_data={"x": {str(i): i for i in range(70_000)}}), where="test").custom_data["x"]) == 70_000


def test_an_item_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(BadEpisode, match="NoneType"):
        decode_alone(None)  # type: ignore[arg-type]


def test_a_flipped_byte_is_an_error_of_ours_or_another_value_never_a_crash() -> None:
    for flipped in range(0, 400, 7):
        data = bytearray(packed())
        data[flipped % len(data)] ^= 0xFF
        errors = [error_of(read, bytes(data)) for read in (decode_one, decode_after_good_ones)]
        assert all(PLACE in error.where for error in errors if error is not None), flipped


def error_of(read: Callable[[bytes], object], data: bytes) -> BadData | None:
    try:
        read(data)
    except BadData as err:
        return err
    return None


BOMB = """
import resource, struct, sys
from offline_cli.episodes.codec import decode
from offline_cli.errors import BadData
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = 4 << 20
data = (b"\\xdd" + struct.pack(">I", size // 2)) * 400
data += bytes(size - len(data))
try:
    decode(data, where="bomb")
except BadData as err:
    print(err.code, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kibibytes on Linux only")
def test_lists_that_promise_more_than_there_is_take_no_memory_in_advance(measured: Callable[..., tuple[str, int]]) -> None:
    code, mebibytes = measured([sys.executable, "-c", BOMB])[0].split()
    assert code in ("bad-episode", "unsafe-data")
    assert int(mebibytes) < 400  # 400 lists of two million values would take 6 GiB
