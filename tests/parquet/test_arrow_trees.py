"""Arrow types follow from spaces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from offline_cli.errors import UnsupportedSpace
from offline_cli.parquet.arrow_trees import space_field
from offline_cli.spaces import Space

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (VECTOR, pa.list_(pa.float32(), 4)),
        (IMAGE, pa.fixed_shape_tensor(pa.uint8(), (8, 6, 3))),
        (spaces.Box(-1, 1, (), np.float64), pa.float64()),
        (spaces.Box(0, 1, (1,), np.float16), pa.list_(pa.float16(), 1)),
        (spaces.Discrete(3), pa.int64()),
        (spaces.Discrete(3, dtype=np.int32), pa.int32()),
        (spaces.MultiDiscrete([3, 4]), pa.list_(pa.int64(), 2)),
        (spaces.MultiDiscrete([[3, 4], [2, 2]]), pa.fixed_shape_tensor(pa.int64(), (2, 2))),
        (spaces.MultiBinary(6), pa.list_(pa.int8(), 6)),
        (spaces.MultiBinary([2, 3]), pa.fixed_shape_tensor(pa.int8(), (2, 3))),
        (spaces.Dict({"b": VECTOR, "a": spaces.Discrete(2)}), pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float32(), 4))])),
        (spaces.Tuple([VECTOR, spaces.Discrete(2)]), pa.struct([("0", pa.list_(pa.float32(), 4)), ("1", pa.int64())])),
        (spaces.Dict({"t": spaces.Tuple([IMAGE])}), pa.struct([("t", pa.struct([("0", space_field("value", IMAGE).type)]))])),
    ],
)
def test_each_space_has_its_arrow_type(space: Space, kind: pa.DataType) -> None:
    assert space_field("value", space).type == kind


@pytest.mark.parametrize(
    ("space", "part"),
    [
        (spaces.Dict({"a": VECTOR, "b": spaces.Dict({})}), "value.b"),
        (spaces.Dict({"a": spaces.Box(0, 1, (2, 0), np.float32)}), "value.a"),
        (spaces.Tuple([VECTOR, spaces.Box(0, 1, (2,), np.longdouble)]), "value.1"),
    ],
)
def test_a_space_that_makes_no_column_is_refused_by_the_name_of_its_part(space: Space, part: str) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        space_field("value", space)
    assert caught.value.where == part
