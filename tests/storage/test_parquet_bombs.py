"""Looking for bombs costs no more than what is looked at."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.storage.parquet_bombs import refuse_bomb


class Footer:
    """One whose row groups are counted as they are asked for."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self.asked: list[int] = []

    @property
    def num_row_groups(self) -> int:
        pytest.fail("who reads one row group need not go through all of them each time")

    def row_group(self, number: int) -> Any:
        self.asked.append(number)
        return self._metadata.row_group(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)


def test_one_row_group_is_looked_at_without_the_others() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]}), sink, row_group_size=1)
    footer = Footer(pq.ParquetFile(sink.getvalue()).metadata)
    refuse_bomb(lambda: pytest.fail("nothing to read"), footer, lambda: 0, where="here", group=1)
    assert set(footer.asked) == {1}
