"""RLlib's episode recordings: one packed episode per row, in Parquet column `item`, which is required.

The bytes are decoded by `episodes/codec`, many items at a time across files, because RLlib writes thousands of files of a few
rows. Other columns, which our own `episodes` format has, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.episodes.codec import BatchDecoder
from offline_cli.errors import BadData
from offline_cli.formats.parquet_files import Chunk, chunks
from offline_cli.formats.source import FileSource, Fragments, Origins, shares
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["RllibEpisodesSource"]


@dataclass(slots=True)
class RllibEpisodesSource(FileSource):
    """Parquet files of packed episodes, in the order given; they may be pieces (`t_started` > 0) of longer ones.

    Each episode brings its own spaces: see the batches.
    """

    format: ClassVar = "rllib-episodes"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Batches of the episodes in file order, a new one where their structure changes."""
        self.done = 0
        decoder = BatchDecoder(rejects, tally)
        for chunk in chunks(
            self.files,
            rejects,
            columns=[Columns.ITEM],
            workers=self.read_options.workers,
            first_rows=self.read_options.limit,
            trusted=self.trusted,
            scope=self.scope,
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            items = _items(chunk, rejects)
            if items is not None:
                yield from self._decoded(decoder, items, chunk)

    def partitions(self, count: int) -> Sequence[RllibEpisodesSource]:
        """See `Source`: each file is complete by itself."""
        return [self.over(part) for part in shares(self.files, count)]

    def _decoded(self, decoder: BatchDecoder, items: pa.ChunkedArray, chunk: Chunk) -> Iterator[Fragments]:
        done, before = 0, decoder.rejects.count
        for batch in decoder.decode(items, where=chunk.where):
            rows = np.arange(done, done + len(batch))
            exact = decoder.rejects.count == before  # an item set aside leaves no trace in the batch
            origins = Origins(chunk.files, chunk.file_of(rows), chunk.row_in_file(rows)) if exact else None
            done += len(batch)
            yield Fragments(batch, origins)


def _items(chunk: Chunk, rejects: Rejects) -> pa.ChunkedArray | None:
    """The packed episodes of a chunk; the decoder refuses nulls among them by place."""
    kind = chunk.table.schema.field(Columns.ITEM).type if Columns.ITEM in chunk.table.column_names else pa.null()
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        rejects.add(
            BadData(
                f"no column {Columns.ITEM} of bytes",
                where=chunk.files[0],
                fix=f"give files of packed episodes with the column {Columns.ITEM}, and files of other formats by themselves",
            ),
            rows=chunk.table.num_rows,
        )
        rejects.lose_episodes(Lost.UNREADABLE, chunk.table.num_rows)
        return None
    return chunk.table[Columns.ITEM]
