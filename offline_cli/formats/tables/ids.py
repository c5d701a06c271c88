"""Ids of a table's episodes: `<8 hex of the source's content>-<theirs>`; those of RLlib's own recorder stay as they are.

The hash is of the files' sizes, first and last bytes, and not of their names: a copy elsewhere gives the same ids, and two
tables that both number their episodes from 0 do not give the same ones. RLlib's recorder gives each episode an id that no other
has, in whatever format Ray writes its rows, and two recordings of one episode are recognised by it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.source import Openable
from offline_cli.formats.step_rows import agent_episode_id
from offline_cli.storage.failures import storage_failures
from offline_cli.tally import Tally

__all__ = ["Divided", "Name", "Naming", "are_rllibs", "same_keys", "source_hash"]

HASHED_BYTES: Final = 64 << 10  # at each end of a file
RECORDED: Final = frozenset(
    {
        *(Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS),
        *(Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS),
    }
)


def source_hash(files: Sequence[Openable]) -> str:
    """8 hex digits, of the files in order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.url):
        with storage_failures(file.url, "reading it"), file.open() as stored:
            size = stored.seek(0, io.SEEK_END)
            stored.seek(0)
            digest.update(size.to_bytes(8, "little"))
            digest.update(stored.read(HASHED_BYTES))
            stored.seek(max(0, size - HASHED_BYTES))
            digest.update(stored.read(HASHED_BYTES))
    return digest.hexdigest()[:8]


def are_rllibs(columns: Collection[str]) -> bool:
    """Whether these are the columns that RLlib's recorder writes for each step, those of structs by their dotted parts."""
    heads = {name.partition(".")[0] for name in columns}
    return heads.issuperset(RECORDED)


@dataclass(frozen=True, slots=True)
class Divided:
    """What divides ordered rows into episodes."""

    roles: tuple[str, ...] = ()  # of the columns `e0`, `e1`, ... of the key
    keyed: bool = False  # rows of one key are together, in the order of `t` where there is one
    ends: str | None = None  # flags | t | chain; None: nothing of the three
    each_row: bool = False  # every row is an episode
    per_file: bool = False  # files number their episodes by themselves: the last column of the key is the file
    by_file: bool = False  # the id is that of a file or a row, which has no name of its own in the table


class Name(NamedTuple):
    """What an episode is called."""

    id: str
    theirs: str | None = None  # the id in the source
    agent: str | None = None
    module: str | None = None
    shared: str | None = None  # the id of the multi-agent episode


def same_keys(columns: Sequence[pa.Array], before: tuple[Any, ...] | None) -> tuple[NDArray[np.bool_], list[tuple[Any, ...]]]:
    """(N,) whether a row has the key of the row before, of which the first is `before`; and the keys of the others."""
    same = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        codes = column.dictionary_encode(null_encoding="encode").indices if column.null_count else column
        same[1:] &= pc.equal(codes[1:], codes[:-1]).to_numpy(zero_copy_only=False)
    same[0] = before == tuple(column[0].as_py() for column in columns)
    begins = pa.array(np.flatnonzero(~same))
    return same, list(zip(*(column.take(begins).to_pylist() for column in columns), strict=True))


@dataclass(slots=True)
class Naming:
    """The runs of rows of one key, and the names of the episodes that they are divided into."""

    divided: Divided
    prefix: str  # of ids, with its hyphen; "": they stay as they are
    is_numbered: bool  # several episodes may have one key
    tally: Tally
    _keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # of the runs that are held
    _run: int = 0
    _before: tuple[int, int] = (0, 0)  # a run, and the number of its last episode
    _passed: int = 0  # episodes named, of tables without ids

    def runs(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """(N,) a number for each run of rows of one key (`e0`, `e1`, ...)."""
        columns = [batch.column(name) for name in batch.schema.names if name[0] == "e" and name[1:].isdigit()]
        if not columns:
            return np.zeros(batch.num_rows, np.int64)
        same, keys = same_keys(columns, self._keys.get(self._run))
        self._keys |= dict(enumerate(keys, self._run + 1))
        runs = self._run + np.cumsum(~same)
        self._run = int(runs[-1])
        return runs

    def of_run(self, run: int) -> str:
        """The key of a run, for messages; empty where it has none."""
        return "-".join(map(str, self._keys.get(run, ()))) if self.divided.keyed else ""

    def named(self, runs: Sequence[int]) -> list[Name]:
        """The names of episodes in order, by their runs."""
        divided, keys = self.divided, [self._keys.get(run, ()) for run in runs]
        for run in [run for run in self._keys if run < runs[-1]]:
            del self._keys[run]
        if divided.each_row or not (divided.keyed and divided.roles):
            numbers = range(self._passed, self._passed + len(runs))
            self._passed += len(runs)
            self.tally.assume("missing-eps-id", 0 if divided.each_row else len(runs))
            texts = [self._texts(key)[0] if divided.each_row and divided.roles else None for key in keys]
            return [Name(f"{self.prefix}{number}", text) for number, text in zip(numbers, texts, strict=True)]
        found = []
        for run, key in zip(runs, keys, strict=True):
            theirs, agent, module = self._texts(key)
            name = f"{self.prefix}{key[-1]}-{theirs}" if divided.per_file else f"{self.prefix}{theirs}"
            shared = name if agent is not None else None
            if Columns.AGENT_ID in divided.roles and (agent is not None or module is not None):
                name = agent_episode_id(name, module, agent)
            self._before = run, self._before[1] + 1 if self._before[0] == run else 0
            name = f"{name}-{self._before[1]}" if self.is_numbered else name
            found.append(Name(name, theirs if self.prefix and not divided.by_file else None, agent, module, shared))
        self.tally.assume("missing-eps-id", len(runs) if divided.by_file else 0)
        return found

    def _texts(self, key: Sequence[Any]) -> tuple[str, str | None, str | None]:
        """The id, the agent and the module of a key."""
        by_role: dict[str, list[str | None]] = {}
        for role, value in zip(self.divided.roles, key, strict=False):
            by_role.setdefault(role, []).append(None if value is None else str(value))
        agent, module = (by_role.get(role, [None])[0] for role in (Columns.AGENT_ID, Columns.MODULE_ID))
        return "-".join(map(str, by_role.get(Columns.EPS_ID, []))), agent, module
