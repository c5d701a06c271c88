"""Arrays in msgpack-numpy's encoding, both ways."""

from __future__ import annotations

from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode_batch, encode_batch
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.tally import Rejects, Tally

DTYPES = ["?", "u1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8", "<c8", "S3", "<U3"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0), (2, 3), (1, 2, 3)]


def array_of(dtype: str, shape: tuple[int, ...]) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_is_written_as_msgpack_numpy_writes_it_and_read_as_it_was(dtype: str) -> None:
    for shape in SHAPES:
        array = array_of(dtype, shape)
        node = {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": shape, b"data": array.tobytes()}
        assert pack(array) == msgpack.packb(node)
        for again in (msgpack_numpy.unpackb(pack(array)), unpack(pack(array), where="test")):
            np.testing.assert_array_equal(again, array, strict=True)


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int8(-3), np.uint64(2**63), np.True_, np.float16(2), np.complex64(1j)])
def test_a_numpy_scalar_keeps_value_and_type(scalar: Any) -> None:
    packed = msgpack.packb(scalar, default=msgpack_numpy.encode)
    assert pack(scalar) == packed
    again = unpack(packed, where="test")
    assert (again, type(again)) == (scalar, type(scalar))


def test_every_character_of_unicode_can_be_in_a_string_array() -> None:
    texts = np.array(["\x00", "\U0010ffff"])
    np.testing.assert_array_equal(unpack(pack(texts), where="test"), texts, strict=True)


def test_a_complex_number_is_read_as_msgpack_numpy_writes_it() -> None:
    assert unpack(msgpack.packb(1 - 2.5j, default=msgpack_numpy.encode), where="test") == 1 - 2.5j


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(1, [("a", "f4")]), np.zeros(1, "M8[s]")])
def test_arrays_that_are_no_numbers_cannot_be_packed(array: Any) -> None:
    with pytest.raises(TypeError):
        pack(array)


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


def test_episodes_of_many_lengths_are_read_as_they_were_written() -> None:
    batch = EpisodeBatch.concat([batch_of(1, steps) for steps in (0, 1, 14, 15, 16, 127, 128, 255, 256, 70_000)])
    [again] = decode_batch(encode_batch(batch, where="test", tally=Tally()), where=str, rejects=Rejects(), tally=Tally())
    np.testing.assert_array_equal(again.starts, batch.starts)
    np.testing.assert_array_equal(again.obs, batch.obs)
