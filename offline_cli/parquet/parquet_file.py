"""Opens Parquet files so that no type of Ray's gets what their metadata says.

Where Ray's data package is imported, its extension types are registered with Arrow, which passes them the metadata of a file's
columns as soon as it reads the schema. Ray 2.49 to 2.54 wrote pickles there, and load them, whatever is in them; later ones
refuse them, and so whole recordings. Here such columns are what they are where Ray is not imported: their storage, with the
type's name in the field's metadata, in which RAY stands for ray.
"""

from __future__ import annotations

import base64
import binascii
import sys
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ParquetFile", "read_metadata"]

REGISTERING: Final = ("ray.data", "ray.air.util")  # packages of Ray's, now and until 2.54, that register types
SCHEMA: Final = b"ARROW:schema"
RAYS, PLAIN = b"ray.data.arrow_", b"RAY.data.arrow_"  # of one length: the schema says how long its parts are
MAGIC: Final = b"PAR1"
TAIL: Final = 8  # bytes: how long the footer is, and `MAGIC`


class ParquetFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """The same, whatever is registered."""

    def __init__(self, source: Any, *, metadata: Any = None, **options: Any) -> None:
        """See pq.ParquetFile. Raises what Arrow raises."""
        if any(name in sys.modules for name in REGISTERING):
            metadata = _footer(source) if metadata is None else metadata
            metadata = None if metadata is None else _plain(metadata)
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
        return _of_bytes(source.read(size))
    finally:
        source.seek(at)


def _plain(metadata: Any) -> Any:
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
