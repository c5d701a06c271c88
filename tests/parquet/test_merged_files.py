"""Small Parquet files that are read as one give what each of them gives alone, or are left to be read alone."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.errors import OfflineCliError
from offline_cli.files.locations import open_location
from offline_cli.formats.parquet_files import _table_of_bytes as read_alone
from offline_cli.parquet import merged_files
from offline_cli.parquet.merged_files import FEWEST, memory_of, merged
from offline_cli.parquet.thrift_footers import Lanes, OddStruct, walked

FILES = 12
ROOM = 16 << 20
SOMEWHERE = open_location("/nowhere.parquet")


def bytes_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def columns(number: int, rows: int) -> Mapping[str, Any]:
    """Of the kinds that recorders write."""
    draw = np.random.default_rng(number)
    floats = draw.normal(size=(rows, 4)).astype(np.float32)
    return {
        "eps_id": [f"episode {number}"] * rows,
        "agent_id": pa.nulls(rows),
        "obs": pa.array(list(floats), pa.large_list(pa.float32())),
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel()), 4),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2, 2]), pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel()), 4)
        ),
        "inner": pa.StructArray.from_arrays([pa.array(floats[:, 0]), pa.array(range(rows))], ["x", "y"]),
        "actions": pa.array(draw.integers(0, 2, rows), pa.int32()),
        "rewards": draw.normal(size=rows),
        "maybe": pa.array([1.5, *[None] * (rows - 1)], pa.float64()),
        "terminateds": [False] * (rows - 1) + [True],
        "text": [f"{value:.3f}" for value in draw.normal(size=rows)],
    }


@pytest.fixture
def data() -> list[bytes]:
    return [bytes_of(pa.table(columns(number, 1 + number % 5))) for number in range(FILES)]


def assert_as_alone(data: list[bytes], *names: str) -> list[int]:
    """Numbers of those that are read together."""
    wanted, together = list(names) or None, []
    for several in merged(data, wanted, room=ROOM):
        starts = np.cumsum([0, *several.rows])
        memory = memory_of(several.table, starts)
        for place, start in enumerate(starts[:-1].tolist()):
            number, rows = several.first + place, several.rows[place]
            alone = read_alone(wanted, SOMEWHERE, data[number])
            assert alone is not None
            assert str(several.table.slice(start, rows).to_pydict()) == str(alone.to_pydict()), (
                number
            )  # as text: NaN equals NaN
            assert several.table.schema.equals(alone.schema, check_metadata=True)
            assert memory_of(alone, np.array([0, rows])) == [memory[place]]
            together.append(number)
    return sorted(together)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("crc", [False, True])
def test_files_of_one_writer_are_read_together(codec: str, crc: bool) -> None:
    tables = [pa.table(columns(number, 1 + number % 5)) for number in range(FILES)]
    data = [bytes_of(table, compression=codec, write_page_checksum=crc) for table in tables]
    assert assert_as_alone(data) == list(range(FILES))


def test_only_the_columns_that_are_asked_for_are_read(data: list[bytes]) -> None:
    assert assert_as_alone(data, "rewards", "obs", "no such column") == list(range(FILES))


def test_files_of_two_layouts_come_in_order(data: list[bytes]) -> None:
    other = [bytes_of(pa.table({"a": [number]})) for number in range(FILES)]
    mixed = [one for pair in zip(data, other, strict=True) for one in pair]
    assert assert_as_alone(mixed) == list(range(2 * FILES))


def test_bytes_that_are_no_parquet_are_left_alone(data: list[bytes]) -> None:
    for number, odd in ((1, b""), (2, b"PAR1PAR1"), (3, data[3][:-20]), (4, b"PAR1" + b"\xff" * 40 + b"PAR1"), (5, b"x" * 99)):
        data[number] = odd
    assert assert_as_alone(data) == [0, *range(6, FILES)]


def test_the_first_file_may_be_odd(data: list[bytes]) -> None:
    data[0] = bytes_of(pa.table(columns(0, 3)), row_group_size=1)
    assert assert_as_alone(data) == list(range(1, FILES))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0], None, [2.0]]),
        pa.array([[1.0], [], [2.0, 3.0]]),
        pa.array([[[1.0]], [[2.0]], [[3.0]]]),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([{"x": [1]}, {"x": [2]}, {"x": [3]}]),
    ],
)
def test_lists_that_hide_where_a_file_ends_and_nested_ones_are_left_alone(column: pa.Array) -> None:
    assert assert_as_alone([bytes_of(pa.table({"a": column}))] * FILES) == []


def test_too_few_files_and_other_writers_are_left_alone(data: list[bytes]) -> None:
    assert assert_as_alone(data[: FEWEST - 1]) == []
    assert assert_as_alone([one.replace(b"parquet-cpp-arrow", b"parquet-cpp-other") for one in data]) == []


def test_data_pages_of_the_second_version_and_several_pages_are_left_alone() -> None:
    table = pa.table({"a": range(3000)})
    assert assert_as_alone([bytes_of(table, data_page_version="2.0")] * FILES) == []
    assert assert_as_alone([bytes_of(table, data_page_size=100, write_batch_size=100, use_dictionary=False)] * FILES) == []


def test_what_is_read_together_is_bounded(data: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert merged(data, None, room=100) == []
    bomb = bytes_of(pa.table({"text": ["x" * 100_000] * 1000}))
    assert merged([bomb] * FILES, None, room=1 << 40) == []
    monkeypatch.setattr(merged_files, "MAX_BYTES", 20_000)
    assert sum(len(several.rows) for several in merged(data, None, room=ROOM)) in range(1, FILES + 1)
    assert_as_alone(data)


def test_a_flipped_bit_changes_no_other_file_and_is_refused_as_it_is_alone(data: list[bytes]) -> None:
    chance = random.Random(7)
    for _ in range(60):
        number, flipped = chance.randrange(FILES), list(data)
        changed = bytearray(data[number])
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        flipped[number] = bytes(changed)
        for several in merged(flipped, None, room=ROOM):
            starts = np.cumsum([0, *several.rows]).tolist()
            for place, (begin, end) in enumerate(pairwise(starts)):
                if several.first + place not in (number, (number + 1) % FILES):
                    continue
                alone = read_alone(None, SOMEWHERE, flipped[several.first + place])  # raises where it is refused
                assert alone is not None
                assert str(several.table.slice(begin, end - begin).to_pydict()) == str(alone.to_pydict())


def test_a_page_that_claims_more_values_than_its_file_has_rows_is_left_alone() -> None:
    data = [bytes_of(pa.table({"a": [number] * 3}), use_dictionary=False, compression="none") for number in range(FILES)]
    header = walked(data[5], 4, len(data[5]), lambda path: False)
    begin, _ = header.spans[5, 1]
    changed = bytearray(data[5])
    assert changed[begin] == 3 << 1
    changed[begin] = 4 << 1
    data[5] = bytes(changed)
    with pytest.raises(OfflineCliError):
        read_alone(None, SOMEWHERE, data[5])
    assert assert_as_alone(data) == [number for number in range(FILES) if number != 5]


@pytest.mark.parametrize(
    "odd", [b"", b"\x15", b"\x15\x80", b"\x05\x00\x00", b"\x1c" * 40, b"\x18\x7f\x00", b"\x1d\x00", b"\x19\xfc\xff\xff\x7f"]
)
def test_structs_that_end_too_soon_or_are_nested_without_end_are_refused(odd: bytes) -> None:
    with pytest.raises(OddStruct):
        walked(odd, 0, len(odd), lambda path: False)


def test_numbers_of_more_than_five_digits_are_not_followed() -> None:
    one, other = b"\x16\x02\x00", b"\x16\x82\x80\x80\x80\x80\x00\x00"
    lanes, ok = Lanes([one, other]), np.ones(2, bool)
    found = lanes.follow(walked(one, 0, len(one), lambda path: True), ok)
    assert (ok.tolist(), found[1,][0]) == ([True, False], 1)
