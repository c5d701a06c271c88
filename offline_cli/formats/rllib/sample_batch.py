"""RLlib's old-stack recordings: files of SampleBatch and MultiAgentBatch lines of JSON, as a source of fragments.

Each line becomes rows of steps, policy by policy (`batch_lines`). Lines are read in blocks: the dtypes of their columns are
settled (`dtypes`), and lines of the same columns and shapes share a batch. A line that cannot be read whole is rejected, and
reading continues with the next.

Ids: where the source has one policy and one agent, an episode's id is its `eps_id` as text, its module the policy's name, and
it has no agent id (RLlib keys single agents by their episode). Where it has several, each gets an episode of its own, with the
id `<eps_id>-<policy>-<agent_index>`, the agent index as agent id, and `eps_id` as the id of the multi-agent episode.

Rows of one episode and agent that are apart in a line (agents that took turns) are brought together, in their order. Without
`eps_id` an episode begins after an end flag, where the agent changes, where `t` does not follow and, where there is no `t`
either, where `new_obs` is not the next `obs`, and where a file ends. Such episodes are named `<8 hex of the source's first
rows>-<number>`, and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData
from offline_cli.formats.rllib.batch_lines import AGENT_INDEX, BatchReader, PolicyRows
from offline_cli.formats.rllib.dtypes import Dtypes
from offline_cli.formats.rllib.json_lines import lines_of
from offline_cli.formats.source import FileSource, Fragments, Origins, ReadOptions
from offline_cli.formats.step_rows import Keys, StepRows, agent_episode_id, chained, fragments_of_rows
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import leaves

BLOCK_BYTES: Final = 64 << 20  # of lines that are settled together: RLlib's writer starts a new file after as many
Key = tuple[Any, Any]  # eps_id, agent_index


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
        self.done = 0
        dtypes, ids = Dtypes(tally, *self.info.spaces), _EpisodeIds(tally)
        for block in self._blocks(tally, rejects):
            ids.see(block)
            groups = []
            for policy in dict.fromkeys(rows.policy for rows in block):
                mine = (rows for rows in block if rows.policy == policy)
                groups += [list(group) for _, group in groupby(mine, lambda rows: rows.form)]
            joined = [PolicyRows.joined(group) for group in groups]
            dtypes.settle(joined)
            for parts, rows in zip(groups, joined, strict=True):
                keys, follows = ids.keys(rows, parts)
                _lose_begun(parts, keys, rejects)
                yield _fragments(dtypes.of(rows), parts, keys, follows, tally)

    def _blocks(self, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows]]:
        """Rows of as many lines as are settled together; of fewer where these end as many episodes as the caller wants."""
        block = list[PolicyRows]()
        nbytes = ended = 0
        limit = self.read_options.limit
        for rows in self._rows(tally, rejects):
            block.append(rows)
            nbytes, ended = nbytes + rows.nbytes, ended + int(np.count_nonzero(rows.ended))
            if nbytes > BLOCK_BYTES or (limit is not None and ended >= limit):
                yield block
                block, nbytes = [], 0
        if block:
            yield block

    def _rows(self, tally: Tally, rejects: Rejects) -> Iterator[PolicyRows]:
        """The rows of all lines; those after lines that were lost are marked."""
        lost, marked = "", set[str | None]()  # the last loss, and the policies whose rows have been marked with it
        for line in self._lines(BatchReader(tally, *self.info.spaces), tally, rejects):
            if isinstance(line, str):
                lost = line
                marked.clear()
                rejects.lose_episodes(Lost.UNREADABLE)
                continue
            for rows in line:
                if lost and rows.policy not in marked:
                    rows.lost_before = lost
                    marked.add(rows.policy)
                yield _brought_together(rows, tally) if Columns.EPS_ID in rows.columns else rows

    def _lines(self, reader: BatchReader, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows] | str]:
        """What each line holds; or the place of a line, or of the rest of a file, that was lost."""
        before = 0
        for number, file in enumerate(self.files):
            for line in lines_of(file, self.scope):
                if isinstance(line, BadData):
                    rejects.add(line)
                    yield file.url
                    continue
                self.done = before + line.position
                tally.rows_in += 1
                try:
                    found = reader.read(line)
                    for rows in found:
                        rows.file = number
                    yield found
                except BadData as error:
                    rejects.add(error, raw=line.data)
                    yield error.where
            before = self.done


def _fragments(rows: PolicyRows, parts: Sequence[PolicyRows], keys: Keys, follows: bool, tally: Tally) -> Fragments:
    """`parts`: the lines that `rows` are of."""
    line, number = _places(parts)
    columns = rows.columns
    steps = StepRows(
        keys=keys,
        obs=columns[Columns.OBS],
        next_obs=columns.get(Columns.NEXT_OBS),
        actions=columns[Columns.ACTIONS],
        rewards=columns[Columns.REWARDS],
        terminateds=columns[Columns.TERMINATEDS],
        truncateds=columns[Columns.TRUNCATEDS],
        t=columns.get(Columns.T),
        extra={name: columns[name] for name in columns if name in rows.extras},
        infos=rows.infos,
        file=line,
        follows=follows,
        where=lambda row: f"{parts[line[row]].place} row {number[row]}",
    )
    batch, first = fragments_of_rows(steps, tally)
    return Fragments(batch, Origins.of_rows(tuple(part.place for part in parts), line, number, first))


def _places(parts: Sequence[PolicyRows]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) the line that each row is in, and its number there."""
    lengths = np.array([len(part) for part in parts])
    line = np.repeat(np.arange(len(parts)), lengths)
    return line, np.arange(len(line)) - (np.cumsum(lengths) - lengths)[line]


