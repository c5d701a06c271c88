"""Files of SampleBatch JSON as a source of fragments; refuses a line that cannot be read whole, and goes on with the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.file_source import FileSource
from offline_cli.formats.sample_batch.blocks import Block
from offline_cli.formats.sample_batch.files import Line, lines_of
from offline_cli.formats.sample_batch.ids import Identifier
from offline_cli.formats.sample_batch.lines import LineReader, PolicyRows
from offline_cli.formats.sample_batch.settling import Settlement
from offline_cli.tally import Rejects, Tally

__all__ = ["SampleBatchSource"]

LOOKAHEAD_BYTES: Final = 64 << 20  # of lines that dtypes are settled on: RLlib's writer starts a new file after as many
BLOCK_BYTES: Final = 16 << 20  # of arrays in one batch
TOGETHER_BYTES: Final = 1 << 20  # of lines whose numbers become arrays together; parsed, they can take 30 times as much


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    The spaces, where the caller knows them, tell Tuples from lists of rows and give plain lists their dtypes.
    """

    format: str = "sample-batch"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[EpisodeBatch]:
        """Runs of rows as they stand, a policy at a time; see `Source.fragments`.

        A line that cannot be read goes to `rejects` whole, and reading goes on with the next one.
        """
        self.done = 0
        settlement = Settlement(tally, self.observation_space, self.action_space)
        blocks: dict[str | None, Block] = {}
        for line, rows in _settled(self._rows(tally, rejects), settlement):
            block = blocks.setdefault(rows.policy, Block(rows.policy))
            trees = settlement.trees_of(rows)
            if block.rows and (block.nbytes > BLOCK_BYTES or not block.takes(rows, trees)):
                yield self._flushed(block, settlement, tally, rejects)
            block.add(rows, trees, line)
        for block in blocks.values():
            if block.rows:
                yield self._flushed(block, settlement, tally, rejects)

    def _rows(self, tally: Tally, rejects: Rejects) -> Iterator[tuple[Line, PolicyRows]]:
        reader = LineReader(tally, self.observation_space, self.action_space)
        identifier = Identifier(tally)
        losses: list[str] = []
        told: dict[str | None, int] = {}  # by policy: how many of the losses its rows have been marked with
        for lines in self._together(rejects, losses):
            for line, found in zip(lines, reader.read(lines), strict=True):
                tally.rows_in += 1
                if isinstance(found, BadData):
                    rejects.add(found, raw=line.data)
                    losses.append(found.where)
                    continue
                for rows in found:
                    if told.get(rows.policy, 0) < len(losses):
                        rows.lost_before, told[rows.policy] = losses[-1], len(losses)
                    yield line, identifier.identify(rows, line)

    def _together(self, rejects: Rejects, losses: list[str]) -> Iterator[list[Line]]:
        """The lines of all files, a few of one file at a time.

        Where some cannot be read at all, their place is added to `losses` once the lines before them have been worked on.
        """
        for file in self.files:
            before = self.done
            lines, waiting, size = lines_of(file, rejects), list[Line](), 0
            while True:
                known = rejects.count
                try:
                    line = next(lines, None)
                except Exception:
                    if waiting:
                        yield waiting
                    raise
                is_lost = rejects.count != known
                if waiting and (line is None or is_lost or size + len(line.data) > TOGETHER_BYTES):
                    yield waiting
                    waiting, size = [], 0
                if is_lost:
                    losses.append(file.url)
                if line is None:
                    break
                waiting.append(line)
                size += len(line.data)
                self.done = before + line.position

    def _flushed(self, block: Block, settlement: Settlement, tally: Tally, rejects: Rejects) -> EpisodeBatch:
        batch, self.places = block.flush(settlement, tally, rejects)
        return batch


def _settled(incoming: Iterator[tuple[Line, PolicyRows]], settlement: Settlement) -> Iterator[tuple[Line, PolicyRows]]:
    """The same, once the first ones have been looked at together."""
    waiting: deque[tuple[Line, PolicyRows]] = deque()
    nbytes = 0
    for line, rows in incoming:
        settlement.observe(rows)
        waiting.append((Line(b"", line.file, line.number), rows))
        nbytes += len(line.data)
        if nbytes > LOOKAHEAD_BYTES:
            settlement.settle()
            while waiting:
                yield waiting.popleft()
    settlement.settle()
    yield from waiting
