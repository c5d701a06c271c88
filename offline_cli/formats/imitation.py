"""imitation's trajectories: a Hugging Face dataset on disk (Arrow streams), a row a trajectory, with T+1 observations.

Columns are `obs`, `acts`, `terminal`, `infos`, and `rews` where there are rewards. Infos are texts of jsonpickle, which makes
objects of whatever class a text names: they are never decoded, and are left out by name unless all are empty. A trajectory
that is not `terminal` was truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import tree_of
from offline_cli.formats.listing import Listing
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.reader import NO, SURE, OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, Source, SourceInfo
from offline_cli.formats.tables.arrow_messages import ArrowBound, arrow_batches, arrow_schema
from offline_cli.formats.tables.files import is_arrow_stream
from offline_cli.formats.tables.ids import source_hash
from offline_cli.formats.tables.packing import damage
from offline_cli.json_documents import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, OnError, Rejects, Tally

__all__ = ["ImitationSource", "open_imitation", "sniff_imitation"]

OBS, ACTS, TERMINAL, REWS, INFOS = "obs", "acts", "terminal", "rews", "infos"
NEEDED: Final = (OBS, ACTS, TERMINAL)
STATE: Final = "state.json"
ARROW: Final = ".arrow"
CHUNK_BYTES: Final = 64 << 20
ROWS: Final = 1 << 16
MAX_STATE: Final = 16 << 20  # bytes
UNDECODED: Final = "texts of jsonpickle, which are never decoded"
FIX: Final = "save it again with imitation.data.serialize.save, or --on-error skip"


@dataclass(slots=True)
class ImitationSource(FileSource):
    """Arrow streams in the order given."""

    format: ClassVar = "imitation"
    memory_limit: int = MEMORY_LIMIT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes, those of a record batch at a time."""
        self.done, number, prefix = 0, 0, f"{source_hash(self.files)}-"
        for file in self.files:
            row = 0
            try:
                for batch in self._batches(file):
                    reading = _Reading(batch, file.url, row, f"{prefix}", number, tally, rejects)
                    yield from reading.fragments(np.arange(batch.num_rows))
                    row, number = row + batch.num_rows, number + batch.num_rows
            except BadData as error:
                if rejects.on_error is OnError.FAIL:
                    raise
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()

    def _batches(self, file: Any) -> Iterator[pa.RecordBatch]:
        bound = ArrowBound(file.url, file.size(), self.memory_limit)
        chunk_bytes = min(CHUNK_BYTES, EpisodeLimit.within(self.memory_limit).most)
        with damage(file.url), self.scope.part() as held:
            stream = held.enter(file.open())
            is_stream = is_arrow_stream(stream.read(4))
            stream.seek(0)
            for batch, _ in arrow_batches(stream, None, chunk_bytes, ROWS, is_stream=is_stream, bound=bound):
                yield batch


