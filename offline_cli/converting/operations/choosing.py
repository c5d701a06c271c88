"""Which episodes an operation takes, from their plain columns, before a step is decoded.

* `Survey`: the plain columns of all episodes of an operation's sources, and a stream of those that are chosen. Datasets of ours
  are surveyed by their plain columns alone, and read with the rows of other episodes left out. Where that cannot do (other
  formats, ids that come twice, fragments, agents of packed episodes), all episodes are read for the survey, and again to be
  written: stitching alone knows what is an episode there.
* `top`, `drawn`, `parted`, `listed_ids`: parts of a choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.converting.operations import Operation, Share
from offline_cli.converting.reading import EpisodeStream
from offline_cli.datasets.reading import PLAIN_SCHEMA
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, NoData
from offline_cli.files.locations import Location
from offline_cli.formats.opening import OwnSource
from offline_cli.formats.source import Source

__all__ = ["NOWHERE", "Survey", "drawn", "listed_ids", "parted", "share_of", "surveyed", "top"]

OF_AGENTS: Final = frozenset({Columns.AGENT_ID, Columns.MODULE_ID})
NOWHERE: Final = -1  # the target of an episode that goes nowhere


# ---- all episodes ----


@dataclass(slots=True)
class Survey:
    """All episodes of the sources of an operation, in the order in which they are read."""

    operation: Operation
    table: Any  # pa.Table of PLAIN_SCHEMA, a row an episode
    cuts: list[list[int]] | None  # of each source, the episodes of each shard; None: the sources are read as a whole
    duplicates_dropped: int = 0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[Any]:
        """(E,) numbers of one column: length, return, terminated or truncated."""
        values: NDArray[Any] = self.table.column(name).to_numpy()
        return values

    def stream(self, goes_to: NDArray[np.int64]) -> tuple[EpisodeStream, Share]:
        """The episodes whose target `goes_to` (E,) is not NOWHERE, or more than these; and the target of each that is read."""
        chosen = goes_to != NOWHERE
        if self.cuts is None:
            return self.operation.stream(), _Sharing(self.table, np.arange(len(self)), goes_to)
        order = np.flatnonzero(chosen)
        return self.operation.stream(list(_of(self.operation.sources, self.cuts, chosen))), _Sharing(self.table, order, goes_to)


def surveyed(operation: Operation, columns: Collection[str] = ()) -> Survey:
    """The survey of the sources; `columns`: names of those that decide. Raises NoData, and what reading raises."""
    packed = any(manifest.format == "episodes" for manifest in operation.manifests)
    if operation.all_own and not (packed and OF_AGENTS.intersection(columns)):
        found = _by_plain_columns(operation)
        if found is not None:
            return found
    with operation.stream(only_looking=True) as stream:
        tables = [PLAIN_SCHEMA.empty_table(), *map(_plain, stream)]
        return Survey(operation, pa.concat_tables(tables), None, stream.tally.duplicates_dropped)


def _by_plain_columns(operation: Operation) -> Survey | None:
    """The survey by the plain columns of datasets; None where these do not tell what an episode is."""
    tables, cuts = [PLAIN_SCHEMA.empty_table()], list[list[int]]()
    for source in operation.sources:
        assert isinstance(source, OwnSource)
        cuts.append([])
        with source.dataset.plain(memory_limit=operation.tables.memory_limit) as shards:
            for table in shards:
                if table is None or any(table.column(name).null_count for name in PLAIN_SCHEMA.names if name not in OF_AGENTS):
                    return None
                tables.append(table)
                cuts[-1].append(table.num_rows)
    table = pa.concat_tables(tables)
    if not table.num_rows:
        where = ", ".join(place.url for place in operation.places)
        raise NoData("no episode is in the source", where=where, fix="check that the recording wrote any steps")
    ends = [table.column(name).to_numpy() for name in (Columns.TERMINATED, Columns.TRUNCATED)]
    is_whole = (table.column(Columns.LENGTH).to_numpy() > 0) & (ends[0] | ends[1])
    ids = table.column(Columns.EPS_ID)
    if not is_whole.all() or len(ids.unique()) < len(ids):
        return None
    return Survey(operation, table, cuts)


def _plain(batch: EpisodeBatch) -> Any:
    """The plain columns of a batch."""
    nobody = (None,) * len(batch)
    columns = {
        Columns.EPS_ID: pa.array(batch.ids, pa.string()),
        Columns.LENGTH: batch.lengths,
        Columns.RETURN: batch.returns,
        Columns.TERMINATED: np.ascontiguousarray(batch.terminated),
        Columns.TRUNCATED: np.ascontiguousarray(batch.truncated),
        Columns.AGENT_ID: pa.array(batch.agent_ids or nobody, pa.string()),
        Columns.MODULE_ID: pa.array(batch.module_ids or nobody, pa.string()),
    }
    return pa.table([columns[name] for name in PLAIN_SCHEMA.names], schema=PLAIN_SCHEMA)


def _of(sources: Sequence[Source], cuts: Sequence[Sequence[int]], chosen: NDArray[np.bool_]) -> Iterator[Source]:
    """The sources, of which only the episodes in `chosen` are read."""
    first = 0
    for source, sizes in zip(sources, cuts, strict=True):
        assert isinstance(source, OwnSource)
        last = first + sum(sizes)
        parts = tuple(np.split(chosen[first:last], np.cumsum(sizes)[:-1]))
        first = last
        yield replace(source, dataset=replace(source.dataset, chosen=parts if sizes else ()))


@dataclass(slots=True)
class _Sharing:
    """Says where the episodes of a stream go: a `Share`. They come in the order of the survey; some may have been set aside."""

    table: Any  # of the survey
    order: NDArray[np.int64]  # of the episodes that are read, their numbers in the survey
    goes_to: NDArray[np.int64]  # (E,) of all
    _ids: Any = field(init=False)
    _next: int = 0  # in `order`

    def __post_init__(self) -> None:
        self._ids = self.table.column(Columns.EPS_ID).combine_chunks()

    def __call__(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Raises BadData where an episode is not the one that was surveyed."""
        rows = self.order[self._next : self._next + len(batch)]
        if self._ids.take(pa.array(rows)).to_pylist() != list(batch.ids):
            found = pc.index_in(pa.array(batch.ids, pa.string()), self._ids.take(pa.array(self.order[self._next :])))
            if found.null_count:
                unknown = batch.ids[int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])]
                raise _changed(f"episode {unknown} was not there when the sources were looked through")
            rows = self.order[self._next + found.to_numpy()]
        self._next = int(np.searchsorted(self.order, rows[-1])) + 1
        self._check(batch, self.table.take(pa.array(rows)))
        return self.goes_to[rows].copy()

    def _check(self, batch: EpisodeBatch, said: Any) -> None:
        """Raise BadData where the episodes are not what their plain columns said."""
        have = (batch.lengths, batch.returns, batch.terminated, batch.truncated)
        for name, values in zip((Columns.LENGTH, Columns.RETURN, Columns.TERMINATED, Columns.TRUNCATED), have, strict=True):
            same = np.isclose(values, said.column(name).to_numpy(), rtol=1e-9, equal_nan=True)
            if not same.all():
                row = int(np.flatnonzero(~same)[0])
                what = f"column {name!r} says {said.column(name)[row]} of episode {batch.ids[row]}, its steps {values[row]}"
                raise _changed(what)


