"""JSON lines, an object a row, as record batches; a line that is not an object is rejected by itself.

Blocks of lines are parsed at once. Only a block in which something is odd (NaN, a broken line, values of two kinds in one
column) is parsed line by line; where values have no common type they become text, and the column decides what is a number.

`wholes`, `holding`: names of flat columns: `state.x` is the part `x` of the struct `state`, or a column of that very name.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData, UnsafeData
from offline_cli.formats.rllib.json_lines import MAX_LINE_BYTES
from offline_cli.json_documents import deeper_than, from_json

__all__ = ["holding", "json_at_once", "json_batches", "json_schemas", "wholes"]

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
BRACKETS, OPENING = b"[]{}", b"[{"
NO_BRACKETS = bytes(set(range(256)) - set(BRACKETS + b"\n"))
NOT_OPENING = bytes(set(range(256)) - set(OPENING + b"\n"))
WALKED_BYTES = 1 << 20  # of lines whose keys are scanned together
LONG_INTEGER = re.compile(rb"[0-9]{19}")  # may be beyond 64 bits, where orjson makes floats
PART_BYTES = 1 << 16  # read at once
ODD_BYTES = 1 << 18  # of lines that are parsed one by one where one of them is odd
BROKEN = 1000  # broken lines that are passed on at once: an error is made for each
NO_ROWS = pa.RecordBatch.from_arrays([], names=[])
MAX_DEPTH = 60  # Arrow takes structs and lists nested up to 64 deep
FIX = "write one JSON object a line (jq -c '.[]' makes lines of an array), or --on-error skip to leave out the line"

Broken = tuple[int, BadData, bytes]  # number of the row, what is wrong, its text
Parsed = tuple[pa.RecordBatch, NDArray[np.int64], Sequence[Broken]]


def wholes(name: str) -> Iterator[str]:
    """The column itself, and the structs that it may be a part of."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def holding(names: Iterable[str], flat: Collection[str] | None) -> list[str]:
    """Those of `names`, in their order, that hold any of the columns `flat`; all where that is None."""
    if flat is None:
        return list(names)
    wanted = {whole for name in flat for whole in wholes(name)}
    return [name for name in names if name in wanted]


def json_schemas(stream: Any, url: str, line_limit: int = MAX_LINE_BYTES) -> Iterator[pa.Schema]:
    """The keys of all lines, block by block: the last line may have the first value of a key."""
    any_row = False
    for block in _blocks(stream, WALKED_BYTES, url, line_limit):
        schema = _inferred(block)
        any_row |= schema is not None
        first_broken: BadData | None = None
        for batch, _, broken in () if schema is not None else _parsed(block, 0, url):
            any_row |= batch.num_rows > 0
            first_broken = first_broken or (broken[0][1] if broken else None)
            yield batch.schema
        if not any_row and first_broken is not None:
            raise first_broken
        any_row = True
        if schema is not None:
            yield schema


def _inferred(block: bytes) -> pa.Schema | None:
    """Without making columns of the values, which takes twice as long; None where these may differ.

    An object beside a number is inferred as an object, and cannot be read as one.
    """
    if _nested_deeply(block):
        return None
    import polars as pl

    try:
        kinds = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect_schema()
        schema = pl.DataFrame(schema=kinds).to_arrow().schema
    except (pl.exceptions.PolarsError, pa.ArrowInvalid):
        return None
    return None if any(map(pa.types.is_struct, schema.types)) else schema


def json_batches(
    stream: Any, url: str, block_bytes: int, columns: Collection[str] | None, line_limit: int = MAX_LINE_BYTES
) -> Iterator[Parsed]:
    """(batch, numbers of its rows, lines that could not be read); rows are the lines that are not blank, counted from 0."""
    row = 0
    for block in _blocks(stream, block_bytes, url, line_limit):
        for batch, rows, broken in _parsed(block, row, url):
            row += batch.num_rows + len(broken)
            yield batch.select(holding(batch.schema.names, columns)), rows, broken


