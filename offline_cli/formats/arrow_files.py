"""Record batches of an Arrow or Parquet file of unknown origin, by pyarrow: validated, and bounded in bytes while read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.errors import PROBLEM, BadData, MemoryLimitExceeded, OfflineCliError
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.parquet.reading import extension_failures
from offline_cli.scopes import Scope
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location

DAMAGE: Final = (ArithmeticError, EOFError, LookupError, MemoryError, TypeError, ValueError)
ROWS: Final = 1 << 16  # of a batch of Parquet


def arrow_schema_of(file: Location) -> pa.Schema:
    """The columns of an Arrow file. Raises BadData."""
    with arrow_failures(file), file.open() as stream:
        return _opened(stream)[0]


def record_batches(file: Location, scope: Scope, *, memory_limit: int) -> Iterator[pa.RecordBatch]:
    """All batches; `scope` owns the file while it is open. Raises BadData, MemoryLimitExceeded."""
    most = EpisodeLimit.within(memory_limit).most
    with scope.part() as held:
        with arrow_failures(file):
            batches = _opened(held.enter(file.open()))[1]
        while True:
            with arrow_failures(file):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # before its size is asked for, which follows offsets
                if batch.nbytes > most:
                    what = f"{batch.num_rows:,} rows of {batch.nbytes / 1e6:,.0f} MB, too much for the memory limit"
                    raise MemoryLimitExceeded(what, where=file.url, fix="raise --memory-limit")
            yield batch


def _opened(stream: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and batches of a file of Arrow, a stream of it, or Parquet, by the first bytes."""
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
    """Raise UnicodeDecodeError where the name of a column, or of a part of it, is not UTF-8."""
    for field in fields:
        assert field.name is not None
        _check_names([field.type.field(at) for at in range(field.type.num_fields)])


@contextmanager
def arrow_failures(file: Location) -> Iterator[None]:
    """Within it, what pyarrow raises for damaged bytes is BadData; failures of storage, which have a number, stay theirs."""
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
            fix = "copy or write the file again, or --on-error skip to read the others"
            details = {PROBLEM: "unreadable-file"}
            raise BadData(f"a damaged file: {lines[0][:300]}", where=file.url, fix=fix, details=details) from error


def without_leaves(array: Any, field: pa.Field, path: str, drop: Collection[str]) -> tuple[Any, pa.Field]:
    """A column of structs, called `path`, without the parts at some dotted paths; any other column as it is."""
    if not pa.types.is_struct(field.type) or not any(name.startswith(f"{path}.") for name in drop):
        return array, field
    parts = [(part, field.type.field(at)) for at, part in enumerate(array.flatten())]
    kept = [without_leaves(part, one, f"{path}.{one.name}", drop) for part, one in parts if f"{path}.{one.name}" not in drop]
    struct = pa.StructArray.from_arrays([part for part, _ in kept], fields=[one for _, one in kept])
    return struct, field.with_type(struct.type)
