"""Arrays in msgpack-numpy's encoding, both ways, and the fast lanes that read many of them."""

from __future__ import annotations

from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import batch_decoder, decode_batch, encode_batch
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.episodes.codec.strided_lists import learn_template
from offline_cli.tally import Rejects, Tally

DTYPES = ["?", "i1", "u1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8", "<f8", "<c8", "<c16", "S3", "<U3", ">U2"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0), (2, 3), (1, 2, 3)]


def array_of(dtype: str, shape: tuple[int, ...]) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_is_written_as_msgpack_numpy_writes_it(dtype: str) -> None:
    for shape in SHAPES:
        array = array_of(dtype, shape)
        node = {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": shape, b"data": array.tobytes()}
        assert pack(array) == msgpack.packb(node)
        np.testing.assert_array_equal(msgpack_numpy.unpackb(pack(array)), array, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_that_was_written_is_read_as_it_was(dtype: str) -> None:
    for shape in SHAPES:
        array = array_of(dtype, shape)
        again = unpack(pack(array), where="test")
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array, strict=True)


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int8(-3), np.uint64(2**63), np.True_, np.float16(2), np.complex64(1j)])
def test_a_numpy_scalar_keeps_value_and_type(scalar: Any) -> None:
    packed = msgpack.packb(scalar, default=msgpack_numpy.encode)
    assert pack(scalar) == packed
    again = unpack(packed, where="test")
    assert (again, type(again)) == (scalar, type(scalar))


def test_a_complex_number_is_read_as_one() -> None:
    assert unpack(msgpack.packb(1 - 2j, default=msgpack_numpy.encode), where="test") == 1 - 2j


def test_arrays_that_are_not_contiguous_are_written_in_order() -> None:
    array = np.arange(12).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(unpack(pack(array), where="test"), array)


def test_a_map_with_the_text_key_nd_is_a_map() -> None:
    assert unpack(pack({"nd": True, "type": "|O"}), where="test") == {"nd": True, "type": "|O"}


def test_arrays_of_older_writers_without_a_kind_are_read() -> None:
    node = {b"nd": True, b"type": b"<i4", b"shape": (2,), b"data": bytes(8)}
    assert unpack(msgpack.packb(node), where="test").tolist() == [0, 0]


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(1, [("a", "f4")]), np.zeros(1, "M8[s]")])
def test_arrays_that_are_no_numbers_cannot_be_packed(array: Any) -> None:
    with pytest.raises(TypeError, match="only numbers, bools and strings"):
        pack(array)


# ---- strided lists ----

STEPS: dict[str, list[Any]] = {
    "arrays": [np.arange(4, dtype=np.float32) + i for i in range(5)],
    "scalars": [np.int32(i) for i in range(5)],
    "bools": [np.bool_(i % 2) for i in range(5)],
    "floats": [0.5 * i for i in range(5)],
    "small ints": [i - 3 for i in range(5)],
    "larger ints": [200 + i for i in range(5)],
    "negative ints": [-(2**20) - i for i in range(5)],
    "maps": [{"h": np.full((1, 2), i, np.float32), "c": float(i)} for i in range(5)],
    "tuples": [(np.float64(i) + np.zeros(1), np.int8(i)) for i in range(5)],
}


def leaves_of(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    return [value] if parts is None else [leaf for part in parts for leaf in leaves_of(part)]


@pytest.mark.parametrize("kind", STEPS)
def test_steps_of_one_layout_are_read_as_a_table(kind: str) -> None:
    steps = STEPS[kind]
    data = b"".join(msgpack.packb(step, default=msgpack_numpy.encode) for step in steps)
    template = learn_template(data, 0, where="test")
    assert template is not None
    read = template.read(data, 0, len(steps))
    for column, leaf in enumerate(leaves_of(read)):
        np.testing.assert_array_equal(leaf, np.array([leaves_of(step)[column] for step in steps]))


@pytest.mark.parametrize("kind", STEPS)
def test_a_table_with_one_other_constant_byte_is_not_read(kind: str) -> None:
    data = bytearray(b"".join(msgpack.packb(step, default=msgpack_numpy.encode) for step in STEPS[kind]))
    template = learn_template(bytes(data), 0, where="test")
    assert template is not None
    start = template.size * 3 + (template.constants[0][0] if template.constants else 0)
    data[start] = 0xC1
    assert template.read(data, 0, 5) is None


@pytest.mark.parametrize("step", [None, "text", True, [1.0, 2.0], {1: 2.0}, {b"complex": True, b"data": "1j"}, 2**63], ids=str)
def test_steps_that_are_no_rows_have_no_template(step: Any) -> None:
    assert learn_template(msgpack.packb(step), 0, where="test") is None


# ---- no object per step ----


def batch_of(episodes: int, steps: int) -> EpisodeBatch:
    return EpisodeBatch(
        ids=tuple(map(str, range(episodes))),
        starts=np.arange(episodes + 1) * steps,
        obs=np.random.default_rng(0).normal(size=(episodes * (steps + 1), 4)).astype(np.float32),
        actions=np.arange(episodes * steps) % 2,
        rewards=np.ones(episodes * steps),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
    )


def recorded(batch: EpisodeBatch) -> list[bytes]:
    """The episodes of `batch` as RLlib's recorder writes them: a list of steps each."""
    states = []
    for episode in batch:
        state = episode.get_state()
        for name in ("observations", "actions", "rewards"):
            state[name] = {**state[name], "data": list(state[name]["data"]), "finalized": False}
        states.append(msgpack.packb(state, default=msgpack_numpy.encode))
    return states


@pytest.mark.parametrize("layout", ["ours", "recorded"])
@pytest.mark.parametrize("steps", [1, 3, 20, 300])
def test_many_episodes_are_read_without_the_general_reader(steps: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the general reader was asked")

    monkeypatch.setattr(batch_decoder, "unpack_state", refuse)
    batch = batch_of(30, steps)
    items = encode_batch(batch, where="test", tally=Tally()) if layout == "ours" else recorded(batch)
    [again] = decode_batch(items, where=str, rejects=Rejects(), tally=Tally())
    np.testing.assert_array_equal(again.obs, batch.obs)
    np.testing.assert_array_equal(again.actions, batch.actions)


def test_episodes_of_many_lengths_share_one_layout() -> None:
    batch = EpisodeBatch.concat([batch_of(1, steps) for steps in (0, 1, 14, 15, 16, 127, 128, 255, 256, 70_000)])
    [again] = decode_batch(encode_batch(batch, where="test", tally=Tally()), where=str, rejects=Rejects(), tally=Tally())
    np.testing.assert_array_equal(again.starts, batch.starts)
    np.testing.assert_array_equal(again.obs, batch.obs)
