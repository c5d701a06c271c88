"""JSON lines, or an array of objects, as Arrow tables block by block: a bad line has a place and a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import orjson
import pyarrow as pa

from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.memory_limits import room_for_data
from offline_cli.formats.source import Openable
from offline_cli.formats.tables.packing import damage, pieces_of, unpacked
from offline_cli.json_documents import deeper_than, from_json
from offline_cli.scopes import Scope

__all__ = ["json_tables"]

JSON_BLOCK: Final = 16 << 20
MAX_DEPTH: Final = 60  # Arrow takes structs and lists nested up to 64 deep
BOM: Final = b"\xef\xbb\xbf"
JSON_FIX: Final = "write one JSON object a line, or --on-error skip to leave out the line"
LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")  # may be beyond 64 bits, where orjson makes floats


def json_tables(file: Openable, memory_limit: int) -> Iterator[tuple[pa.Table | None, list[tuple[int, BadData, bytes]]]]:
    """Rows of JSON lines, or of an array of objects, block by block, and the lines that hold none: row, error, text.

    Raises BadData where the file breaks off, after the rows before that.
    """
    row = 0
    with damage(file.url), Scope() as scope:
        for lines in _blocks(unpacked(file, scope), file.url, room_for_data(memory_limit) // 8):
            rows: list[dict[str, Any]] = []
            bad: list[tuple[int, BadData, bytes]] = []
            for line in lines:
                if isinstance(line, bytes) and not line.strip():
                    continue
                try:
                    rows.append(_object(line, f"{file.url} row {row}"))
                except BadData as error:
                    bad.append((row, error, line if isinstance(line, bytes) else b""))
                row += 1
            yield (_table(rows) if rows else None), bad


def _blocks(stream: Any, url: str, most: int) -> Iterator[list[Any]]:
    """Lines by blocks, or all items of an array; the last line may lack its end."""
    rest, is_first = b"", True
    for piece in pieces_of(stream, JSON_BLOCK):
        data = piece
        if is_first:
            data, is_first = piece.removeprefix(BOM), False
            if data.lstrip()[:1] == b"[":
                yield _array(data, stream, url, most)
                return
        *lines, rest = (rest + data).split(b"\n")
        yield lines
        if len(rest) > max(JSON_BLOCK, most):
            what = f"a line of {len(rest) >> 20} MiB"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or write shorter lines")
    yield [rest]


def _array(data: bytes, stream: Any, url: str, most: int) -> list[Any]:
    for piece in pieces_of(stream, JSON_BLOCK):
        data += piece
        if len(data) > most:
            what = f"a JSON array of more than {most >> 20} MiB, which is read at once"
            raise MemoryLimitExceeded(what, where=url, fix="raise --memory-limit, or make lines of it: jq -c '.[]'")
    try:
        found = _parsed(data)
    except ValueError as error:
        raise BadData(f"no whole JSON: {error}", where=url, fix="write the file again from its source") from error
    return found if isinstance(found, list) else [found]


def _parsed(data: bytes) -> Any:
    """By orjson; by Python's parser where numbers are beyond 64 bits, or NaN and Infinity, as Python writes them."""
    if not LONG_INTEGER.search(data):
        with suppress(ValueError):
            return orjson.loads(data)
    return from_json(data)


def _object(line: Any, where: str) -> dict[str, Any]:
    try:
        value = _parsed(line) if isinstance(line, bytes) else line
    except ValueError as error:
        raise BadData(f"a line that is not whole JSON: {error}", where=where, fix=JSON_FIX) from error
    if deeper_than(value, MAX_DEPTH):
        raise BadData(f"a line nested deeper than {MAX_DEPTH}", where=where, fix=JSON_FIX)
    if not isinstance(value, dict):
        raise BadData(f"a line that holds a {type(value).__name__}, not an object", where=where, fix=JSON_FIX)
    return value


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    """An Arrow column, of texts where the values have no other type in common."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(texts, pa.large_string())
