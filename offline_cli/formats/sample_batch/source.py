"""Files of SampleBatch JSON as a source of fragments; refuses a line that cannot be read whole, and goes on with the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from offline_cli.engines.processes import helpers, mapped
from offline_cli.errors import BadData
from offline_cli.formats.sample_batch.blocks import Block, nbytes_of
from offline_cli.formats.sample_batch.files import Line, LineGroup, grouped
from offline_cli.formats.sample_batch.groups import GroupReader, GroupRows
from offline_cli.formats.sample_batch.rows import PolicyRows, in_line_order
from offline_cli.formats.sample_batch.settling import Identifier, Settlement
from offline_cli.formats.source import FileSource, Fragments, ReadOptions
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["SampleBatchSource"]

LOOKAHEAD_BYTES: Final = 64 << 20  # of lines that dtypes are settled on: RLlib's writer starts a new file after as many
FEW: Final = 1000  # episodes, for which no process is worth starting
BLOCK_BYTES: Final = 16 << 20  # of arrays in one batch


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    The spaces, where the caller knows them, tell Tuples from lists of rows and give plain lists their dtypes.
    """

    format: ClassVar = "sample-batch"
    processes: int = 0  # that read lines, beside this one

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. JSON has neither tuples nor dtypes: they are those of the spaces, where these are known."""
        self.read_options = options
        if options.spaces is not None:
            self.info = replace(self.info, observation_space=options.spaces[0], action_space=options.spaces[1])
        few = options.limit is not None and options.limit < FEW
        self.processes = 0 if few else helpers(options.workers, self.size)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as they stand, a policy at a time; see `Source.fragments`.

        A line that cannot be read goes to `rejects` whole, and reading goes on with the next one.
        """
        self.done = 0
        settlement = Settlement(tally, *self.info.spaces)
        blocks: dict[str | None, Block] = {}
        ended = 0
        for together in _settled(self._rows(tally, rejects), settlement, self.read_options.limit):
            for rows in together if _leave_room(together, blocks, settlement) else in_line_order(together):
                block = blocks.setdefault(rows.policy, Block(rows.policy))
                trees = settlement.trees_of(rows)
                if block.rows and (block.nbytes > BLOCK_BYTES or not block.takes(rows, trees)):
                    yield block.flush(settlement, tally, rejects)
                block.add(rows, trees)
            ended += _ended(together)
            if self.read_options.limit is not None and ended >= self.read_options.limit:  # the caller may have all it wants
                yield from (block.flush(settlement, tally, rejects) for block in blocks.values() if block.rows)
        for block in blocks.values():
            if block.rows:
                yield block.flush(settlement, tally, rejects)

    def _rows(self, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows]]:
        """The rows of all lines with their ids, those of a few lines at a time."""
        identifier = Identifier(tally)
        losses, last_loss = 0, ""
        told: dict[str | None, int] = {}  # by policy: how many of the losses its rows have been marked with
        for lines, group in self._groups():
            self.done = lines.done
            lines.rejects.tell(rejects)
            if lines.lost:
                losses, last_loss = losses + len(lines.lost), lines.lost[-1]
                rejects.lose_episodes(Lost.UNREADABLE, len(lines.lost))
            tally.rows_in += len(lines.lines)
            tally.add(group.tally)
            together: list[PolicyRows] = []
            for number, found in group.found:
                line = lines.lines[number]
                if isinstance(found, BadData):
                    yield together
                    together = []
                    rejects.add(found, raw=line.data)
                    rejects.lose_episodes(Lost.UNREADABLE)
                    losses, last_loss = losses + 1, found.where
                    continue
                if told.get(found.policy, 0) < losses:
                    found.lost_before, told[found.policy] = last_loss, losses
                together.append(identifier.identify(found, line))
            yield together

    def _groups(self) -> Iterator[tuple[LineGroup, GroupRows]]:
        """All lines, a few at a time, and what is in them; other processes help to read that."""
        reader = GroupReader(*self.info.spaces)
        waiting: deque[LineGroup] = deque()
        held = self.scope.part()

        def lines() -> Iterator[list[Line]]:
            for group in grouped(self.files, held):
                waiting.append(group)
                yield group.lines

        with held:
            for rows in held.enter(mapped(reader.read, lines(), workers=self.processes, size=_nbytes)):
                yield waiting.popleft(), rows


def _nbytes(lines: list[Line]) -> int:
    return sum(len(line.data) for line in lines)


def _ended(together: Sequence[PolicyRows]) -> int:
    """How many episodes end in these rows."""
    return sum(int(np.count_nonzero(rows.terminateds | rows.truncateds)) for rows in together)


def _settled(incoming: Iterator[list[PolicyRows]], settlement: Settlement, limit: int | None) -> Iterator[list[PolicyRows]]:
    """The rows, once the first ones have been looked at together; line by line where a line changes what holds.

    The first ones are those of LOOKAHEAD_BYTES, or of `limit` episodes.
    """
    waiting: deque[list[PolicyRows]] = deque()
    nbytes = ended = 0
    for together in incoming:
        after = nbytes + sum(rows.nbytes for rows in together)
        is_looked_ahead = nbytes > LOOKAHEAD_BYTES or after <= LOOKAHEAD_BYTES
        ended += _ended(together)
        is_one = is_looked_ahead and all(map(settlement.takes_together, together))
        for part in [together] if is_one else [[rows] for rows in in_line_order(together)]:
            for rows in part:
                settlement.observe(rows)
                nbytes += rows.nbytes
            waiting.append(part)
            if nbytes > LOOKAHEAD_BYTES or (limit is not None and ended >= limit):
                settlement.settle()
                while waiting:
                    yield waiting.popleft()
    settlement.settle()
    yield from waiting


def _leave_room(together: list[PolicyRows], blocks: Mapping[str | None, Block], settlement: Settlement) -> bool:
    """Whether no block becomes full in the middle of these rows; one that is full already begins anew with them."""
    sizes = {policy: block.nbytes for policy, block in blocks.items() if block.nbytes <= BLOCK_BYTES}
    for rows in together:
        sizes[rows.policy] = sizes.get(rows.policy, 0) + nbytes_of(settlement.trees_of(rows))
    return max(sizes.values(), default=0) <= BLOCK_BYTES
