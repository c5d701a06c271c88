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

from offline_cli.episodes.codec import decode, decode_batch
from offline_cli.errors import BadData, BadEpisode, UnsafeData
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


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 0


POINTERS = bytes(24)
UNSAFE: dict[str, bytes] = {
    "object dtype with an innocent kind": observed(type="|O", kind=b"", data=POINTERS),
    "object dtype among steps": stepped(type="|O", data=bytes(8)),
    "object dtype as a scalar": observed(nd=False, type="|O", data=bytes(8)),
    "structured dtype with an object": observed(type=[["a", "O"]], shape=[3], data=POINTERS),
    "comma dtype with an object": observed(type="f8,O", shape=[1], data=bytes(16)),
    "datetime dtype": observed(type="<M8[s]", shape=[3], data=bytes(24)),
    "kind O over a number dtype": observed(kind=b"O"),
    "zero-width strings": observed(type="<U0", shape=[1 << 40], data=b""),
    "object dtype in custom data": packed(custom_data={"a": node(type="|O", data=POINTERS)}),
    "extension type": in_custom_data(msgpack.packb(msgpack.ExtType(5, b"123"))),
    "a list of 2^32-1 values": in_custom_data(b"\xdd\xff\xff\xff\xff"),
    "lists nested 3000 deep": nested(3000),
    "two million empty maps": in_custom_data(b"\xdd" + struct.pack(">I", 2_200_000) + b"\x80" * 2_200_000),
    "maps of ten numbers that take far more memory than bytes": in_custom_data(
        b"\xdd" + struct.pack(">I", 240_000) + (b"\x8a" + bytes(key for at in range(10) for key in (at, 0))) * 240_000
    ),
    "more numbers as keys than a map may have": packed(custom_data={"x": dict.fromkeys(range(70_000))}),
    "a space bound of objects": boxed(npy("(3,)", dtype="'|O'", data=POINTERS)),
    "a space bound that promises a terabyte": boxed(npy("(1000000000000,)")),
    "a space bound that is a zip archive": boxed(base64.b64encode(zlib.compress(b"PK\x05\x06" + bytes(18))).decode()),
    "a space with a deep key that no space has": packed(
        _action_space={"space": "discrete", "n": 2, "more": [deep(300), deep(900)]}
    ),
}

MALFORMED: dict[str, bytes] = {
    "cut off": packed()[:-40],
    "steps that are missing": packed(observations=buffer([None, None, None], finalized=True)),
    "nothing at all": b"",
    "a list": msgpack.packb([1, 2]),
    "trailing bytes": packed() + b"\x00",
    "a reserved code": in_custom_data(b"\xc1"),
    "one key twice": twice("observations"),
    "without observations": without("observations"),
    "id that is not UTF-8": packed().replace(b"\xa1e", b"\xa1\xff", 1),
    "flag that is text": packed(is_terminated="yes"),
    "t before t_started": packed(t_started=5),
    "t of another length": packed(t=9),
    "t beyond all clocks": packed(t=1 << 62, t_started=(1 << 62) - 2),
    "lookback beyond the data": packed(observations=buffer(node(), lookback=9)),
    "too few actions": packed(actions=buffer(node(shape=[1], data=ROW[:1].tobytes()))),
    "leaves of two lengths": packed(observations=buffer({"a": node(), "b": node(shape=[1], data=bytes(4))})),
    "observations of rank 0": observed(shape=[], data=bytes(4)),
    "negative shape": observed(shape=[-3]),
    "shape of a float": observed(shape=[3.0]),
    "shape of a bool": observed(shape=[3, True]),
    "shape whose product overflows to its size": observed(shape=[1 << 62, 4, 3]),
    "shape of a hundred axes": observed(shape=[1] * 100, data=bytes(4)),
    "shape larger than its bytes": observed(shape=[4]),
    "bytes more than the shape": observed(data=bytes(16)),
    "empty axis beside a huge one": observed(shape=[0, 1 << 62], data=b""),
    "width that numpy does not know": observed(type="<f3", shape=[4]),
    "characters out of range": observed(type="<U1", data=b"\xff" * 12),
    "a flag of numpy's that is 2": packed(is_terminated={b"nd": False, b"type": "|b1", b"data": b"\x02"}),
    "an agent that is a flag": packed(agent_id=True),
    "rewards of rank 2": packed(rewards=buffer(node(shape=[2, 1], data=ROW[:2].tobytes()))),
    "rewards that are text": packed(rewards=buffer(node(type="<U1", shape=[2], data="ab".encode("utf-32-le")))),
    "infos of another number": packed(infos=buffer([{}, {}], finalized=False)),
    "a complex number that is no text": packed(custom_data={"x": {b"complex": True, b"data": 5}}),
    "a complex number of a thousand letters": packed(custom_data={"x": {b"complex": True, b"data": b"1" * 1000}}),
    "a space that is a number": packed(_observation_space=7),
    "a space of values larger than memory": packed(_action_space={"space": "multi-binary", "n": [1 << 40, 1 << 40]}),
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


@pytest.mark.parametrize("read", READERS[1:])
@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}], ids=["lists", "dicts"])
@pytest.mark.parametrize("leaf", [node(), 1.0], ids=["array", "steps"])
def test_observations_nested_a_hundred_deep_are_refused(
    read: Callable[[bytes], object], wrap: Callable[[Any], Any], leaf: Any
) -> None:
    value = leaf
    for _ in range(100):
        value = wrap(value)
    is_array = isinstance(leaf, dict)
    with pytest.raises(BadEpisode):
        read(packed(observations=buffer(value if is_array else [value] * 3, finalized=is_array)))


@pytest.mark.parametrize("read", READERS)
def test_a_pickle_in_an_array_is_refused_unread(read: Callable[[bytes], object], tmp_path: Path) -> None:
    proof = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (proof,)

    with pytest.raises(UnsafeData):
        read(observed(type="|O", kind=b"", data=pickle.dumps(Payload())))
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


def test_a_flipped_byte_is_an_error_of_ours_or_another_value_never_a_crash() -> None:
    for flipped in range(0, 400, 13):
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
