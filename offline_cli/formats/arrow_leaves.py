"""Convert Arrow columns to trees of numpy arrays, whole columns at a time.

Supported are all layouts that RLlib, Ray and our `columns` format write: numbers and booleans; packed cells; values that Ray
pickled because Arrow has no type for them; Ray's tensor types, registered or not (without ray installed Arrow returns their
storage and keeps the type's name in the field's metadata); arrow.fixed_shape_tensor; lists of equal length, nested to any
depth; structs as dicts, or as tuples if they carry our mark.

Null and ragged rows raise with their place.

`record_batches` reads untrusted Arrow and Parquet files, validated and limited in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadData, BadEpisode, MemoryLimitExceeded, OfflineCliError
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.rllib.packed import looks_packed, tree_of_value, unfolded_size, unpack, unpack_cells
from offline_cli.formats.rllib.pickles import is_pickle
from offline_cli.parquet.reading import extension_failures
from offline_cli.schema_files import from_json
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree

EXTENSION, EXTENSION_METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"
MAX_EMPTY = 1 << 20  # of a dimension beside an empty one, which numpy limits
RAY_TENSOR, RAY_VARIABLE = "ray.data.arrow_tensor", "ray.data.arrow_variable_shaped_tensor"

Where = Callable[[int], str]  # row number to its place as text


def is_text(type_: pa.DataType) -> bool:
    """Whether the type is a string: ids, JSON, packed cells."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def unpacked_size(column: pa.ChunkedArray) -> int:
    """Decompressed bytes of a packed cell, the maximum of three samples; 0 for other columns."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not len(column) or not (is_text(kind) or _is_bytes(kind)):
        return 0
    cells = (column[row].as_py() for row in (0, len(column) // 2, len(column) - 1))
    return max((unfolded_size(cell) for cell in cells if looks_packed(cell)), default=0)


def why_no_numbers(column: pa.ChunkedArray, field: pa.Field) -> str:
    """Why `tree_of` cannot convert the column, judged by its type and its first text or bytes; "" if it can."""
    if pa.types.is_struct(field.type):
        return next(filter(None, map(why_no_numbers, column.flatten(), field.type)), "")
    try:
        if not (is_text(field.type) or _is_bytes(field.type)):
            tree_of(column.slice(0, 0), field, where=lambda _: "")
            return ""
        first = pc.index(column.is_valid(), True).as_py()
        if first < 0:
            return f"no value in the first {len(column)} rows"
        cell = column[first].as_py()
        if is_pickle(cell):
            tree_of_value(unpack(cell, where=""), where="")
        elif not looks_packed(cell):
            return f"{'text' if isinstance(cell, str) else 'bytes'}, not numbers"
    except BadData as error:
        return error.what
    return ""


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def why_no_infos(kind: pa.DataType) -> str:
    """Why `infos_of` cannot convert a column of this type; "" if it can."""
    is_one = is_text(kind) or _is_bytes(kind) or pa.types.is_struct(kind)
    return "" if is_one else f"{str(kind)[:80]}, neither JSON nor dicts"


def infos_of(column: pa.ChunkedArray, field: pa.Field, *, where: Where) -> list[dict[str, Any]] | None:
    """(N,) dicts from JSON texts, packed or pickled dicts, or structs; None if all are empty. Raises BadEpisode."""
    if pa.types.is_struct(field.type):
        infos = [{k: v for k, v in (row or {}).items() if v is not None} for row in column.to_pylist()]
    elif pc.any(pc.not_equal(column, pa.scalar("{}", field.type))).as_py():
        infos = [_info(text, where(row), field.name) if text else {} for row, text in enumerate(column.to_pylist())]
    else:
        return None
    return infos if any(infos) else None


def _info(text: str | bytes, place: str, name: str) -> dict[str, Any]:
    value: Any
    try:
        is_packed = is_pickle(text) or looks_packed(text)
        value = unpack(text, where=place, object_lists=True) if is_packed else from_json(text)
        if not isinstance(value, dict):
            raise ValueError(f"it holds {type(value).__name__}, not a dict")
    except ValueError as error:
        fix = "write infos as JSON objects, or remove the column"
        raise BadEpisode(f"column {name} is not a JSON object: {error}", where=place, fix=fix) from error
    return value


def tree_of(column: pa.ChunkedArray | pa.Array, field: pa.Field, *, where: Where) -> Tree:
    """The column's N rows as a tree of arrays (N, *shape).

    Raises BadEpisode for null rows and rows of different shapes, UnsafeData for packed cells that hold more than numbers,
    BadData for non-numeric types.
    """
    return _tree(_whole(column), field, where)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1:
        return column.chunk(0)  # combine_chunks would copy it
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks leaves extension arrays chunked in some versions of Arrow
        array = pa.concat_arrays(array.chunks)
    return array


def _tree(array: pa.Array, field: pa.Field, where: Where) -> Tree:
    _refuse_nulls(array, field.name, where)
    kind = array.type
    metadata = field.metadata or {}
    name = metadata.get(EXTENSION, b"").decode("utf-8", "replace").lower()  # see parquet/reading.py
    if isinstance(kind, pa.FixedShapeTensorType):
        return array.to_numpy_ndarray()
    if isinstance(kind, pa.BaseExtensionType):
        return _ray_tensor(array.storage, kind.extension_name, _shape_of(kind), field.name, where)
    if name.startswith((RAY_TENSOR, RAY_VARIABLE)):
        return _ray_tensor(array, name, _shape_in(metadata.get(EXTENSION_METADATA, b"")), field.name, where)
    if is_text(kind) or _is_bytes(kind):
        return unpack_cells(array, where=lambda row: f"{where(row)}, column {field.name}")
    if pa.types.is_struct(kind):
        return _struct(array, metadata, where)
    return _numbers(array, field.name, where)


def _struct(array: pa.StructArray, metadata: Mapping[bytes, bytes], where: Where) -> Tree:
    parts = {array.type.field(i).name: _tree(part, array.type.field(i), where) for i, part in enumerate(array.flatten())}
    return tuple(parts.values()) if metadata.get(b"offline_cli") == b"tuple" else parts


def _numbers(array: pa.Array, name: str, where: Where) -> NDArray[Any]:
    """(N, ...) from numbers, booleans, or nested lists of them with equal lengths at each level."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else _one_length(array, name, where)
        inner = array.flatten()
        _refuse_nulls(inner, name, lambda row: where(row // max(1, size)))
        values = _numbers(inner, name, lambda row: where(row // max(1, size)))
        return values.reshape(len(array), size, *values.shape[1:])
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(kind):
        return _microseconds(array)
    fix = "remove the column, or write it as numbers"
    raise BadData(f"column {name} holds {str(kind)[:80]}, not numbers", where=where(0), fix=fix)


def _microseconds(array: pa.Array) -> NDArray[Any]:
    """(N,) int64 microseconds: since 1970 (UTC if it has a time zone), since midnight, or of a duration."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        array, unit = array.cast(pa.timestamp(kind.unit)), pa.timestamp("us")
    elif pa.types.is_date(kind):
        unit = pa.timestamp("us")
    else:
        unit = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    return np.asarray(array.cast(unit, safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False))


def _one_length(array: pa.Array, name: str, where: Where) -> int:
    lengths = np.asarray(pc.list_value_length(array).to_numpy(zero_copy_only=False))
    if not len(lengths):
        return 0
    other = np.flatnonzero(lengths != lengths[0])
    if len(other):
        raise _ragged(name, int(lengths[0]), int(lengths[other[0]]), where(int(other[0])))
    return int(lengths[0])


def _ray_tensor(storage: pa.Array, name: str, shape: tuple[int, ...] | None, column: str, where: Where) -> NDArray[Any]:
    if name.startswith(RAY_VARIABLE):
        is_one = pa.types.is_struct(storage.type) and {part.name for part in storage.type} == {"data", "shape"}
        shapes = _numbers(storage.field("shape"), column, where) if is_one else np.zeros(0)
        if shapes.ndim != 2:
            fix = "write the column as a list of numbers, or remove it"
            raise BadData(f"column {column} is declared as Ray's tensor, but holds {storage.type}", where=where(0), fix=fix)
        other = np.flatnonzero((shapes != shapes[:1]).any(axis=1))
        if len(other):
            raise _ragged(column, shapes[0].tolist(), shapes[other[0]].tolist(), where(int(other[0])))
        shape = tuple(shapes[0].tolist()) if len(shapes) else (0,)
        storage = storage.field("data")
    values = _numbers(storage, column, where)
    if shape is None:
        return values
    if math.prod(shape) * len(values) != values.size or (0 in shape and max(shape) > MAX_EMPTY):
        raise _ragged(column, list(shape), list(values.shape[1:]), where(0))
    return values.reshape(len(values), *shape)


def _shape_of(kind: Any) -> tuple[int, ...] | None:
    """The shape of a registered type; None if it varies."""
    shape = getattr(kind, "shape", None)
    if isinstance(shape, (tuple, list)) and all(isinstance(size, int) for size in shape):
        return tuple(shape)
    return None


def _shape_in(metadata: bytes) -> tuple[int, ...] | None:
    """Parse the shape that Ray writes as JSON, or in 2.49 to 2.54 as a pickle (read without objects); None if invalid."""
    try:
        shape = unpack(metadata, where="") if is_pickle(metadata) else from_json(metadata)
    except (ValueError, BadData):
        return None
    is_one = isinstance(shape, (list, tuple)) and all(type(size) is int and size >= 0 for size in shape)
    return tuple(shape) if is_one else None


def _refuse_nulls(array: pa.Array, name: str, where: Where) -> None:
    if array.null_count:
        row = int(np.flatnonzero(np.asarray(array.is_null().to_numpy(zero_copy_only=False)))[0])
        raise BadEpisode(f"column {name} has no value", where=where(row), fix="fill in the value, or use --on-error skip")


def _ragged(name: str, want: Any, have: Any, place: str) -> BadEpisode:
    return BadEpisode(
        f"column {name} has shape {have} here and {want} before",
        where=place,
        fix="pad or cut the values to one shape, or use --on-error skip",
    )


# ---- files ----


DAMAGE: Final = (ArithmeticError, EOFError, LookupError, MemoryError, TypeError, ValueError)
ROWS: Final = 1 << 16  # of a batch of Parquet


def arrow_schema_of(file: Location) -> pa.Schema:
    """The columns of an Arrow file. Raises BadData."""
    with arrow_failures(file), file.open() as stream:
        return _opened(stream)[0]


def record_batches(file: Location, scope: Scope, *, memory_limit: int) -> Iterator[pa.RecordBatch]:
    """All record batches of a file; `scope` owns the open file. Raises BadData, MemoryLimitExceeded."""
    most = EpisodeLimit.within(memory_limit).most
    with scope.part() as held:
        with arrow_failures(file):
            batches = _opened(held.enter(file.open()))[1]
        while True:
            with arrow_failures(file):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # before nbytes, which follows offsets
                if batch.nbytes > most:
                    what = f"a batch of {batch.num_rows:,} rows has {batch.nbytes / 1e6:,.0f} MB, too much for the memory limit"
                    raise MemoryLimitExceeded(what, where=file.url, fix="raise --memory-limit")
            yield batch


def _opened(stream: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of an Arrow file, Arrow stream or Parquet file, recognised by its first bytes."""
    magic = stream.read(4)
    stream.seek(0)
    if magic == b"PAR1":
        parquet = pq.ParquetFile(stream)
        return parquet.schema_arrow, iter(parquet.iter_batches(batch_size=ROWS))
    if magic != b"ARRO":
        found = pa.ipc.open_stream(stream)
        _check_names(found.schema)
        return found.schema, iter(found)
    file = pa.ipc.open_file(stream)
    _check_names(file.schema)
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))


def _check_names(fields: Any) -> None:
    """Raise UnicodeDecodeError if the name of a column, or of a part of it, is not UTF-8."""
    for field in fields:
        assert field.name is not None
        _check_names([field.type.field(at) for at in range(field.type.num_fields)])


@contextmanager
def arrow_failures(file: Location) -> Iterator[None]:
    """Convert pyarrow's exceptions for damaged bytes to BadData; storage failures, which have an errno, to StorageError."""
    with storage_failures(file.url, "reading it"):
        try:
            with extension_failures():
                yield
        except OfflineCliError:
            raise
        except (*DAMAGE, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            fix = "copy or write the file again, or use --on-error skip to read the others"
            details = {PROBLEM: "unreadable-file"}
            raise BadData(f"a damaged file: {lines[0][:300]}", where=file.url, fix=fix, details=details) from error


def without_leaves(array: Any, field: pa.Field, path: str, drop: Collection[str]) -> tuple[Any, pa.Field]:
    """Drop the parts at dotted paths `drop` from the struct column called `path`; other columns are unchanged."""
    if not pa.types.is_struct(field.type) or not any(name.startswith(f"{path}.") for name in drop):
        return array, field
    parts = [(part, field.type.field(at)) for at, part in enumerate(array.flatten())]
    kept = [without_leaves(part, one, f"{path}.{one.name}", drop) for part, one in parts if f"{path}.{one.name}" not in drop]
    struct = pa.StructArray.from_arrays([part for part, _ in kept], fields=[one for _, one in kept])
    return struct, field.with_type(struct.type)
