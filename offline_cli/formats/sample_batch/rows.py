"""The JSON of a line as the batches in it, by policy; and the steps of one policy in some lines, as arrays.

* `parsed`, `batches_of`: lines that are neither SampleBatch nor MultiAgentBatch raise. Besides plain lists these are read: the
  wrapper `{"value": ...}` (text or object), lines without `type`, NaN and Infinity as Python writes them.
* `PolicyRows`: the steps of one policy, independent of how their lines were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.sample_batch.files import Line
from offline_cli.formats.sample_batch.values import Column
from offline_cli.json_documents import from_json
from offline_cli.tally import Tally
from offline_cli.trees import map_leaves

__all__ = ["FIX", "NEEDED", "LinePlace", "PolicyRows", "batches_of", "in_line_order", "is_batch", "parsed"]

SAMPLE_BATCH: Final = "SampleBatch"
MULTI_AGENT_BATCH: Final = "MultiAgentBatch"
POLICY_BATCHES: Final = "policy_batches"
NEEDED: Final = (Columns.OBS, Columns.ACTIONS)
"""Columns that every batch has."""
MAX_WRAPPERS: Final = 4
FIX: Final = "write the file again from its source, or --on-error skip to leave out the line"

START: Final = 1 << 16  # bytes of a line that are searched where it cannot be parsed
TYPED: Final = re.compile(rb'\\?"type\\?"\s*:\s*\\?"(?:SampleBatch|MultiAgentBatch)\\?"')  # escaped within a wrapper's text
TYPED_START: Final = re.compile(rb'\s*\{\s*(?:"value"\s*:\s*"?\{\s*)?' + TYPED.pattern)
NAMED: Final = [re.compile(rb'"' + name.encode() + rb'\\?"\s*:') for name in NEEDED]


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The place of a line."""

    number: int  # in its group of lines, from 0
    where: str  # for messages
    nbytes: int


@dataclass(slots=True)
class PolicyRows:
    """The N steps of one policy in L lines that are consecutive in a file, in their order."""

    policy: str | None  # None: SampleBatch lines, which name none
    lines: tuple[LinePlace, ...]  # (L,)
    starts: NDArray[np.int64]  # (L+1,): the steps of line i are starts[i]:starts[i+1]; none is empty but in a single line
    columns: dict[str, Column]  # obs, actions, new_obs if there, and extra model outputs by name; leaves (N, ...)
    rewards: NDArray[np.float64]  # (N,)
    terminateds: NDArray[np.bool_]  # (N,)
    truncateds: NDArray[np.bool_]  # (N,)
    eps_id: NDArray[Any] | None  # (N,) int64 or text
    agent_index: NDArray[Any]  # (N,) int64 or text
    t: NDArray[np.int64] | None  # (N,)
    infos: list[Any] | None  # (N,) of the observation that each step led to; None: all empty
    lost_before: str = ""  # where lines were lost right before the first one, of unknown episodes

    @property
    def nbytes(self) -> int:
        """Of the lines."""
        return sum(line.nbytes for line in self.lines)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.rewards)

    def take(self, chosen: NDArray[Any]) -> PolicyRows:
        """The rows of that index array or mask, in its order, which keeps each line's rows together."""
        line = np.repeat(np.arange(len(self.lines)), np.diff(self.starts))[chosen]
        starts = np.searchsorted(line, np.arange(len(self.starts)))
        return self._part(chosen, self.lines, starts, self.lost_before)

    def by_line(self) -> Iterator[PolicyRows]:
        """Each line by itself."""
        if len(self.lines) == 1:
            yield self
            return
        lost_before = self.lost_before
        for line, (start, stop) in zip(self.lines, pairwise(self.starts.tolist()), strict=True):
            part = self._part(slice(start, stop), (line,), np.array([0, stop - start]), lost_before)
            part.infos = part.infos if part.infos and any(part.infos) else None
            yield part
            lost_before = ""

    def _part(
        self, chosen: NDArray[Any] | slice, lines: tuple[LinePlace, ...], starts: NDArray[np.int64], lost_before: str
    ) -> PolicyRows:
        def of(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[chosen]

        columns = {
            name: Column(map_leaves(of, column.tree), column.typed, column.nulls) for name, column in self.columns.items()
        }
        return PolicyRows(
            policy=self.policy,
            lines=lines,
            starts=starts,
            columns=columns,
            rewards=self.rewards[chosen],
            terminateds=self.terminateds[chosen],
            truncateds=self.truncateds[chosen],
            eps_id=of(self.eps_id),
            agent_index=self.agent_index[chosen],
            t=of(self.t),
            infos=None if self.infos is None else [self.infos[row] for row in np.arange(self.rows)[chosen]],
            lost_before=lost_before,
        )


def in_line_order(parts: Iterable[PolicyRows]) -> list[PolicyRows]:
    """Each line of each of `parts` by itself, in the order of the lines."""
    return sorted(chain.from_iterable(part.by_line() for part in parts), key=lambda part: part.lines[0].number)


def is_batch(line: Line) -> bool:
    """Whether a line is a batch, or was one before it was cut: by its type, or by the columns that every batch has."""
    start = line.data[:START]
    if TYPED_START.match(start):
        return True
    try:
        record = parsed(line)
    except BadData:  # a line cut in half may still show its type
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
    """The line's value, without its wrappers. Raises BadData, naming the line, where it is not whole JSON."""
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
