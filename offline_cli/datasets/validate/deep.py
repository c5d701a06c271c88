"""What only `--deep` looks at, beside hashes: footers against their data, rows set aside, uploads left open; refuses nothing.

A footer states least and greatest values of each column, and other tools skip row groups by them: one that lies hides rows from
them, although reading all of it, as we do, shows nothing wrong. Bounds may be wider than the data, never narrower.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from offline_cli.datasets.validate.findings import Findings
from offline_cli.errors import BadData
from offline_cli.storage.locations import Location
from offline_cli.storage.own_dataset import quarantine_files
from offline_cli.storage.parquet_statistics import ChunkStatistics, chunk_statistics
from offline_cli.storage.shards import opened, read_row_groups
from offline_cli.storage.trust import Trust
from offline_cli.storage.uploads import open_uploads

__all__ = ["check_footer", "check_leftovers"]

STORED_AS: Final = {
    "BOOLEAN": "<?",
    "INT32": "<i",
    "INT64": "<q",
    "unsigned INT32": "<I",
    "unsigned INT64": "<Q",
    "FLOAT": "<f",
    "DOUBLE": "<d",
    "FIXED_LEN_BYTE_ARRAY": "<e",
}
"""How `struct` reads the bounds of a Parquet type; half floats are the only numbers of fixed length."""


def check_footer(shard: Location, source: str, findings: Findings, trust: Trust | None = None) -> None:
    """Report row groups of a shard whose footer says something else; a shard that cannot be read is told elsewhere."""
    try:
        with opened(shard) as file:
            wrong = list(_wrong_groups(file, shard, trust))
    except BadData:
        return
    if wrong:
        findings.add(source, "footer-mismatch", len(wrong), (f"{shard.url}, {what}" for what in wrong))


def _wrong_groups(file: Any, shard: Location, trust: Trust | None) -> Iterator[str]:
    """One sentence for each row group with a fault: the first that it has."""
    names = [field.name for field in file.schema_arrow if _is_plain(field.type)]
    columns = {file.schema.column(i).path: i for i in range(len(file.schema))}  # what chunks call themselves may be a lie
    kinds = {name: file.schema.column(i).physical_type for name, i in columns.items()}
    try:
        statistics = chunk_statistics(file.stream, file.metadata)
    except pa.ArrowInvalid as error:
        yield str(error)
        return
    for number, table in enumerate(read_row_groups(file, shard, columns=names, trust=trust)):
        faults = (
            f"row group {number}, column {name}: {fault}"
            for name in names
            for fault in _faults(statistics[number][columns[name]], kinds[name], table[name])
        )
        if (first := next(faults, None)) is not None:
            yield first


def _is_plain(kind: Any) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def _faults(said: ChunkStatistics, physical: str, values: Any) -> Iterator[str]:
    """`said` of the pa.ChunkedArray `values`, which are stored as the Parquet type `physical`."""
    if said.null_count is not None and said.null_count != values.null_count:
        yield f"{values.null_count:,} nulls, the footer says {said.null_count:,}"
    if said.low is None or said.high is None or len(values) == values.null_count:
        return
    try:
        low, high = (_bound(data, physical, values.type) for data in (said.low, said.high))
    except (ValueError, struct.error):
        yield "what the footer says of its least and greatest value is none"
        return
    have = pc.min_max(values)
    least, greatest = (_comparable(have[name].as_py()) for name in ("min", "max"))
    if least < low:
        yield f"its least value is {least!r}, the footer says {low!r}"
    if greatest > high:
        yield f"its greatest value is {greatest!r}, the footer says {high!r}"


def _bound(data: bytes, physical: str, kind: Any) -> Any:
    """A bound of a column of Arrow type `kind`; bytes for text. Raises ValueError, struct.error where it is none."""
    if physical == "BYTE_ARRAY":
        return data
    stored = STORED_AS.get(f"unsigned {physical}" if pa.types.is_unsigned_integer(kind) else physical)
    if stored is None:
        raise ValueError(f"{kind} is not stored as {physical}")
    return struct.unpack(stored, data)[0]


def _comparable(value: Any) -> Any:
    """Text as bytes, which is how Parquet orders it: a bound may be cut off within a character."""
    return value.encode() if isinstance(value, str) else value


def check_leftovers(folder: Location, findings: Findings) -> None:
    """Report uploads to dataset `folder` that were never completed, and files of rows set aside that cannot be read."""
    for upload in open_uploads(folder):
        findings.add(folder.url, "leftover-file", 1, [str(upload)])
    for file in quarantine_files(folder).values():
        try:
            with opened(file) as parquet:
                for _ in read_row_groups(parquet, file):
                    continue
        except BadData as error:
            findings.add(folder.url, "damaged-quarantine", 1, [file.url], example=error.what)