def open_imitation(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadData where a file that `state.json` names is missing, or the columns are others."""
    arrow = _data_files(files)
    schema = _schema(arrow[0])
    lacking = [name for name in NEEDED if name not in schema.names]
    if lacking:
        fix = "save trajectories with imitation.data.serialize.save, or read a table of steps with --from table --mapping"
        raise BadData(f"no column {' or '.join(lacking)}: these are no trajectories", where=arrow[0].url, fix=fix)
    declared = SourceInfo(format=ImitationSource.format, location=context.location, action_scale=ENV_SCALE)
    return ImitationSource(arrow, context.location, declared, memory_limit=context.tables.memory_limit)


def sniff_imitation(listing: Listing) -> float:
    """Whether the first Arrow file has the columns of trajectories, which are lists. Raises BadData for a dataset on disk
    whose files are damaged or missing.
    """
    if listing.kind not in ("hf-arrow", "arrow"):
        return NO
    try:
        schema = _schema(_data_files(listing.data)[0])
    except BadData:
        if listing.kind == "arrow":  # a table, whose reader says what is wrong
            return NO
        raise
    is_nested = set(NEEDED) <= set(schema.names) and all(_is_list(schema.field(name).type) for name in (OBS, ACTS))
    return SURE if is_nested and pa.types.is_boolean(schema.field(TERMINAL).type) else NO


def _data_files(files: Sequence[Location]) -> list[Location]:
    """Those that `state.json` lists, in its order; without it all Arrow files. Raises BadData."""
    arrow = {file.name: file for file in files if file.name.endswith(ARROW)}
    states = [file for file in files if file.name == STATE]
    if not states:
        return list(arrow.values()) or list(files)
    state = states[0]
    try:
        if len(states) > 1 or state.size() > MAX_STATE:
            raise ValueError(f"{len(states)} datasets are here" if len(states) > 1 else "too large")
        listed = from_json(state.read_bytes())["_data_files"]
        names = [str(one["filename"]) for one in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise BadData(f"no list of data files: {error}", where=state.url, fix="name one dataset, saved by datasets") from error
    lost = next((name for name in names if name not in arrow), None)
    if lost is not None or not names:
        what = f"the data file {str(lost)[:80]!r} is missing" if names else "no data files"
        raise BadData(what, where=state.url, fix="copy the folder again")
    return [arrow[name] for name in dict.fromkeys(names)]


def _schema(file: Location) -> pa.Schema:
    with damage(file.url), file.open() as stream:
        is_stream = is_arrow_stream(stream.read(4))
        stream.seek(0)
        schema = arrow_schema(stream, is_stream=is_stream)
        assert schema.names is not None  # names that are not UTF-8 raise here
        return schema


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@dataclass(frozen=True, slots=True)
class _Reading:
    """The trajectories of one record batch."""

    batch: pa.RecordBatch
    url: str
    row: int  # number of its first row in the file
    prefix: str  # of ids
    number: int  # of its first trajectory in the source
    tally: Tally
    rejects: Rejects

    def fragments(self, rows: NDArray[np.int64]) -> Iterator[Fragments]:
        """These rows, as few batches as there are bad rows between them."""
        if not len(rows):
            return
        try:
            made = self._made(rows)
        except BadData as error:
            if len(rows) == 1:
                self.rejects.add(error)
                self.rejects.lose_episodes(Lost.UNREADABLE)
                return
            half = len(rows) // 2
            yield from self.fragments(rows[:half])
            yield from self.fragments(rows[half:])
            return
        yield Fragments(made, Origins((self.url,), np.zeros(len(rows), np.int64), self.row + rows))

    def _made(self, rows: NDArray[np.int64]) -> EpisodeBatch:
        table = self.batch.take(pa.array(rows))
        lengths = self._lengths(table, ACTS, rows)
        self._check(self._lengths(table, OBS, rows) - 1, lengths, "observations, less one,", rows)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        steps = int(starts[-1])
        rewards = np.zeros(steps)
        if REWS in table.schema.names:
            self._check(self._lengths(table, REWS, rows), lengths, "rewards", rows)
            rewards = np.asarray(self._values(table, REWS, starts, rows))
            if rewards.ndim != 1:
                raise BadEpisode("rewards that are no numbers", where=self._place(rows, 0), fix=FIX)
        if TERMINAL not in table.schema.names or table[TERMINAL].null_count or not pa.types.is_boolean(table[TERMINAL].type):
            raise BadEpisode("terminal is no flag", where=self._place(rows, 0), fix=FIX)
        terminal = np.asarray(table[TERMINAL].to_numpy(zero_copy_only=False))
        batch = EpisodeBatch(
            ids=tuple(f"{self.prefix}{self.number + int(row)}" for row in rows),
            starts=starts,
            obs=self._values(table, OBS, starts + np.arange(len(starts)), rows),
            actions=self._values(table, ACTS, starts, rows),
            rewards=rewards.astype(np.float64),
            terminated=terminal,
            truncated=~terminal,
        )
        self._count(table, steps)
        return batch

    def _count(self, table: pa.RecordBatch, steps: int) -> None:
        self.tally.rows_in += table.num_rows
        if REWS not in table.schema.names:
            self.tally.assume(MISSING_REWARDS, steps)
        for name in table.schema.names:
            if name == INFOS:
                if _is_list(table[name].type) and _are_empty(table[name].flatten()):
                    continue
                self.tally.drop_column(name, UNDECODED)
            elif name not in (*NEEDED, REWS):
                self.tally.drop_column(name, "no column of imitation's")

    def _lengths(self, table: pa.RecordBatch, name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        column = table[name] if name in table.schema.names else pa.nulls(table.num_rows)
        if not _is_list(column.type) or column.null_count:
            raise BadEpisode(f"column {name} is no list in each row", where=self._place(rows, 0), fix=FIX)
        return np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False)).astype(np.int64)

    def _check(self, have: NDArray[np.int64], want: NDArray[np.int64], what: str, rows: NDArray[np.int64]) -> None:
        bad = np.flatnonzero(have != want)
        if len(bad):
            at = int(bad[0])
            raise BadEpisode(f"{have[at]} {what} for {want[at]} actions", where=self._place(rows, at), fix=FIX)

    def _values(self, table: pa.RecordBatch, name: str, starts: NDArray[np.int64], rows: NDArray[np.int64]) -> Any:
        """(M, ...) of all trajectories, of which one begins at each of `starts`."""
        inner = table[name].flatten()

        def where(row: int) -> str:
            return self._place(rows, min(int(np.searchsorted(starts, row, side="right")) - 1, len(rows) - 1))

        return tree_of(inner, pa.field(name, inner.type), where=where)

    def _place(self, rows: NDArray[np.int64], at: int) -> str:
        return f"{self.url} row {self.row + int(rows[at])}"


def _are_empty(texts: pa.Array) -> bool:
    kind = texts.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return not len(texts) or (is_text and not texts.null_count and bool(pc.all(pc.equal(texts, pa.scalar("{}", kind))).as_py()))
