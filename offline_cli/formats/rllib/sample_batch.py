"""RLlib's old-stack recordings: files of SampleBatch and MultiAgentBatch lines of JSON, as a source of fragments.

Each line becomes rows of steps, policy by policy (`batch_lines`). Lines are read in blocks: the dtypes of their columns are
settled (`dtypes`), and lines of the same columns and shapes share a batch. A line that cannot be read whole is rejected, and
reading continues with the next.

Ids: where the source has one policy and one agent, an episode's id is its `eps_id` as text, its module the policy's name, and
it has no agent id (RLlib keys single agents by their episode). Where it has several, each gets an episode of its own, with the
id `<eps_id>-<policy>-<agent_index>`, the agent index as agent id, and `eps_id` as the id of the multi-agent episode.

Without `eps_id` an episode begins after an end flag, where the agent changes, where `t` does not follow and, where there is no
`t` either, where `new_obs` is not the next `obs`, and with each block of lines. Such episodes are named `<8 hex of the first
rows>-<number>`, and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
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
from offline_cli.formats.step_rows import Keys, SharedIds, StepRows, chained, fragments_of_rows
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import leaves

BLOCK_BYTES: Final = 32 << 20  # of lines that are settled together: half a file of RLlib
Key = tuple[Any, Any]  # eps_id, agent_index


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    The spaces, where the caller knows them, distinguish Tuples from lists of rows.
    """

    format: ClassVar = "sample-batch"

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. JSON has no tuples: they are those of the spaces, where these are known."""
        self.read_options = options
        if options.spaces is not None:
            self.info = replace(self.info, observation_space=options.spaces[0], action_space=options.spaces[1])

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as they stand, a policy at a time; see `Source.fragments`."""
        self.done = 0
        observations, actions = self.info.spaces
        known = {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}
        dtypes = Dtypes(tally, frozenset(name for name, space in known.items() if space is not None))
        ids = _EpisodeIds(tally)
        for block in self._blocks(tally, rejects):
            ids.see(block)
            groups = []
            for policy in dict.fromkeys(rows.policy for rows in block):
                mine = (rows for rows in block if rows.policy == policy)
                groups += [list(group) for _, group in groupby(mine, lambda rows: rows.form)]
            joined = [PolicyRows.joined(group) for group in groups]
            dtypes.settle(joined)
            for parts, rows in zip(groups, joined, strict=True):
                keys, follows = ids.keys(rows)
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
                yield rows

    def _lines(self, reader: BatchReader, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows] | str]:
        """What each line holds; or the place of a line, or of the rest of a file, that was lost."""
        before = 0
        for file in self.files:
            for line in lines_of(file, self.scope):
                if isinstance(line, BadData):
                    rejects.add(line)
                    yield file.url
                    continue
                self.done = before + line.position
                tally.rows_in += 1
                try:
                    yield reader.read(line)
                except BadData as error:
                    rejects.add(error, raw=line.data)
                    yield error.where
            before = self.done


def _fragments(rows: PolicyRows, parts: Sequence[PolicyRows], keys: Keys, follows: bool, tally: Tally) -> Fragments:
    """`parts`: the lines that `rows` are of."""
    lengths, columns = np.array([len(part) for part in parts]), rows.columns
    line = np.repeat(np.arange(len(parts)), lengths)
    number = np.arange(len(line)) - (np.cumsum(lengths) - lengths)[line]  # of a row in its line
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


def _lose_begun(parts: Sequence[PolicyRows], keys: Keys, rejects: Rejects) -> None:
    """Where lines were lost, the next episode of each agent may have begun in them, and only `t` could show it."""
    row = 0
    for part in parts:
        if part.lost_before and Columns.T not in part.columns:
            for first in np.unique(part.columns[AGENT_INDEX], return_index=True)[1].tolist():
                rejects.lose(keys.eps_ids[int(keys.code[row + first])], part.lost_before)
        row += len(part)


# ---- ids ----


@dataclass(slots=True)
class _EpisodeIds:
    """Ids of episodes, which name the agent where the first lines have several; made up where lines have none."""

    tally: Tally
    _shared: SharedIds = field(default_factory=SharedIds)
    _only: tuple[str | None, Any] | None = None  # policy, agent index: the only one of the first block
    _open: dict[str | None, Key] = field(default_factory=dict)  # by policy: whose last row did not end its episode
    _prefix: str = ""
    _made: int = 0

    def see(self, block: Sequence[PolicyRows]) -> None:
        """Take note of the agents of the first block, and of its first rows."""
        if not self._prefix:
            agents = {(rows.policy, agent) for rows in block for agent in set(rows.columns[AGENT_INDEX].tolist())}
            self._shared, self._only = SharedIds(len(agents) > 1), next(iter(agents)) if len(agents) == 1 else None
            content = b"".join(leaf.tobytes() for leaf in leaves(block[0].columns))
            self._prefix = hashlib.blake2b(content, digest_size=4).hexdigest()

    def keys(self, rows: PolicyRows) -> tuple[Keys, bool]:
        """The keys of rows of one policy; whether the first one stands right after a row that did not end its episode."""
        if Columns.EPS_ID not in rows.columns:
            rows.columns[Columns.EPS_ID] = self._made_up(rows)
        eps_id, agent = rows.columns[Columns.EPS_ID], rows.columns[AGENT_INDEX]
        first = np.flatnonzero(np.append(True, (eps_id[1:] != eps_id[:-1]) | (agent[1:] != agent[:-1])))
        found = list(zip(eps_id[first].tolist(), agent[first].tolist(), strict=True))  # whose run of rows it is
        codes = {key: code for code, key in enumerate(dict.fromkeys(found))}
        keys = Keys(
            code=np.repeat(np.array([codes[key] for key in found], np.int64), np.diff(np.append(first, len(rows)))),
            eps_ids=tuple(str(eps) for eps, _ in codes),
            agent_ids=tuple(None if (rows.policy, name) == self._only else str(name) for _, name in codes),
            module_ids=(rows.policy,) * len(codes),
        )
        follows = self._open.pop(rows.policy, None) == found[0]
        if not rows.ended[-1]:
            self._open[rows.policy] = found[-1]
        return self._shared.named(keys), follows

    def _made_up(self, rows: PolicyRows) -> NDArray[np.str_]:
        """(N,) ids of rows that have none, of which the first begins an episode."""
        episode = np.cumsum(_begins(rows)) - 1
        names = [f"{self._prefix}-{self._made + number}" for number in range(int(episode[-1]) + 1)]
        self.tally.assume("missing-eps-id", len(names))
        self._made += len(names)
        return np.take(np.array(names, np.str_), episode)


def _begins(rows: PolicyRows) -> NDArray[np.bool_]:
    """(N,) true where a row does not continue the one before it, whatever its `eps_id`; always at the first row."""
    columns = rows.columns
    follows = ~rows.ended[:-1] & (columns[AGENT_INDEX][1:] == columns[AGENT_INDEX][:-1])
    if Columns.T in columns:
        follows &= columns[Columns.T][1:] == columns[Columns.T][:-1] + 1
    elif Columns.NEXT_OBS in columns:
        follows &= chained(columns[Columns.OBS], columns[Columns.NEXT_OBS])
    return np.append(True, ~follows)
