"""RLlib's old-stack recordings: files of SampleBatch and MultiAgentBatch lines of JSON, as a source of fragments.

Each line becomes rows of steps, policy by policy (`batch_lines`); their dtypes are settled on the first lines (`dtypes`).

Ids: where the source has one policy and one agent, an episode's id is its `eps_id` as text, its module the policy's name, and
it has no agent id (RLlib keys single agents by their episode). Where it has several, each gets an episode of its own, with the
id `<eps_id>-<policy>-<agent_index>`, the agent index as agent id, and `eps_id` as the id of the multi-agent episode.

Rows of one episode and agent that are apart in a line (agents that took turns) are brought together, in their order. Without
`eps_id` an episode begins after an end flag, where the agent changes, where `t` does not follow and, where there is no `t`
either, where `new_obs` is not the next `obs`; a line continues the episode that the line before it in the file left unfinished,
by the same rules. Such episodes are named `<8 hex of file and its first line>-<number>`, and counted.

Lines share a batch while they have the same columns, shapes and dtypes. A line that cannot be read whole is rejected, and
reading continues with the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.rllib.batch_lines import BatchReader, PolicyRows
from offline_cli.formats.rllib.dtypes import Dtypes
from offline_cli.formats.rllib.json_lines import lines_of
from offline_cli.formats.source import FileSource, Fragments, Origins, ReadOptions
from offline_cli.formats.step_rows import Keys, StepRows, agent_episode_id, chained, fragments_of_rows
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import equal_values, leaves, map_leaves

__all__ = ["SampleBatchSource"]

LOOKAHEAD_BYTES: Final = 64 << 20  # of lines that dtypes are settled on: RLlib's writer starts a new file after as many
BLOCK_BYTES: Final = 16 << 20  # of arrays in one batch


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    The spaces, where the caller knows them, distinguish Tuples from lists of rows and give plain lists their dtypes.
    """

    format: ClassVar = "sample-batch"

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. JSON has neither tuples nor dtypes: they are those of the spaces, where these are known."""
        self.read_options = options
        if options.spaces is not None:
            self.info = replace(self.info, observation_space=options.spaces[0], action_space=options.spaces[1])

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as they stand, a policy at a time; see `Source.fragments`."""
        self.done = ended = 0
        dtypes, agents = Dtypes(tally, *self.info.spaces), set[tuple[str | None, Any]]()
        blocks: dict[str | None, _Block] = {}
        for rows in self._settled(self._lines(tally, rejects), dtypes, agents):
            block = blocks.setdefault(rows.policy, _Block(rows.policy, agents))
            rows = dtypes.settled(rows)
            if not block.takes(rows):
                yield block.flush(tally, rejects)
            block.add(rows)
            ended += _ended(rows)
            if self.read_options.limit is not None and ended >= self.read_options.limit:  # the caller may have enough
                yield from (block.flush(tally, rejects) for block in blocks.values() if block.rows)
        yield from (block.flush(tally, rejects) for block in blocks.values() if block.rows)

    def _settled(
        self, incoming: Iterator[PolicyRows], dtypes: Dtypes, agents: set[tuple[str | None, Any]]
    ) -> Iterator[PolicyRows]:
        """The rows, once dtypes and agents have been settled on those of the first LOOKAHEAD_BYTES, or of `limit` episodes."""
        waiting: list[PolicyRows] = []
        nbytes = ended = 0
        is_settled = False
        for rows in incoming:
            dtypes.observe(rows)
            if is_settled:
                yield rows
                continue
            agents |= {(rows.policy, agent) for agent in set(rows.agent_index.tolist())}
            waiting.append(rows)
            nbytes, ended = nbytes + rows.nbytes, ended + _ended(rows)
            if nbytes > LOOKAHEAD_BYTES or (self.read_options.limit is not None and ended >= self.read_options.limit):
                dtypes.settle()
                is_settled = True
                yield from waiting
                waiting = []
        dtypes.settle()
        yield from waiting

    def _lines(self, tally: Tally, rejects: Rejects) -> Iterator[PolicyRows]:
        """The rows of all lines, with their ids."""
        identifier = _Identifier(tally)
        told: dict[str | None, int] = {}  # by policy: how many of the losses its rows have been marked with
        losses, last_loss, file = 0, "", (-1, "")
        for part in self._parts(BatchReader(tally, *self.info.spaces), tally, rejects):
            if part.lost:
                losses, last_loss = losses + 1, part.lost
                rejects.lose_episodes(Lost.UNREADABLE)
            if part.found and part.file != file:
                identifier.start_file(part.file, part.content)
                file = part.file
            for rows in part.found:
                if told.get(rows.policy, 0) < losses:
                    rows.lost_before, told[rows.policy] = last_loss, losses
                yield identifier.identify(rows)

    def _parts(self, reader: BatchReader, tally: Tally, rejects: Rejects) -> Iterator[Part]:
        before = 0
        for number, file in enumerate(self.files):
            for line in lines_of(file, self.scope):
                if isinstance(line, BadData):
                    rejects.add(line)
                    yield Part(lost=file.url)
                    continue
                self.done = before + line.position
                tally.rows_in += 1
                try:
                    yield Part(reader.read(line), (number, line.file), line.data)
                except BadData as error:
                    rejects.add(error, raw=line.data)
                    yield Part(lost=error.where)
            before = self.done


