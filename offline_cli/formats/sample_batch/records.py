"""The JSON of a line as the batches in it, by policy; refuses lines that are neither SampleBatch nor MultiAgentBatch.

Besides plain lines these are read: the wrapper `{"value": ...}` (text or object), lines without `type`, NaN and Infinity as
Python writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.sample_batch.files import Line
from offline_cli.json_documents import from_json
from offline_cli.tally import Tally

__all__ = ["FIX", "NEEDED", "batches_of", "is_batch", "parsed"]

SAMPLE_BATCH: Final = "SampleBatch"
MULTI_AGENT_BATCH: Final = "MultiAgentBatch"
POLICY_BATCHES: Final = "policy_batches"
NEEDED: Final = (Columns.OBS, Columns.ACTIONS)
"""Columns that every batch has."""
MAX_WRAPPERS: Final = 4
FIX: Final = "write the file again from its source, or --on-error skip to go on without the line"

START: Final = 1 << 16  # bytes of a line that are looked at where it cannot be parsed
TYPED: Final = re.compile(rb'\\?"type\\?"\s*:\s*\\?"(?:SampleBatch|MultiAgentBatch)\\?"')  # escaped within a wrapper's text
TYPED_START: Final = re.compile(rb'\s*\{\s*(?:"value"\s*:\s*"?\{\s*)?' + TYPED.pattern)
NAMED: Final = [re.compile(rb'"' + name.encode() + rb'\\?"\s*:') for name in NEEDED]


def is_batch(line: Line) -> bool:
    """Whether a line is a batch, or was one before it was cut: by its type, or by the columns that every batch has."""
    start = line.data[:START]
    if TYPED_START.match(start):
        return True
    try:
        record = parsed(line)
    except BadData:  # a line cut in half may still say what it was
        return bool(TYPED.search(start)) or POLICY_BATCHES.encode() in start or all(name.search(start) for name in NAMED)
    if not isinstance(record, dict):
        return False
    if record.get("type") is None:
        return POLICY_BATCHES in record or all(name in record for name in NEEDED)
    return record["type"] in (SAMPLE_BATCH, MULTI_AGENT_BATCH)


def batches_of(line: Line, value: Any, tally: Tally) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Each (policy, columns by name) of a line that holds `value`; the policy of a SampleBatch is None.

    Raises BadData, naming the line.
    """
    record = _record(line, value)
    kind = record.get("type")
    if kind is None and (POLICY_BATCHES in record or Columns.OBS in record):
        tally.assume("missing-type")
        kind = MULTI_AGENT_BATCH if POLICY_BATCHES in record else SAMPLE_BATCH
    if kind == SAMPLE_BATCH:
        yield None, record
    elif kind == MULTI_AGENT_BATCH:
        policies = record.get(POLICY_BATCHES)
        if not isinstance(policies, dict) or not all(isinstance(batch, dict) for batch in policies.values()):
            raise BadData("a MultiAgentBatch without policy_batches", where=line.where, fix=FIX)
        yield from policies.items()
    else:
        what = f"a line of type {kind!r}" if kind is not None else "a line without type and obs"
        raise BadData(f"{what}: neither SampleBatch nor MultiAgentBatch", where=line.where, fix=FIX)


def _record(line: Line, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadData(f"a line that holds a {type(value).__name__}, not an object", where=line.where, fix=FIX)
    return value


def parsed(line: Line) -> Any:
    """The line's value, taken out of its wrappers. Raises BadData, naming the line, where it is not whole JSON."""
    value = _parsed(line.data, line)
    for _ in range(MAX_WRAPPERS):
        if not isinstance(value, dict) or "value" not in value or "type" in value:
            break
        inner = value["value"]
        value = _parsed(inner.encode(), line) if isinstance(inner, str) else inner
    return value


def _parsed(data: bytes, line: Line) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as err:
        if b"NaN" in data or b"Infinity" in data:  # Python's own writer makes these, and no standard parser takes them
            try:
                return from_json(data)
            except ValueError:
                pass
        fix = FIX if line.whole else f"the writer was stopped in the middle of it: {FIX}"
        raise BadData(f"a line that is not whole JSON: {err}", where=line.where, fix=fix) from err
