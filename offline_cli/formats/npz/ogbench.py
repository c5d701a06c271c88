"""OGBench's archives: `observations`, `actions` and `terminals`, and T+1 rows for an episode of T steps.

The last row of a trajectory (`terminals` is 1) has its final observation; the action there led nowhere, and is none of the
episode's. `terminals` divide trajectories, and say nothing of the task: they end by time. Where there are `masks`, a 0 in the
last step is a termination. Rewards are computed by OGBench when its tasks are made; most files have none.

What rows of steps cannot hold (the last row of `actions`, `qpos`, `qvel`, `button_states`) is kept in the custom data of its
episode as `last_row`, so that the archive can be written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, MemoryLimitExceeded, UsageError
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, Source, SourceInfo
from offline_cli.formats.tables.ids import source_hash
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["LAST_ROW", "OGBENCH_ARRAYS", "OGBENCH_NAME", "OGBENCH_OWN", "OgbenchSource", "open_ogbench"]

OBSERVATIONS, ACTIONS, TERMINALS, REWARDS, MASKS = "observations", "actions", "terminals", "rewards", "masks"
OGBENCH_ARRAYS: Final = (OBSERVATIONS, ACTIONS, TERMINALS)
OGBENCH_OWN: Final = frozenset((MASKS, "qpos", "qvel", "button_states"))  # that no other archive has
OGBENCH_NAME: Final = re.compile(r"-v\d+(-val)?\.npz$")  # of a dataset: cube-single-play-v0-val.npz
LAST_ROW: Final = "last_row"
OWN: Final = (*OGBENCH_ARRAYS, REWARDS, MASKS)
VALIDATION: Final = "-val.npz"
ROWS: Final = 1 << 16  # read at a time, or those of one episode
BYTES: Final = 64 << 20  # of arrays read at a time, or those of one episode
FIX: Final = "write observations, actions and terminals with a row for each observation, as OGBench does; or --from npz"


@dataclass(slots=True)
class OgbenchSource(FileSource):
    """Archives in the order given."""

    format: ClassVar = "ogbench"
    memory_limit: int = MEMORY_LIMIT
    prefix: str = field(default="", init=False)  # of ids

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes, many at a time."""
        self.done, number = 0, 0
        prefix = f"{source_hash(self.files)}-"
        for file in self.files:
            with self.scope.part() as held:
                try:
                    archive = NpzArchive(file, held, memory_limit=self.memory_limit)
                    reading = _Reading(archive, tally, self.memory_limit)
                    yield from reading.fragments(prefix, number, held)
                    number += reading.episodes
                except BadData as error:
                    rejects.add(error)
                    rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()

    def over(self, files: Sequence[Any]) -> OgbenchSource:
        """See `FileSource`."""
        other = super(OgbenchSource, self).over(files)
        other.memory_limit = self.memory_limit
        return other