def _changed(what: str) -> BadData:
    fix = "run the command again; if it ends in the same way, offline-cli validate names what is wrong with the source"
    return BadData(what, where="the sources", fix=fix)


# ---- parts of a choice ----


def top(returns: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """(E,) the `fraction` of the episodes with the highest returns, at least one; the first of equal ones, and none of NaN."""
    order = np.argsort(-returns, kind="stable")[: share_of(len(returns), fraction)]
    found = np.zeros(len(returns), np.bool_)
    found[order] = True
    return found & ~np.isnan(returns)


def share_of(episodes: int, fraction: float) -> int:
    """How many episodes a fraction of them is: the nearest whole number, at least 1."""
    return max(1, int(np.floor(episodes * fraction + 0.5)))


def drawn(episodes: int, seed: int) -> NDArray[np.int64]:
    """(E,) their numbers in random order, the same for a seed."""
    return np.argsort(np.random.default_rng(seed).random(episodes), kind="stable")


def parted(fractions: Sequence[float], episodes: int) -> list[int]:
    """How many episodes each part has: exact in sum, by the largest remainder; the first of equal ones."""
    quotas = np.array(fractions) * episodes
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    left = round(float(quotas.sum())) - int(counts.sum())
    for part in np.argsort(-(quotas - counts), kind="stable")[: max(0, left)]:
        counts[part] += 1
    return [int(count) for count in counts]


def listed_ids(place: Location) -> list[str]:
    """The ids in a file, one a line, each once. Raises BadData for no UTF-8, NoData where there is none, StorageNotFound."""
    try:
        text = place.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(f"not UTF-8 text: {error}", where=place.url, fix="one id a line, in UTF-8") from error
    ids = list(dict.fromkeys(line for line in text.replace("\r\n", "\n").split("\n") if line.strip()))
    if not ids:
        raise NoData("no id is in the file", where=place.url, fix="one id a line")
    return ids