def json_at_once(data: bytes, columns: Collection[str] | None = None) -> pa.Table | None:
    """All rows of a small file, for which Polars takes several times as long; None where something is odd."""
    try:
        rows = [_object(line, "") for line in data.splitlines() if line.strip()]
        if data.count(b":") != sum(map(len, rows)):  # a key twice, of which Polars takes the first; or objects within objects
            return None
        names = holding(dict.fromkeys(name for row in rows for name in row), columns)
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names}) if names else None
    except (BadData, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def _blocks(stream: Any, block_bytes: int, url: str, line_limit: int) -> Iterator[bytes]:
    """Whole lines. Raises what reading raises, after all lines that came before."""
    rest: list[bytes] = []  # joined once: a line may be a thousand blocks long
    failed: Exception | None = None
    while failed is None:
        block, failed = _read(stream, block_bytes)
        if not block:
            break
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, block[:cut]])
            rest = []
        rest.append(block[cut:])
        if sum(map(len, rest)) > line_limit:
            raise UnsafeData(f"a line of more than {line_limit >> 20} MiB", where=url, fix=FIX)
    if failed is not None:
        raise failed
    last = b"".join(rest)
    if last.strip():
        yield last


def _read(stream: Any, size: int) -> tuple[bytes, Exception | None]:
    """The next bytes, and why there are no more of them; in parts, of which only the one that cannot be read is lost."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := bytes(stream.read(min(size, PART_BYTES)))):
            parts.append(part)
            size -= len(part)
    except Exception as error:  # noqa: BLE001  raised after the lines before it
        return b"".join(parts), error
    return b"".join(parts), None


def _parsed(block: bytes, first: int, url: str) -> Iterator[Parsed]:
    """The rows of whole lines, counted from `first`; line by line only those near a line where something is odd."""
    at_once = _parsed_at_once(block, first)
    if at_once is not None:
        yield at_once
        return
    for part in _blocks(io.BytesIO(block), ODD_BYTES, url, len(block)):
        at_once = _parsed_at_once(part, first)
        for batch, rows, broken in [at_once] if at_once is not None else _line_by_line(part, first, url):
            first += batch.num_rows + len(broken)
            yield batch, rows, broken


def _parsed_at_once(block: bytes, first: int) -> Parsed | None:
    """None where that cannot be done."""
    if _nested_deeply(block):
        return None
    import polars as pl  # takes 50 MiB and a tenth of a second, which other tables save

    try:
        table = pl.read_ndjson(block, infer_schema_length=None).to_arrow()
    except (pl.exceptions.PolarsError, pa.ArrowInvalid):  # the second: integers of 64 bits without a sign
        return None
    batch = next(iter(table.combine_chunks().to_batches()), NO_ROWS)
    return batch, np.arange(first, first + batch.num_rows), ()


def _nested_deeply(block: bytes) -> bool:
    """Whether a line is nested deeper than `MAX_DEPTH`; at 600 objects Polars ends the whole process.

    Only lines with that many brackets are checked again, without their texts.
    """
    suspects = [line for line in block.split(b"\n") if len(line) > MAX_DEPTH] if _many_brackets(block) else ()
    return any(_depth(line) > MAX_DEPTH for line in suspects)


def _many_brackets(block: bytes) -> bool:
    return max(map(len, block.translate(None, NOT_OPENING).split(b"\n"))) > MAX_DEPTH


def _depth(line: bytes) -> int:
    brackets = np.frombuffer(STRING.sub(b"", line).translate(None, NO_BRACKETS), np.uint8)
    opens = np.isin(brackets, np.frombuffer(OPENING, np.uint8))
    return int(np.where(opens, 1, -1).cumsum().max(initial=0))


def _line_by_line(block: bytes, first: int, url: str) -> Iterator[Parsed]:
    """At most `BROKEN` broken lines at once."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    broken: list[Broken] = []
    for number, line in enumerate((line for line in block.splitlines() if line.strip()), first):
        try:
            rows.append(_object(line, f"{url} row {number}"))
            numbers.append(number)
        except BadData as error:
            broken.append((number, error, line))
            if len(broken) == BROKEN:
                yield _batch_of(rows), np.array(numbers, np.int64), broken
                rows, numbers, broken = [], [], []
    yield _batch_of(rows), np.array(numbers, np.int64), broken


def _batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.RecordBatch.from_arrays([_column([row.get(name) for row in rows]) for name in names], names=names)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = from_json(line) if LONG_INTEGER.search(line) else orjson.loads(line)
    except ValueError as error:
        try:
            value = from_json(line)  # NaN and Infinity, as Python writes them
        except ValueError:
            raise BadData(f"a line that is not whole JSON: {error}", where=where, fix=FIX) from error
    if deeper_than(value, MAX_DEPTH):
        raise BadData(f"a line nested deeper than {MAX_DEPTH}", where=where, fix=FIX)
    if not isinstance(value, dict):
        raise BadData(f"a line that holds a {type(value).__name__}, not an object", where=where, fix=FIX)
    return value


def _column(values: list[Any]) -> pa.Array:
    """An Arrow column, of texts where the values have no other type in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
