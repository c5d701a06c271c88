"""Read Parquet files safely; our own shards row group by row group.

Page checksums are verified. Any exception of the Parquet reader on a broken file becomes BadData that names the shard. Never
call pyarrow's `row_group.column(i)`: it does not catch C++ exceptions, and one changed byte in a footer aborts the process.

**Arrow's threads** release a Python file some time after the caller has its result; if that happens during interpreter
shutdown, the process aborts. So Arrow opens local files itself (`arrow_file`), and reads others without threads. The client
reads ahead in a remote shard, unless only a few columns are needed.

**Registered types.** Arrow passes column metadata to extension types that a package has registered, and propagates their
exceptions. Ray 2.49 to 2.54 writes pickles there and loads them; later versions raise, which makes whole recordings unreadable.
So `ParquetFile` hides the metadata from Ray's types: such columns appear as their storage type, as without Ray. In Arrow files
Ray unpickles an object as soon as its value becomes a Python object; `without_objects` returns bytes instead.

**Decompression.** 800 bytes can expand to 200 MiB, and the sizes in the file (of encoded pages) do not show it. So foreign
files are read in batches sized by the memory of the first rows (`rows_at_once`); each row group of our own datasets must fit
into the memory limit.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.choices import TABLE_MEMORY_LIMIT, byte_size
from offline_cli.errors import BadData, MemoryLimitExceeded, StorageNotFound
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location

MEMORY_LIMIT: Final = byte_size(TABLE_MEMORY_LIMIT, option="--memory-limit")  # default memory limit of reading, in bytes
READING: Final = 3  # peak memory of reading a row group, as a multiple of its size: text buffers double while they are copied
FIRST_ROWS: Final = 64  # rows that estimate the memory per row
ROWS: Final = 1 << 16  # rows of a shard per batch
OBJECTS: Final = "ray.data.arrow_pickled_object"
EXTENSION_NAME: Final = b"ARROW:extension:name"
MAKER: Final = "__arrow_ext_deserialize__"  # Arrow calls it to build a type from metadata
REGISTERING: Final = ("ray.data", "ray.air.util")  # Ray's packages that register types, now and until 2.54
SCHEMA, HIDDEN = b"ARROW:schema", b"ARROW:-chema"  # the footer key that Arrow looks for, and a replacement
RAYS, PLAIN = b"ray.data.arrow_", b"RAY.data.arrow_"  # equal lengths: the schema stores the length of its parts
MAGIC: Final = b"PAR1"  # at both ends of a Parquet file
TAIL: Final = 8  # bytes after a footer: its length, and `MAGIC`
FIX: Final = "restore the file from a copy, or write the dataset again from its source"
OTHER_SHARD: Final = "shard-hash"  # problem code
SMALL: Final = 8 << 20  # remote files up to this size are fetched in one request
CHUNK: Final = 4 << 20  # bytes hashed at a time


# ---- registered types ----


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """pq.ParquetFile, unaffected by Ray's registered types; verifies page checksums."""

    def __init__(self, source: Any, *, metadata: Any = None, **options: Any) -> None:
        """See pq.ParquetFile. Raises Arrow's exceptions."""
        if metadata is None and any(name in sys.modules for name in REGISTERING):
            metadata = _metadata(source)
        super().__init__(source, metadata=metadata, **{"page_checksum_verification": True, **options})


def _metadata(source: Any) -> Any:
    """The pq.FileMetaData with Ray's type names hidden; None without a footer (then Arrow raises a better error)."""
    at = source.tell()
    try:
        end = source.seek(0, 2)
        source.seek(max(0, end - TAIL))
        tail = source.read(TAIL)
        size = int.from_bytes(tail[: -len(MAGIC)], "little")
        if end < TAIL + len(MAGIC) or tail[-len(MAGIC) :] != MAGIC or size > end - TAIL:
            return None
        source.seek(end - TAIL - size)
        footer = bytes(source.read(size))
    finally:
        source.seek(at)
    encoded = (_parsed(footer.replace(SCHEMA, HIDDEN)).metadata or {}).get(HIDDEN, b"")
    try:
        schema = base64.b64decode(encoded)
    except binascii.Error as error:
        raise pa.ArrowInvalid(f"the Arrow schema cannot be read: {error}") from error
    if base64.b64encode(schema) != encoded:
        raise pa.ArrowInvalid("the Arrow schema cannot be read: it is not base64")
    return _parsed(footer.replace(encoded, base64.b64encode(schema.replace(RAYS, PLAIN))) if RAYS in schema else footer)


def _parsed(footer: bytes) -> Any:
    return pq.ParquetFile(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC)).metadata


@contextmanager
def extension_failures() -> Iterator[None]:
    """Convert exceptions of registered types, raised for a file's metadata, to pa.ArrowInvalid."""
    try:
        yield
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_name != MAKER:
            frame = frame.tb_next
        if frame is None:
            raise
        raise pa.ArrowInvalid(f"the metadata of a column's type: {type(error).__name__}: {error}") from error


def without_objects(data: Any) -> Any:
    """A table or record batch with bytes in place of pickled objects; field metadata keeps the type's name."""
    fields = [_plain(field) for field in data.schema]
    if all(plain is field for plain, field in zip(fields, data.schema, strict=True)):
        return data
    return data.cast(pa.schema(fields, data.schema.metadata))