def open_ogbench(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadData, and UsageError for a file together with the validation file beside it."""
    names = {file.name: file for file in files if file.name.endswith(".npz")}
    for name, file in names.items():
        training = f"{name.removesuffix(VALIDATION)}.npz"
        if name.endswith(VALIDATION) and training in names:
            what = f"{name} is the validation data of {training}, and a source of its own"
            fix = f"name one of them, {names[training].url}, and convert the other into its own dataset"
            raise UsageError(what, where=file.url, fix=fix)
    limit = context.tables.memory_limit
    with Scope() as scope:
        archive = NpzArchive(files[0], scope, memory_limit=limit)
        described = _spaces(archive)
    declared = SourceInfo(
        format=OgbenchSource.format,
        location=context.location,
        observation_space=described[0] if described[1] is not None else None,
        action_space=described[1] if described[0] is not None else None,
        spaces_inferred=True,
        action_scale=ENV_SCALE,
    )
    return OgbenchSource(files, context.location, declared, memory_limit=limit)


def _spaces(archive: NpzArchive) -> tuple[Space | None, Space | None]:
    found: list[Space | None] = []
    for name in (OBSERVATIONS, ACTIONS):
        info = archive.numbers(name)
        assert info.dtype is not None  # of numbers
        dtype = info.dtype.newbyteorder("=")
        if dtype.kind == "f":
            found.append(spaces.Box(-np.inf, np.inf, info.row, dtype.type))
        elif dtype == np.uint8 and len(info.row) == 3:
            found.append(spaces.Box(0, 255, info.row, np.uint8))
        else:
            found.append(None)
    return found[0], found[1]


class _Reading:
    """One archive."""

    def __init__(self, archive: NpzArchive, tally: Tally, memory_limit: int) -> None:
        """Raises BadData where its arrays are no trajectories; MemoryLimitExceeded."""
        self._archive, self._tally = archive, tally
        sizes = {name: archive.numbers(name).shape[:1] for name in OGBENCH_ARRAYS}
        rows = sizes[OBSERVATIONS]
        if not rows or any(size != rows for size in sizes.values()) or archive.arrays[TERMINALS].row not in ((), (1,)):
            shapes = ", ".join(f"{name} {list(archive.arrays[name].shape)}" for name in OGBENCH_ARRAYS)
            raise BadData(f"arrays with different numbers of rows: {shapes}", where=archive.url, fix=FIX)
        self._rows = rows[0]
        self._names = [name for name, one in archive.arrays.items() if self._is_read(name, one)]
        for name, one in archive.arrays.items():
            if name not in self._names and name != TERMINALS:
                is_taken = name in (Columns.EPS_ID, Columns.T)
                why = "the name has a meaning here" if is_taken else why_no_column(one.said, one.shape, self._rows)
                tally.drop_column(name, why)
        ends = np.flatnonzero(archive.whole(TERMINALS).reshape(-1)) + 1
        self._starts = np.unique(np.concatenate([[0], ends, [self._rows]])).astype(np.int64)
        self._ended = np.isin(self._starts[1:], ends)
        self.episodes = len(self._starts) - 1
        row = sum(archive.arrays[name].nbytes for name in self._names) // max(1, self._rows)
        self._at_once = max(1, min(ROWS, BYTES // max(1, row)))
        self._most = EpisodeLimit.within(memory_limit).most // max(1, row)

    def _is_read(self, name: str, info: Any) -> bool:
        numbers = info.dtype is not None and info.dtype.kind in "biuf"
        return bool(
            numbers and info.shape[:1] == (self._rows,) and name != TERMINALS and name not in (Columns.EPS_ID, Columns.T)
        )

    def fragments(self, prefix: str, first: int, scope: Scope) -> Iterator[Fragments]:
        """The episodes, of which the first one is number `first` of its source."""
        parts = {name: self._archive.rows(name, scope) for name in self._names}
        begin = 0
        while begin < self.episodes:
            stop = int(np.searchsorted(self._starts, self._starts[begin] + self._at_once, side="right")) - 1
            stop = max(begin + 1, min(stop, self.episodes))
            rows = int(self._starts[stop] - self._starts[begin])
            if stop == begin + 1 and rows > self._most:
                raise self._too_long(rows)
            arrays = {name: part.read(rows) for name, part in parts.items()}
            self._tally.rows_in += rows
            ids = tuple(f"{prefix}{first + number}" for number in range(begin, stop))
            in_order = np.ones(stop - begin, np.bool_)
            origins = Origins((self._archive.url,), np.zeros(len(in_order), np.int64), self._starts[begin:stop], in_order)
            yield Fragments(self._batch(arrays, ids, begin, stop), origins)
            begin = stop

    def _too_long(self, rows: int) -> MemoryLimitExceeded:
        fix = "raise --memory-limit, or write terminals that divide the rows"
        return MemoryLimitExceeded(
            f"an episode of {rows:,} rows, too many for the memory limit", where=self._archive.url, fix=fix
        )

    def _batch(self, arrays: Mapping[str, NDArray[Any]], ids: tuple[str, ...], begin: int, stop: int) -> EpisodeBatch:
        of_rows = self._starts[begin : stop + 1] - self._starts[begin]
        starts = of_rows - np.arange(len(of_rows))
        last = of_rows[1:] - 1
        steps = np.ones(int(of_rows[-1]), np.bool_)
        steps[last] = False
        acted = {name: values[steps] for name, values in arrays.items() if name != OBSERVATIONS}
        masks = acted.pop(MASKS, None)
        ended = self._ended[begin:stop]
        terminated = np.zeros(len(ids), np.bool_)
        if masks is not None:
            whole = np.diff(starts) > 0
            zero = masks.reshape(len(masks), -1)[:, 0] == 0
            terminated[whole] = zero[starts[1:][whole] - 1]
            terminated &= ended
            self._tally.assume("end-flag-before-end", int(zero.sum()) - int(terminated.sum()))
        rewards = acted.pop(REWARDS, None)
        if rewards is None:
            self._tally.assume(MISSING_REWARDS, len(steps) - len(last))
            rewards = np.zeros(len(steps) - len(last))
        kept = {name: values[last] for name, values in arrays.items() if name not in (OBSERVATIONS, REWARDS, MASKS)}
        return EpisodeBatch(
            ids=ids,
            starts=starts.astype(np.int64),
            obs=arrays[OBSERVATIONS],
            actions=acted.pop(ACTIONS),
            rewards=rewards.reshape(len(rewards), -1)[:, 0].astype(np.float64),
            terminated=terminated,
            truncated=ended & ~terminated,
            extra=acted,
            custom_data=tuple(
                {LAST_ROW: {name: values[at].tolist() for name, values in kept.items()}} for at in range(len(ids))
            ),
        )