def _lose_begun(parts: Sequence[PolicyRows], keys: Keys, rejects: Rejects) -> None:
    """Where lines were lost, the next episode of each agent may have begun in them, and only `t` could show it."""
    row = 0
    for part in parts:
        if part.lost_before and Columns.T not in part.columns:
            for first in np.unique(part.columns[AGENT_INDEX], return_index=True)[1].tolist():
                rejects.lose(keys.eps_ids[int(keys.code[row + first])], part.lost_before)
        row += len(part)


# ---- ids ----


def _runs(rows: PolicyRows) -> tuple[NDArray[np.int64], list[Key]]:
    """The first row of each run of one episode and agent, and whose run it is."""
    eps_id, agent = rows.columns[Columns.EPS_ID], rows.columns[AGENT_INDEX]
    changes = (eps_id[1:] != eps_id[:-1]) | (agent[1:] != agent[:-1])
    first = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return first, list(zip(eps_id[first].tolist(), agent[first].tolist(), strict=True))


def _on_rows(values: list[int], first: NDArray[np.int64], rows: PolicyRows) -> NDArray[np.int64]:
    """(N,) the value of its run for each row."""
    return np.repeat(np.array(values, np.int64), np.diff(np.append(first, len(rows))))


def _brought_together(rows: PolicyRows, tally: Tally) -> PolicyRows:
    """The same rows of a line, those of one episode and agent one after the other."""
    first, keys = _runs(rows)
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(order) == len(keys):
        return rows
    tally.assume("rows-brought-together", len(rows))
    return rows.take(np.argsort(_on_rows([order[key] for key in keys], first, rows), kind="stable"))


@dataclass(slots=True)
class _EpisodeIds:
    """Ids of episodes, which name the agent where the first lines have several; made up where lines have none."""

    tally: Tally
    _agents: set[tuple[str | None, Any]] = field(default_factory=set)  # policy, agent index: all of the first block
    _last: dict[str | None, PolicyRows] = field(default_factory=dict)  # by policy: its last row, if that ended no episode
    _prefix: str = ""
    _made: int = 0

    def see(self, block: Sequence[PolicyRows]) -> None:
        """Take note of the agents of the first block, and of its first rows."""
        if not self._agents:
            self._agents = {(rows.policy, agent) for rows in block for agent in set(rows.columns[AGENT_INDEX].tolist())}
            content = b"".join(leaf.tobytes() for leaf in leaves(block[0].columns))
            self._prefix = hashlib.blake2b(content, digest_size=4).hexdigest()

    def keys(self, rows: PolicyRows, parts: Sequence[PolicyRows]) -> tuple[Keys, bool]:
        """The keys of rows of one policy, of the lines `parts`; whether the first one stands right after a row of its episode
        that did not end it.
        """
        before = self._last.pop(rows.policy, None)
        if Columns.EPS_ID not in rows.columns:
            rows.columns[Columns.EPS_ID] = self._made_up(rows, parts, before)
        if not rows.ended[-1]:
            self._last[rows.policy] = replace(rows.take(np.array([len(rows) - 1])), file=parts[-1].file)
        first, found = _runs(rows)
        codes = {key: code for code, key in enumerate(dict.fromkeys(found))}
        shared = [self._agents != {(rows.policy, agent)} for _, agent in codes]
        named = list(zip(codes, shared, strict=True))
        keys = Keys(
            code=_on_rows([codes[key] for key in found], first, rows),
            eps_ids=tuple(agent_episode_id(eps, rows.policy, agent) if is_one else str(eps) for (eps, agent), is_one in named),
            agent_ids=tuple(str(agent) if is_one else None for (_, agent), is_one in named),
            module_ids=(rows.policy,) * len(codes),
            multi_agent_ids=tuple(str(eps) if is_one else None for (eps, _), is_one in named) if any(shared) else None,
        )
        return keys, before is not None and _runs(before)[1] == found[:1]

    def _made_up(self, rows: PolicyRows, parts: Sequence[PolicyRows], before: PolicyRows | None) -> NDArray[np.str_]:
        """(N,) ids of rows that have none; `before`: the row before them."""
        begins, names = _begins(rows), list[str]()
        file = np.array([part.file for part in parts])[_places(parts)[0]]
        begins[1:] |= file[1:] != file[:-1]
        if before is not None and before.file == file[0]:
            first = rows.take(np.array([0]))
            first.columns[Columns.EPS_ID] = before.columns[Columns.EPS_ID]
            with suppress(ValueError):  # rows of other columns
                begins[0] = _begins(PolicyRows.joined([before, first]))[1]
            names = [] if begins[0] else before.columns[Columns.EPS_ID].tolist()
        made = int(begins.sum())
        self.tally.assume("missing-eps-id", made)
        names += [f"{self._prefix}-{self._made + number}" for number in range(made)]
        self._made += made
        return np.take(np.array(names, np.str_), np.cumsum(begins) - int(begins[0]))


def _begins(rows: PolicyRows) -> NDArray[np.bool_]:
    """(N,) true where a row does not continue the one before it, whatever its `eps_id`; always at the first row."""
    columns = rows.columns
    follows = ~rows.ended[:-1] & (columns[AGENT_INDEX][1:] == columns[AGENT_INDEX][:-1])
    if Columns.T in columns:
        follows &= columns[Columns.T][1:] == columns[Columns.T][:-1] + 1
    elif Columns.NEXT_OBS in columns:
        follows &= chained(columns[Columns.OBS], columns[Columns.NEXT_OBS])
    return np.append(True, ~follows)
