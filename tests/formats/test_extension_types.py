"""Types that other packages register with Arrow, as Ray does: what they raise of a file's metadata is that file's damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import inspect
from offline_cli.errors import BadData
from offline_cli.files.locations import open_location
from offline_cli.parquet.shards import opened

NAME = "offline_cli.tests.tensor"


class Tensor(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """As Ray's: the shape is JSON in the metadata."""

    def __init__(self, shape: tuple[int, ...], kind: Any) -> None:
        self.shape = shape
        super().__init__(pa.list_(kind), NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps(self.shape).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Tensor:
        return cls(tuple(json.loads(serialized)), storage_type.value_type)


@pytest.fixture
def registered() -> Iterator[None]:
    pa.register_extension_type(Tensor((2,), pa.float64()))
    yield
    pa.unregister_extension_type(NAME)


def _table(metadata: bytes) -> pa.Table:
    tagged = {b"ARROW:extension:name": NAME.encode(), b"ARROW:extension:metadata": metadata}
    schema = pa.schema([pa.field("obs", pa.list_(pa.float64()), metadata=tagged), ("eps_id", pa.string())])
    return pa.table([[[1.0, 2.0]], ["a"]], schema=schema)


def _written(folder: Path, kind: str, metadata: bytes) -> str:
    file = folder / f"rows.{kind}"
    table = _table(metadata)
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return str(file)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("metadata", [b"5", b'{"a', b"\xff"], ids=["a-number", "half-a-text", "no-text"])
def test_a_file_whose_metadata_a_registered_type_cannot_take_is_damaged(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, metadata: bytes
) -> None:
    file = _written(tmp_path, kind, metadata)
    request.getfixturevalue("registered")
    with pytest.raises(BadData, match="the metadata of a column's type"):
        inspect(file)


def test_a_shard_whose_metadata_a_registered_type_cannot_take_is_damaged(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = _written(tmp_path, "parquet", b"5")
    request.getfixturevalue("registered")
    with pytest.raises(BadData, match="the metadata of a column's type"), opened(open_location(file)):
        pass