@dataclass(frozen=True, slots=True)
class Part:
    """What a line holds; or one that could not be read."""

    found: list[PolicyRows] = field(default_factory=list)  # of each policy
    file: tuple[int, str] = (0, "")  # its number, and URL: made-up ids go by its name, and by
    content: bytes = b""  # of its first line that can be read
    lost: str = ""  # where a line or the rest of a file was lost


def _ended(rows: PolicyRows) -> int:
    """How many episodes end in these rows."""
    return int(np.count_nonzero(rows.terminateds | rows.truncateds))


# ---- ids ----


def _begins(rows: PolicyRows) -> NDArray[np.bool_]:
    """(N,) true where a row does not continue the one before it in its line; always at the first row."""
    ended = rows.terminateds | rows.truncateds
    follows = ~ended[:-1] & (rows.agent_index[1:] == rows.agent_index[:-1])
    if rows.eps_id is not None:
        follows &= rows.eps_id[1:] == rows.eps_id[:-1]
    if rows.t is not None:
        follows &= rows.t[1:] == rows.t[:-1] + 1
    elif rows.eps_id is None and Columns.NEXT_OBS in rows.columns:
        follows &= chained(rows.columns[Columns.OBS], rows.columns[Columns.NEXT_OBS])
    return np.concatenate([[True], ~follows])


def _runs(rows: PolicyRows) -> tuple[NDArray[np.int64], list[tuple[Any, Any]]]:
    """The first row of each run of one episode and agent, and whose run it is."""
    assert rows.eps_id is not None
    changes = (rows.eps_id[1:] != rows.eps_id[:-1]) | (rows.agent_index[1:] != rows.agent_index[:-1])
    first = np.flatnonzero(np.concatenate([[True], changes]))
    return first, list(zip(rows.eps_id[first].tolist(), rows.agent_index[first].tolist(), strict=True))


@dataclass(slots=True)
class _Identifier:
    """Gives every row an `eps_id`; one for all files of a source, in their order."""

    tally: Tally
    _prefix: str = ""
    _made: int = 0
    _unfinished: dict[str | None, PolicyRows] = field(default_factory=dict)  # by policy: its last row, if that ended no episode

    def start_file(self, file: tuple[int, str], content: bytes) -> None:
        """`file`: its number, and its URL. `content`: its first line that can be read."""
        name = file[1].replace("\\", "/").rpartition("/")[2]
        self._prefix = hashlib.blake2b(f"{file[0]}:{name}:".encode() + content, digest_size=4).hexdigest()
        self._made = 0
        self._unfinished.clear()

    def identify(self, rows: PolicyRows) -> PolicyRows:
        """`rows` with an id on each row, and the rows of one episode and agent one after the other."""
        if rows.eps_id is not None:
            return _brought_together(rows, self.tally)
        first = np.flatnonzero(_begins(rows))
        before = self._unfinished.pop(rows.policy, None)
        names = [] if before is None or not _goes_on(before, rows) else before.eps_id.tolist()  # type: ignore[union-attr]
        self.tally.assume("missing-eps-id", len(first) - len(names))
        for _ in range(len(first) - len(names)):
            names.append(f"{self._prefix}-{self._made}")
            self._made += 1
        rows.eps_id = np.repeat(np.array(names), np.diff(np.append(first, len(rows))))
        if not (rows.terminateds[-1] or rows.truncateds[-1]):
            self._unfinished[rows.policy] = rows.take(np.array([len(rows) - 1]))
        return rows


