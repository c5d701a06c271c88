"""Made HDF5 files of small datasets, and what libhdf5 reads of them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np

from offline_cli.files.locations import open_location
from offline_cli.formats.hdf5.files import Hdf5File
from offline_cli.formats.hdf5.nodes import Node

KINDS = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")


def values(chance: random.Random) -> Any:
    shape = tuple(chance.randrange(chance.random() < 0.98, 6) for _ in range(chance.randrange(4)))  # some have no bytes
    return np.frombuffer(chance.randbytes(8 * 125), chance.choice(KINDS[1:]))[: math.prod(shape)].reshape(shape).copy()


def fill(group: Any, chance: random.Random, depth: int = 0) -> None:
    for number in range(chance.randrange(12)):
        name, value = f"{chance.choice('aZ_ 0')}{number}", values(chance)
        if depth < 3 and chance.random() < 0.2:
            fill(group.create_group(name), chance, depth + 1)
        elif value.size and value.ndim and chance.random() < 0.7:  # in one chunk, as Minari has it, or in several
            chunks = tuple(max(1, side // chance.choice((1, 2, 3))) for side in value.shape)
            group.create_dataset(name, data=value, chunks=chunks, maxshape=(None, *value.shape[1:]))
        else:
            group[name] = value if chance.random() < 0.8 else value > 2


def by_libhdf5(path: Path, names: list[str]) -> list[Node]:
    with Hdf5File(open_location(path)) as file:
        file._plain = None
        return list(file.load(names))


def assert_equal(one: Node, other: Node) -> None:
    assert repr(one.attributes) == repr(other.attributes)  # so that NaN is NaN
    assert list(one.attributes) == list(other.attributes)
    assert (list(one.datasets.items()), one.groups, one.left_out) == (
        list(other.datasets.items()),
        other.groups,
        other.left_out,
    )
    assert one.values.keys() == other.values.keys()
    for name, values in one.values.items():
        assert values.dtype == other.values[name].dtype
        np.testing.assert_array_equal(values, other.values[name])