def _plain(field: Any) -> Any:
    """The field with bytes in place of objects; the same object if it has none."""
    types, kind = pa.types, field.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != OBJECTS:
            return field
        return field.with_type(kind.storage_type).with_metadata({**(field.metadata or {}), EXTENSION_NAME: OBJECTS.encode()})
    inner = [kind.field(number) for number in range(kind.num_fields)]
    plain = [_plain(one) for one in inner]
    if all(one is other for one, other in zip(plain, inner, strict=True)):
        return field
    if types.is_struct(kind):
        return field.with_type(pa.struct(plain))
    if types.is_map(kind):
        key, item = _plain(kind.key_field), _plain(kind.item_field)
        return field.with_type(pa.map_(key.type, item.type))
    if types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(plain[0], kind.list_size))
    return field.with_type(pa.large_list(plain[0]) if types.is_large_list(kind) else pa.list_(plain[0]))


# ---- decompressed size ----


def rows_at_once(parquet: ParquetFile, columns: Sequence[str] | None, nbytes: int) -> int:
    """Estimate from the first rows how many rows of `columns` (None: all) take `nbytes`. Raises Arrow's exceptions."""
    first = next(parquet.iter_batches(FIRST_ROWS, columns=columns, use_threads=False), None)
    return 1 if first is None else max(1, nbytes * first.num_rows // max(1, first.nbytes))


# ---- our shards ----


class OpenShard(ParquetFile):
    """A Parquet file and its stream; a context manager that closes both. Raises Arrow's exceptions."""

    def __init__(self, stream: BinaryIO, files: ExitStack) -> None:
        """`files`: owns `stream`."""
        source = files.enter_context(arrow_file(stream))
        self.stream, self._files = stream, files
        self.is_threaded = threads_may_read(source)
        super().__init__(source, pre_buffer=self.is_threaded)
        self.group_rows = [self.metadata.row_group(group).num_rows for group in range(self.num_row_groups)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.close()


def opened(location: Location, *, size: int | None = None, ahead: bool = True) -> OpenShard:
    """Open a shard, to be entered. `size`: its required size in bytes; None: any. `ahead`: see Location.open.

    Raises BadData if the shard is missing, has another size, or is not Parquet.
    """
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(location.open(ahead=ahead))
        except StorageNotFound as err:
            raise _bad("the shard is missing, or the dataset was replaced after it was opened", location) from err
        have = stream.seek(0, io.SEEK_END)
        if size is not None and have != size:
            raise _bad(f"the shard has {have} bytes, but the manifest says {size}", location)
        stream.seek(0)
        if not location.is_local and have <= SMALL:
            stream = stack.enter_context(io.BytesIO(stream.read()))
        with _parquet_failures(location):
            shard = OpenShard(stream, stack)
        shard._files = stack.pop_all()
        return shard


def arrow_file(stream: Any) -> AbstractContextManager[Any]:
    """The same file opened by Arrow, to be read in place of `stream`; `stream` itself if that is impossible."""
    if isinstance(stream, io.BytesIO):
        return pa.BufferReader(stream.getvalue())  # type: ignore[no-any-return]  # pyarrow has no types
    if isinstance(getattr(stream, "raw", None), io.FileIO) and isinstance(stream.name, str):
        return pa.OSFile(os.fsencode(stream.name))  # type: ignore[no-any-return]
    return nullcontext(stream)


def threads_may_read(source: Any) -> bool:
    """Whether Arrow's threads can safely read `source`."""
    return isinstance(source, (pa.OSFile, pa.BufferReader))


# ---- row groups ----


def read_row_groups(
    file: OpenShard,
    location: Location,
    *,
    columns: Sequence[str] | None = None,
    memory_limit: int = MEMORY_LIMIT,
    groups: Sequence[int] | None = None,
) -> Iterator[Any]:
    """The pa.Table of each row group of one of our shards, in order. `groups`: their numbers; None: all.

    Raises BadData, StorageError, MemoryLimitExceeded.
    """

    def read(group: int) -> Any:
        batches, taken = list[Any](), 0
        with _parquet_failures(location):
            for batch in file.iter_batches(ROWS, [group], columns, use_threads=file.is_threaded):
                batches.append(without_objects(batch))
                taken += READING * batch.nbytes
                if taken > memory_limit:
                    limit = f"{memory_limit / 2**20:,.1f} MiB"
                    what = f"reading row group {group} exceeds the memory limit of {limit}"
                    raise MemoryLimitExceeded(what, where=location.url, fix="raise --memory-limit")
            return pa.Table.from_batches(batches) if batches else file.read_row_groups([group], columns)

    return map(read, range(file.num_row_groups) if groups is None else groups)


@contextmanager
def _parquet_failures(location: Location) -> Iterator[None]:
    """Convert Arrow's errors about the bytes to BadData, and storage failures to StorageError."""
    try:
        with storage_failures(location.url, "reading it"):
            try:
                with extension_failures():
                    yield
            except OSError as err:
                if err.errno is not None:  # Arrow reports bad bytes as OSErrors without errno
                    raise
                raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err
    except (pa.ArrowException, UnicodeDecodeError) as err:  # a column name may be invalid UTF-8
        raise _bad(f"the shard cannot be read as Parquet: {err}", location) from err


def _bad(what: str, location: Location) -> BadData:
    return BadData(what, where=location.url, fix=f"{FIX}; or leave it out: {dropping(location)}")


def dropping(shard: Location) -> str:
    """The command that drops the broken shards of this shard's dataset."""
    folder = shard.url.rpartition("/data/")[0]
    return f"offline-cli repair {shlex.quote(folder) if folder else 'D'} --drop-broken"


def fingerprint(location: Location) -> tuple[int, str]:
    """Size and sha256 (hex) of a file. Raises StorageNotFound, StorageError."""
    digest, size = hashlib.sha256(), 0
    with location.open() as file, storage_failures(location.url, "reading it"):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