def _goes_on(last: PolicyRows, rows: PolicyRows) -> bool:
    """Whether row 0 is the next step of an episode whose row before is `last`."""
    if rows.agent_index[0] != last.agent_index[0]:
        return False
    if rows.t is not None and last.t is not None:
        return bool(rows.t[0] == last.t[0] + 1)
    if Columns.NEXT_OBS not in last.columns:
        return True
    try:
        same = map_leaves(
            lambda left, right: left.shape[1:] == right.shape[1:] and bool(equal_values(left[0], right[0]).all()),
            last.columns[Columns.NEXT_OBS],
            rows.columns[Columns.OBS],
        )
    except ValueError:  # another structure
        return False
    return all(leaves(same))


def _brought_together(rows: PolicyRows, tally: Tally) -> PolicyRows:
    """The same rows of a line, those of one episode and agent one after the other."""
    first, keys = _runs(rows)
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(order) == len(first):
        return rows
    tally.assume("rows-brought-together", len(rows))
    run = np.repeat([order[key] for key in keys], np.diff(np.append(first, len(rows))))
    return rows.take(np.argsort(run, kind="stable"))


# ---- lines to batches ----


@dataclass(slots=True)
class _Block:
    """Lines of one policy that can share a batch."""

    policy: str | None
    agents: set[tuple[str | None, Any]]  # policy, agent index: all of the source
    rows: list[PolicyRows] = field(default_factory=list)  # whose columns have their settled dtypes
    nbytes: int = 0
    _form: object = None  # of the last rows that were asked for, which are those that are added
    _last: tuple[str, str] | None = None  # key of the row before this block, where it did not end its episode

    def takes(self, rows: PolicyRows) -> bool:
        """Whether these rows can share a batch with those here."""
        before, self._form = self._form, rows.form
        return not self.rows or (self.nbytes <= BLOCK_BYTES and before == self._form)

    def add(self, rows: PolicyRows) -> None:
        """Append rows."""
        self.rows.append(rows)
        self.nbytes += sum(leaf.nbytes for leaf in leaves(rows.columns))

    def flush(self, tally: Tally, rejects: Rejects) -> Fragments:
        """All rows here; the block is empty then."""
        rows = PolicyRows.joined(self.rows)
        keys = self._keys(rows)
        self._tell_losses(keys, rejects)
        number = np.arange(len(rows)) - np.searchsorted(rows.line, rows.line)
        trees = dict(rows.columns)
        steps = StepRows(
            keys=keys,
            obs=trees.pop(Columns.OBS),
            next_obs=trees.pop(Columns.NEXT_OBS, None),
            actions=trees.pop(Columns.ACTIONS),
            rewards=rows.rewards,
            terminateds=rows.terminateds,
            truncateds=rows.truncateds,
            t=rows.t,
            extra=trees,
            infos=rows.infos,
            reset_infos=None,
            file=rows.line,
            follows=self._last is not None and self._last == _key(rows, 0),
            where=lambda row: f"{rows.places[rows.line[row]]} row {number[row]}",
        )
        batch, first = fragments_of_rows(steps, tally)
        self._last = None if rows.terminateds[-1] or rows.truncateds[-1] else _key(rows, -1)
        self.rows, self.nbytes = [], 0
        return Fragments(batch, Origins.of_rows(rows.places, rows.line, number, first))

    def _keys(self, rows: PolicyRows) -> Keys:
        first, found = _runs(rows)
        codes = {key: code for code, key in enumerate(dict.fromkeys(found))}
        named = [(eps, name, self.agents != {(self.policy, name)}) for eps, name in codes]  # the last: agents share it
        return Keys(
            code=np.repeat(np.array([codes[key] for key in found], np.int64), np.diff(np.append(first, len(rows)))),
            eps_ids=tuple(agent_episode_id(eps, self.policy, name) if shared else str(eps) for eps, name, shared in named),
            agent_ids=tuple(str(name) if shared else None for _, name, shared in named),
            module_ids=(self.policy,) * len(codes),
            multi_agent_ids=tuple(str(eps) if shared else None for eps, _, shared in named)
            if any(shared for _, _, shared in named)
            else None,
        )

    def _tell_losses(self, keys: Keys, rejects: Rejects) -> None:
        """Where lines were lost, the next episode of each agent may have begun in them, and only `t` could show it."""
        row = 0
        for rows in self.rows:
            if rows.lost_before and rows.t is None:
                for first in np.unique(rows.agent_index[rows.line == rows.line[0]], return_index=True)[1]:
                    rejects.lose(keys.eps_ids[int(keys.code[row + first])], rows.lost_before)
            row += len(rows)


def _key(rows: PolicyRows, row: int) -> tuple[str, str]:
    assert rows.eps_id is not None
    return str(rows.eps_id[row]), str(rows.agent_index[row])
