"""How Arrow reads our files: no thread of its own holds a Python file, and no bytes become Python objects.

Arrow's own threads, which fetch column chunks and decode them, release a Python file, or the bytes that it gave, some time
after the caller has its result. A thread that does so while the interpreter shuts down is killed in the middle of C++, and that
aborts the process (`terminate called without an active exception`). So Arrow opens files of this machine itself, and reads any
other without its threads; where no option turns a thread off, we wait for it (`let_go`).

Packages register extension types with Arrow (Ray registers its tensors, and Python objects). Where ray is imported, Ray
unpickles a column of its pickled objects as soon as a value of it becomes a Python object. So such columns never leave a reader
of files: `without_objects` gives their bytes, as Arrow does where ray is not imported. Arrow passes the metadata of a file's
columns to a registered type as soon as it reads the schema, and lets any exception of the type through: a TypeError of Ray's,
for one. The reader reports a broken file, as for any other damage. Of Parquet files, `ParquetFile` lets none of Ray's types see
the metadata: Ray 2.49 to 2.54 wrote pickles there, and load them, whatever is in them; later versions refuse them, and so whole
recordings. Such columns are what they are where Ray is not imported: their storage, with the type's name in the field's
metadata, in which RAY stands for ray.

Arrow's Python asks for a column chunk of a Parquet file (`row_group.column(i)`, and all that is built on it) without catching
C++ exceptions: one changed byte in a footer, a histogram of the wrong length for instance, aborts the process. Arrow's reader
builds the same chunks where it does catch. So `check_footer` gives it a file that claims to be long and ends at its first byte:
it goes through all chunks, and finds no page in any of them.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final
from weakref import ReferenceType

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "OBJECTS",
    "ParquetFile",
    "arrow_file",
    "check_footer",
    "extension_failures",
    "let_go",
    "read_metadata",
    "threads_may_read",
    "without_dictionaries",
    "without_objects",
]

MAGIC: Final = b"PAR1"  # at both ends of a Parquet file
TAIL: Final = 8  # bytes after a footer: its length, and `MAGIC`
LONGEST: Final = 5.0  # seconds to wait for Arrow's threads, which have nothing left to do
PAUSE: Final = 0.0005  # seconds between two looks
BUFFER: Final = 1 << 10  # bytes of a column chunk that are read at once, where none are there
SHORTEST: Final = 0.00002  # the first: mostly they are done by then, and small files come by the thousand
SIZE: Final = 1 << 40  # bytes that the file without bytes claims to have: more than any real offset
TOO_SHORT: Final = "File too short"  # what Arrow says of a file that ends sooner than it said
OBJECTS: Final = "ray.data.arrow_pickled_object"
EXTENSION_NAME: Final = b"ARROW:extension:name"
MAKER: Final = "__arrow_ext_deserialize__"  # what Arrow calls to make a type of metadata
REGISTERING: Final = ("ray.data", "ray.air.util")  # packages of Ray's, now and until 2.54, that register types
SCHEMA: Final = b"ARROW:schema"
RAYS, PLAIN = b"ray.data.arrow_", b"RAY.data.arrow_"  # of one length: the schema says how long its parts are


def arrow_file(stream: Any) -> AbstractContextManager[Any]:
    """What Arrow should read in place of `stream`, an open file: the same file, opened once more by Arrow, or `stream`."""
    raw = getattr(stream, "raw", None)
    if os.name == "posix" and isinstance(raw, io.FileIO):
        try:
            again: AbstractContextManager[Any] = pa.OSFile(f"/dev/fd/{stream.fileno()}")
        except OSError:  # no /dev here
            pass
        else:
            return again
    return nullcontext(stream)


def threads_may_read(source: Any) -> bool:
    """Whether Arrow's threads may read `source`."""
    return isinstance(source, (pa.OSFile, pa.BufferReader))


def let_go(file: ReferenceType[Any]) -> None:
    """Wait until Arrow has released a file that nothing else refers to."""
    until, pause = time.monotonic() + LONGEST, SHORTEST
    while file() is not None and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, PAUSE)


# ---- footers ----


def check_footer(metadata: pq.FileMetaData) -> None:
    """Raise what Arrow raises of a broken file (OSError without a number, ArrowException) where one of its chunks cannot be.

    Nothing is checked where the system has no such file (`_cut_file`).
    """
    empty = _cut_file()
    if empty is None:
        return
    several = metadata.num_row_groups > 1  # whose chunks are all looked up at once only where they are fetched at once
    try:
        _read(empty, metadata, pre_buffer=several)
    except OSError as error:
        if not (several and str(error).startswith(TOO_SHORT)):
            raise


def _read(file: Any, metadata: Any, *, pre_buffer: bool = True) -> None:
    try:
        reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=pre_buffer, buffer_size=0 if pre_buffer else BUFFER)
        next(reader.iter_batches(row_groups=range(metadata.num_row_groups), use_threads=False), None)
    finally:
        reader = file = None  # the traceback of what is raised refers to this frame


