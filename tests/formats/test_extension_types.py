"""Types that other packages register with Arrow, as Ray does: what they raise of a file's metadata is that file's damage."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli import inspect
from offline_cli.errors import BadData
from offline_cli.parquet.reading import opened
from offline_cli.storage.locations import open_location

NAME, RAYS = "offline_cli.tests.tensor", "ray.data.arrow_tensor"


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


class RayTensor(pa.ExtensionType):  # type: ignore[misc]
    """As that of Ray 2.49 to 2.54, which loads a pickle."""

    loaded: list[bytes] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.float64()), RAYS)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> RayTensor:
        cls.loaded.append(serialized)
        return cls()


@pytest.fixture
def with_rays_type(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What the type was given."""
    if "ray.data" in sys.modules:
        pytest.skip("Ray's own type is registered")
    monkeypatch.setitem(sys.modules, "ray.data", ModuleType("ray.data"))
    pa.register_extension_type(RayTensor())
    RayTensor.loaded.clear()
    yield RayTensor.loaded
    pa.unregister_extension_type(RAYS)


def _table(metadata: bytes, name: str = NAME) -> pa.Table:
    tagged = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": metadata}
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


@pytest.mark.parametrize(("kind", "metadata"), [("parquet", b"5"), ("arrow", b"\xff")])
def test_a_file_whose_metadata_a_registered_type_cannot_take_is_damaged(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, metadata: bytes
) -> None:
    file = _written(tmp_path, kind, metadata)
    request.getfixturevalue("registered")
    with pytest.raises(BadData):
        inspect(file)


@pytest.mark.parametrize("copies", [1, 30], ids=["one", "many"])
def test_the_metadata_of_a_file_never_gets_to_a_type_of_rays(copies: int, tmp_path: Path, with_rays_type: list[bytes]) -> None:
    values = [[float(number) for number in range(6)]] * 2
    columns = {"eps_id": ["a", "a"], "actions": [0, 1], "rewards": [1.0, 2.0], "terminateds": [False, True]}
    tagged = {b"ARROW:extension:name": RAYS.encode(), b"ARROW:extension:metadata": pickle.dumps((3, 2))}
    schema = pa.schema([pa.field("obs", pa.list_(pa.float64()), metadata=tagged)])
    table = pa.table([values], schema=schema)
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    for number in range(copies):
        named = table.set_column(1, "eps_id", pa.array([f"episode {number}"] * 2))
        with pa.OSFile(str(tmp_path / f"{number}.parquet"), "wb") as file:
            pq.write_table(named, file)
    with_rays_type.clear()
    found = inspect(str(tmp_path))
    assert (found.episodes, found.observation_space.shape) == (copies, (3, 2))
    with opened(open_location(tmp_path / "0.parquet")) as shard:
        assert shard.read_row_groups([0]).num_rows == 2
    assert with_rays_type == []
