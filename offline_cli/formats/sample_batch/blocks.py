"""Files of SampleBatch JSON as a source: rows of many lines become batches of fragments.

* `Block`: lines of a policy are gathered while they have the same columns, shapes and dtypes, so that later stages work on
  large arrays, and so that an episode that continues in the next line is joined here already (counted in `fragments_stitched`).
  Columns of different kinds never share a batch.
* `SampleBatchSource`: the source. A line that cannot be read whole is rejected, and reading continues with the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.engines.mapped import helpers, mapped
from offline_cli.errors import BadData
from offline_cli.formats.sample_batch.files import Line, LineGroup, grouped
from offline_cli.formats.sample_batch.groups import GroupReader, GroupRows
from offline_cli.formats.sample_batch.ids_and_dtypes import Identifier, Settlement
from offline_cli.formats.sample_batch.rows import PolicyRows, in_line_order
from offline_cli.formats.source import FileSource, Fragments, Origins, ReadOptions
from offline_cli.formats.step_rows import Keys, StepRows, agent_episode_id, fragments_of_rows
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["Block", "SampleBatchSource", "nbytes_of"]

LOOKAHEAD_BYTES: Final = 64 << 20  # of lines that dtypes are settled on: RLlib's writer starts a new file after as many
FEW: Final = 1000  # episodes, for which no process is worth starting
BLOCK_BYTES: Final = 16 << 20  # of arrays in one batch


@dataclass(slots=True)
class Block:
    """Rows of one policy that can share a batch."""

    policy: str | None
    trees: list[dict[str, Tree]] = field(default_factory=list)
    rows: list[PolicyRows] = field(default_factory=list)
    nbytes: int = 0
    _signature: object = None
    _last: tuple[Any, Any] | None = None  # key of the row before this block, where it did not end its episode

    def takes(self, rows: PolicyRows, trees: dict[str, Tree]) -> bool:
        """Whether these rows can share a batch with those here."""
        return not self.rows or self._signature == _signature(rows, trees)

    def add(self, rows: PolicyRows, trees: dict[str, Tree]) -> None:
        """Append rows, whose columns are `trees` now."""
        if not self.rows:
            self._signature = _signature(rows, trees)
        self.rows.append(rows)
        self.trees.append(trees)
        self.nbytes += nbytes_of(trees)

    def flush(self, settlement: Settlement, tally: Tally, rejects: Rejects) -> Fragments:
        """All rows here; the block is empty then."""
        keys = _keys(self.policy, self.rows, settlement)
        self._tell_losses(keys, rejects)
        line_starts = np.cumsum(np.concatenate([[0], *(np.diff(rows.starts) for rows in self.rows)]))
        line = np.repeat(np.arange(len(line_starts) - 1), np.diff(line_starts))
        names, number = (
            tuple(place.where for rows in self.rows for place in rows.lines),
            np.arange(len(line)) - line_starts[line],
        )
        steps = replace(self._step_rows(keys, line), where=lambda row: f"{names[line[row]]} row {number[row]}")
        batch, first = fragments_of_rows(steps, tally)
        origins = Origins.of_rows(names, line, number, first)
        last = self.rows[-1]
        self._last = None if last.terminateds[-1] or last.truncateds[-1] else _key(last, -1)
        self.trees, self.rows, self.nbytes = [], [], 0
        return Fragments(batch, origins)

    def _tell_losses(self, keys: Keys, rejects: Rejects) -> None:
        """Where lines were lost, the next episode of each agent may have begun in them, and only `t` could show it."""
        row = 0
        for part in self.rows:
            if part.lost_before and part.t is None:
                for first in np.unique(part.agent_index[: part.starts[1]], return_index=True)[1]:
                    rejects.lose(keys.eps_ids[int(keys.code[row + first])], part.lost_before)
            row += part.rows

    def _step_rows(self, keys: Keys, line: NDArray[np.int64]) -> StepRows:
        rows = self.rows
        trees = {name: map_leaves(_concatenated, *(part[name] for part in self.trees)) for name in self.trees[0]}
        return StepRows(
            keys=keys,
            obs=trees.pop(Columns.OBS),
            next_obs=trees.pop(Columns.NEXT_OBS, None),
            actions=trees.pop(Columns.ACTIONS),
            rewards=np.concatenate([part.rewards for part in rows]),
            terminateds=np.concatenate([part.terminateds for part in rows]),
            truncateds=np.concatenate([part.truncateds for part in rows]),
            t=None if rows[0].t is None else np.concatenate([part.t for part in rows if part.t is not None]),
            extra=trees,
            infos=_infos(rows),
            reset_infos=None,
            file=line,
            follows=self._last is not None and self._last == _key(rows[0], 0),
        )


def nbytes_of(trees: dict[str, Tree]) -> int:
    """The size of all leaves."""
    return sum(leaf.nbytes for tree in trees.values() for _, leaf in flatten(tree))


def _keys(policy: str | None, rows: Sequence[PolicyRows], settlement: Settlement) -> Keys:
    eps_id = _joined_names([part.eps_id for part in rows])
    agent = _joined_names([part.agent_index for part in rows])
    changes = (eps_id[1:] != eps_id[:-1]) | (agent[1:] != agent[:-1])
    first = np.flatnonzero(np.concatenate([[True], changes]))
    codes: dict[tuple[Any, Any], int] = {}
    runs = [codes.setdefault(key, len(codes)) for key in zip(eps_id[first].tolist(), agent[first].tolist(), strict=True)]
    shares = {name: settlement.needs_suffix(policy, name) for name in {name for _, name in codes}}
    return Keys(
        code=np.repeat(np.array(runs, np.int64), np.diff(np.append(first, len(eps_id)))),
        eps_ids=tuple(agent_episode_id(eps, policy, name) if shares[name] else str(eps) for eps, name in codes),
        agent_ids=tuple(str(name) if shares[name] else None for _, name in codes),
        module_ids=(policy,) * len(codes),
        multi_agent_ids=tuple(str(eps) if shares[name] else None for eps, name in codes) if any(shares.values()) else None,
    )


def _joined_names(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """Ids of many lines in one array: integers, or text where one of them has text."""
    arrays = [part for part in parts if part is not None]
    if len({array.dtype.kind for array in arrays}) > 1:
        arrays = [array.astype(np.str_) for array in arrays]
    return np.concatenate(arrays)


def _concatenated(*leaves: NDArray[Any]) -> NDArray[Any]:
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def _infos(rows: Sequence[PolicyRows]) -> list[Any] | None:
    if all(part.infos is None for part in rows):
        return None
    return list(chain.from_iterable([{}] * part.rows if part.infos is None else part.infos for part in rows))


def _key(rows: PolicyRows, row: int) -> tuple[Any, Any]:
    assert rows.eps_id is not None
    return str(rows.eps_id[row]), str(rows.agent_index[row])


def _signature(rows: PolicyRows, trees: dict[str, Tree]) -> object:
    return rows.t is None, map_leaves(lambda leaf: f"{leaf.dtype.str}{leaf.shape[1:]}", trees)


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    The spaces, where the caller knows them, distinguish Tuples from lists of rows and give plain lists their dtypes.
    """

    format: ClassVar = "sample-batch"
    processes: int = 0  # that read lines; 0: this one does

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. JSON has neither tuples nor dtypes: they are those of the spaces, where these are known."""
        self.read_options = options
        if options.spaces is not None:
            self.info = replace(self.info, observation_space=options.spaces[0], action_space=options.spaces[1])
        few = options.limit is not None and options.limit < FEW
        self.processes = 0 if few else helpers(options.workers, self.size)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as they stand, a policy at a time; see `Source.fragments`.

        A line that cannot be read goes to `rejects` whole, and reading continues with the next one.
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
            if self.read_options.limit is not None and ended >= self.read_options.limit:  # the caller may have enough
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
            for rows in held.enter(mapped(reader.read, lines(), workers=self.processes)):
                yield waiting.popleft(), rows


def _ended(together: Sequence[PolicyRows]) -> int:
    """How many episodes end in these rows."""
    return sum(int(np.count_nonzero(rows.terminateds | rows.truncateds)) for rows in together)


def _settled(incoming: Iterator[list[PolicyRows]], settlement: Settlement, limit: int | None) -> Iterator[list[PolicyRows]]:
    """The rows, once the first ones have been settled together; line by line where a line changes the result.

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
    """Whether no block becomes full in the middle of these rows; a full one is replaced by a new one."""
    sizes = {policy: block.nbytes for policy, block in blocks.items() if block.nbytes <= BLOCK_BYTES}
    for rows in together:
        sizes[rows.policy] = sizes.get(rows.policy, 0) + nbytes_of(settlement.trees_of(rows))
    return max(sizes.values(), default=0) <= BLOCK_BYTES
