"""Types that packages register with Arrow, Ray above all: files never make them run code.

Ray registers its tensors, and Python objects. Arrow passes the metadata of a file's columns to a registered type as soon as it
reads the schema, and lets any exception of the type through. Ray 2.49 to 2.54 wrote pickles there, and load them; later
versions refuse them, and so whole recordings. So `ParquetFile` lets none of Ray's types see the metadata: such
columns are what they are where Ray is not imported, their storage, with the type's name in the field's metadata, in which RAY
stands for ray. In Arrow files Ray unpickles an object as soon as a value of its column becomes a Python object:
`without_objects` gives their bytes.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ParquetFile", "extension_failures", "without_objects"]

OBJECTS: Final = "ray.data.arrow_pickled_object"
EXTENSION_NAME: Final = b"ARROW:extension:name"
MAKER: Final = "__arrow_ext_deserialize__"  # what Arrow calls to make a type of metadata
REGISTERING: Final = ("ray.data", "ray.air.util")  # packages of Ray's, now and until 2.54, that register types
SCHEMA, HIDDEN = b"ARROW:schema", b"ARROW:-chema"  # a key that Arrow looks for in a footer, and one that it does not
RAYS, PLAIN = b"ray.data.arrow_", b"RAY.data.arrow_"  # of one length: the schema says how long its parts are
MAGIC: Final = b"PAR1"  # at both ends of a Parquet file
TAIL: Final = 8  # bytes after a footer: its length, and `MAGIC`


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """The same, whatever is registered; page checksums are verified."""

    def __init__(self, source: Any, *, metadata: Any = None, **options: Any) -> None:
        """See pq.ParquetFile. Raises what Arrow raises."""
        if metadata is None and any(name in sys.modules for name in REGISTERING):
            metadata = _metadata(source)
        super().__init__(source, metadata=metadata, **{"page_checksum_verification": True, **options})


def _metadata(source: Any) -> Any:
    """Its pq.FileMetaData without names of Ray's types in the schema; None where there is no footer (Arrow says more)."""
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
    told = (_parsed(footer.replace(SCHEMA, HIDDEN)).metadata or {}).get(HIDDEN, b"")
    try:
        schema = base64.b64decode(told)
    except binascii.Error as error:
        raise pa.ArrowInvalid(f"a schema that cannot be read: {error}") from error
    if base64.b64encode(schema) != told:
        raise pa.ArrowInvalid("a schema that cannot be read: it is not in base64")
    return _parsed(footer.replace(told, base64.b64encode(schema.replace(RAYS, PLAIN))) if RAYS in schema else footer)


def _parsed(footer: bytes) -> Any:
    return pq.ParquetFile(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC)).metadata


@contextmanager
def extension_failures() -> Iterator[None]:
    """Within it, what a registered type raises of the metadata in a file becomes pa.ArrowInvalid."""
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
    """A table or record batch with bytes in place of pickled objects, of whose type the fields' metadata tells."""
    fields = [_plain(field) for field in data.schema]
    if all(plain is field for plain, field in zip(fields, data.schema, strict=True)):
        return data
    return data.cast(pa.schema(fields, data.schema.metadata))


def _plain(field: Any) -> Any:
    """The field itself where it holds no objects."""
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
