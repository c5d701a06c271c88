"""Tables put aside on disk come back as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from offline_cli.formats.tables.temp_runs import TempBlocks

TABLE = pa.table(
    {"id": ["a", None, "b"], "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)), "raw": [b"", b"x", None]}
)


def test_tables_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    with TempBlocks(str(tmp_path)) as blocks:
        places = [blocks.append(TABLE.slice(first)) for first in (0, 1, 2)]
        for first in (2, 0, 1):
            assert blocks.read(places[first]).equals(TABLE.slice(first))


def test_what_compresses_is_written_smaller_and_what_does_not_comes_back_too(tmp_path: Path) -> None:
    plain, noise = pa.table({"v": [0] * 10_000}), pa.table({"v": [os.urandom(80_000)]})
    with TempBlocks(str(tmp_path)) as blocks:
        places = [blocks.append(table) for table in (plain, noise, plain)]
        assert places[0].size < plain.nbytes / 10
        assert [blocks.read(place) for place in places] == [plain, noise, plain]