@cache
def _cut_file() -> Any:
    """A file that had `SIZE` bytes when Arrow opened it, and has none: a read ends at once, and is no error to Arrow.

    None where the system has no such files.
    """
    try:
        with open(os.memfd_create("cut"), "r+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            opened = pa.OSFile(f"/dev/fd/{file.fileno()}")
            file.truncate(0)
    except OSError:  # no /dev here, or a limit to the size of files
        return None
    return opened


# ---- types ----


def without_dictionaries(table: Any, names: Collection[str] | None = None) -> Any:
    """A pa.Table with values, in columns `names` or all, where it has numbers and a dictionary: chunks may have others."""
    for place, field in enumerate(table.schema):
        if (names is None or field.name in names) and pa.types.is_dictionary(field.type):
            kind, column = field.type.value_type, table.column(place)
            is_empty = column.null_count == len(column)
            plain = pa.nulls(len(column), kind) if is_empty else column.cast(kind)
            table = table.set_column(place, field.with_type(kind), plain)
    return table


def without_objects(data: Any) -> Any:
    """A table or record batch with bytes in place of pickled objects, of whose type the fields' metadata tells."""
    if not any(map(_holds_objects, data.schema.types)):
        return data
    for index, field in enumerate(data.schema):
        plain = _plain(field)
        if plain is not field:
            data = data.set_column(index, plain, data.column(index).cast(plain.type))
    return data


def _holds_objects(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name == OBJECTS or _holds_objects(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_objects(kind.value_type)
    return any(_holds_objects(kind.field(number).type) for number in range(kind.num_fields))


def _plain(field: Any) -> Any:
    """The field itself where it holds no objects."""
    if not _holds_objects(field.type):
        return field
    if isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == OBJECTS:
        metadata = {**(field.metadata or {}), EXTENSION_NAME: OBJECTS.encode()}
        return field.with_type(field.type.storage_type).with_metadata(metadata)
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: Any) -> Any:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain(kind.field(number)) for number in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_field))
    return pa.list_(_plain(kind.value_field)) if types.is_list(kind) else kind


@contextmanager
def extension_failures() -> Iterator[None]:
    """Within it, what a registered type raises of the metadata in a file becomes pa.ArrowInvalid."""
    try:
        yield
    except Exception as error:
        if not _is_of_a_type(error):
            raise
        raise pa.ArrowInvalid(f"the metadata of a column's type: {type(error).__name__}: {error}") from error


def _is_of_a_type(error: Exception) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == MAKER:
            return True
        frame = frame.tb_next
    return False


# ---- what Ray registers ----


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """The same, whatever is registered."""

    def __init__(self, source: Any, *, metadata: Any = None, **options: Any) -> None:
        """See pq.ParquetFile. Raises what Arrow raises."""
        if any(name in sys.modules for name in REGISTERING):
            metadata = _footer(source) if metadata is None else metadata
            metadata = None if metadata is None else _without_rays_types(metadata)
        super().__init__(source, metadata=metadata, **options)


def read_metadata(source: Any) -> Any:
    """The pq.FileMetaData of a file. Raises what Arrow raises."""
    return ParquetFile(source).metadata


def _footer(source: Any) -> Any:
    """Its pq.FileMetaData; None where there is no footer, of which Arrow says more."""
    at = source.tell()
    try:
        end = source.seek(0, 2)
        if end < TAIL + len(MAGIC):
            return None
        source.seek(end - TAIL)
        tail = source.read(TAIL)
        size = int.from_bytes(tail[: -len(MAGIC)], "little")
        if tail[-len(MAGIC) :] != MAGIC or size > end - TAIL:
            return None
        source.seek(end - TAIL - size)
        footer = bytes(source.read(size))
    finally:
        source.seek(at)
    blind = footer.replace(SCHEMA, b"ARROW:-chema") + size.to_bytes(4, "little")  # a key that no type is asked for
    pq.ParquetFile(pa.BufferReader(MAGIC + blind + MAGIC))  # which catches what is wrong with it, as the next line does not
    return _of_bytes(footer)


def _without_rays_types(metadata: Any) -> Any:
    """The same without names of Ray's types in the schema. Raises pa.ArrowInvalid for one that is not written as Arrow does."""
    told = (metadata.metadata or {}).get(SCHEMA, b"")
    try:
        schema = base64.b64decode(told)
    except binascii.Error as error:
        raise pa.ArrowInvalid(f"a schema that cannot be read: {error}") from error
    if base64.b64encode(schema) != told:
        raise pa.ArrowInvalid("a schema that cannot be read: it is not in base64")
    if RAYS not in schema:
        return metadata
    _, (footer,) = metadata.__reduce__()
    changed = footer.to_pybytes().replace(told, base64.b64encode(schema.replace(RAYS, PLAIN)))
    return _of_bytes(changed)


def _of_bytes(footer: bytes) -> Any:
    """A pq.FileMetaData, whose schema Arrow does not read."""
    from pyarrow._parquet import _reconstruct_filemetadata  # what a pickle of one names; private, so asked for here alone

    return _reconstruct_filemetadata(pa.py_buffer(footer))
