"""RLlib's episode recordings: one packed episode per row, in the required Parquet column `item`.

`episodes/codec` decodes many items at a time, across files, because RLlib writes thousands of files with few rows. Other
columns, which our own `episodes` format has, are not read.

An item may also be the state of a `MultiAgentEpisode` (`get_state`): its agents' episodes are read, which are separate states
in it (`agent_episodes`: pairs of agent and state). All items of a chunk must be of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.episodes.codec import BatchDecoder
from offline_cli.episodes.codec.arrays import pack, unpack_raw
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.parquet_files import Chunk, chunks
from offline_cli.formats.source import FileSource, Fragments, Origins, shares
from offline_cli.tally import Lost, Rejects, Tally

AGENTS: Final = b"agent_episodes"


@dataclass(slots=True)
class RllibEpisodesSource(FileSource):
    """Parquet files of packed episodes, in the order given. Episodes may be chunks (`t_started` > 0) of longer ones.

    Episodes have their own spaces, which are in the batches.
    """

    format: ClassVar = "rllib-episodes"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: batches in file order; a new batch begins where the structure changes."""
        self.done = 0
        decoder = BatchDecoder(rejects, tally)
        for chunk in chunks(
            self.files,
            rejects,
            columns=[Columns.ITEM],
            workers=self.read_options.workers,
            first_rows=self.read_options.limit,
            scope=self.scope,
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            items = _items(chunk, rejects)
            if items is None:
                continue
            if _are_of_several_agents(items):
                yield from self._of_agents(decoder, items, chunk)
            else:
                yield from self._decoded(decoder, items, chunk)

    def partitions(self, count: int) -> Sequence[RllibEpisodesSource]:
        """See `Source`: files are independent."""
        return [self.over(part) for part in shares(self.files, count)]

    def _of_agents(self, decoder: BatchDecoder, items: pa.ChunkedArray, chunk: Chunk) -> Iterator[Fragments]:
        """The episodes of all agents; items that are not multi-agent states are rejected."""
        own, rows = list[bytes](), list[int]()
        for row, item in enumerate(items):
            try:
                found = _agents_of(item.as_py(), chunk.where(row))
            except BadData as error:
                decoder.rejects.add(error, raw=item.as_py() or b"")
                decoder.rejects.lose_episodes(Lost.UNREADABLE)
                continue
            own += found
            rows += [row] * len(found)
        for batch in decoder.decode(own, where=lambda number: f"{chunk.where(rows[number])}, an agent's episode"):
            yield Fragments(batch)

    def _decoded(self, decoder: BatchDecoder, items: pa.ChunkedArray, chunk: Chunk) -> Iterator[Fragments]:
        done, before = 0, decoder.rejects.count
        for batch in decoder.decode(items, where=chunk.where):
            rows = np.arange(done, done + len(batch))
            exact = decoder.rejects.count == before  # rejected items shift the rows of the batch
            done += len(batch)
            yield Fragments(batch, Origins(chunk.files, chunk.file_of(rows), chunk.row_in_file(rows)) if exact else None)


def _are_of_several_agents(items: pa.ChunkedArray) -> bool:
    """Whether the first item is a multi-agent state; checking all would take as long as reading them."""
    first = next((item for item in items if item.is_valid), None)
    return first is not None and AGENTS in first.as_py()


def _agents_of(item: bytes | None, where: str) -> list[bytes]:
    """The packed states of the agents in a packed multi-agent state. Raises BadEpisode."""
    state = unpack_raw(item or b"", where=where)
    found = state.get(AGENTS.decode()) if isinstance(state, dict) else None
    pairs = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(pairs, list) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        what = "the item has no agent_episodes (pairs of agent and state), unlike other items of the file"
        fix = "pack the result of MultiAgentEpisode.get_state; write single-agent episodes to separate files"
        raise BadEpisode(what, where=where, fix=fix)
    return [pack(own) for _, own in pairs]


def _items(chunk: Chunk, rejects: Rejects) -> pa.ChunkedArray | None:
    """The packed episodes of a chunk; the decoder rejects nulls."""
    kind = chunk.table.schema.field(Columns.ITEM).type if Columns.ITEM in chunk.table.column_names else pa.null()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return chunk.table[Columns.ITEM]
    fix = f"give only files of packed episodes, with the column {Columns.ITEM}; convert other formats separately"
    error = BadData(f"there is no column {Columns.ITEM} of bytes", where=chunk.files[0], fix=fix)
    rejects.add(error, rows=chunk.table.num_rows)
    rejects.lose_episodes(Lost.UNREADABLE, chunk.table.num_rows)
    return None
