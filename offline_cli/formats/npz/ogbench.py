"""OGBench's archives: `observations`, `actions` and `terminals`, and T+1 rows for an episode of T steps.

The last row of a trajectory (`terminals` is 1) has its final observation; the action there led nowhere, and is none of the
episode's. `terminals` divide trajectories, and say nothing of the task: they end by time. Where there are `masks`, a 0 in the
last step is a termination. Rewards are computed by OGBench when its tasks are made; most files have none.

What rows of steps cannot hold (the last row of `actions`, `qpos`, `qvel`, `button_states`) is kept in the custom data of its
episode as `last_row`, and is written again; without it the last row of `actions` is zeros. `rewards` and `masks` are written
where there are rewards or terminations. Of an episode whose final observation nobody recorded, the last step is left out, and
its observation, which was recorded, is the final one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, MemoryLimitExceeded, UnsupportedSpace, UsageError
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.writing import ArchiveSink, check_npz, named_leaves
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, Source, SourceInfo
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["OGBENCH_SINK", "OgbenchSource", "open_ogbench"]

OBSERVATIONS, ACTIONS, TERMINALS, REWARDS, MASKS = "observations", "actions", "terminals", "rewards", "masks"
NEEDED: Final = (OBSERVATIONS, ACTIONS, TERMINALS)
LAST_ROW: Final = "last_row"
VALIDATION: Final = "-val.npz"
ROWS: Final = 1 << 16  # read at a time, or those of one episode
BYTES: Final = 64 << 20  # of arrays read at a time, or those of one episode
FIX: Final = "write observations, actions and terminals with a row for each observation, as OGBench does; or --from npz"


def open_ogbench(files: Sequence[Location], context: OpenContext) -> Source:
    """Raises BadData, and UsageError for a file together with the validation file beside it."""
    names = {file.name: file for file in files if file.name.endswith(".npz")}
    for name, file in names.items():
        training = f"{name.removesuffix(VALIDATION)}.npz"
        if name.endswith(VALIDATION) and training in names:
            what = f"{name} is the validation data of {training}, and a source of its own"
            fix = f"name one of them, {names[training].url}, and convert the other into its own dataset"
            raise UsageError(what, where=file.url, fix=fix)
    with Scope() as scope:
        archive = NpzArchive(files[0], scope)
        described = _space_of(archive, OBSERVATIONS), _space_of(archive, ACTIONS)
    known = described if None not in described else (None, None)
    declared = SourceInfo(
        format=OgbenchSource.format,
        location=context.location,
        observation_space=known[0],
        action_space=known[1],
        spaces_inferred=True,
        action_scale=ENV_SCALE,
    )
    return OgbenchSource(files, context.location, declared, memory_limit=context.tables.memory_limit)


def _space_of(archive: NpzArchive, name: str) -> Space | None:
    info = archive.numbers(name)
    assert info.dtype is not None  # of numbers
    dtype = info.dtype.newbyteorder("=")
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, info.row, dtype.type)
    return spaces.Box(0, 255, info.row, np.uint8) if dtype == np.uint8 and len(info.row) == 3 else None


@dataclass(slots=True)
class OgbenchSource(FileSource):
    """Archives in the order given."""

    format: ClassVar = "ogbench"
    memory_limit: int = MEMORY_LIMIT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes, many at a time."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            with self.scope.part() as held:
                try:
                    reading = _Reading(NpzArchive(file, held, memory_limit=self.memory_limit), tally, self.memory_limit)
                    yield from reading.fragments(f"{prefix}-", number, held)
                    number += reading.episodes
                except BadData as error:
                    rejects.add(error)
                    rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()


class _Reading:
    """One archive."""

    def __init__(self, archive: NpzArchive, tally: Tally, memory_limit: int) -> None:
        """Raises BadData where its arrays are no trajectories; MemoryLimitExceeded."""
        self._archive, self._tally = archive, tally
        shapes = {name: archive.numbers(name).shape for name in NEEDED}
        rows = next(iter(shapes[OBSERVATIONS]), 0)
        if any(shape[:1] != (rows,) for shape in shapes.values()):
            said = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise BadData(f"arrays with different numbers of rows: {said}", where=archive.url, fix=FIX)
        self._names = []
        for name, info in archive.arrays.items():
            if name in (Columns.EPS_ID, Columns.T):
                tally.drop_column(name, "the name has a meaning here")
            elif not info.holds_numbers or info.shape[:1] != (rows,):
                tally.drop_column(name, why_no_column(info.said, info.shape, rows))
            elif name != TERMINALS:
                self._names.append(name)
        ends = np.flatnonzero(one_number_each(archive.whole(TERMINALS), TERMINALS, where=archive.url, fix=FIX)) + 1
        self._starts = np.unique(np.concatenate([[0], ends, [rows]])).astype(np.int64)
        self._ended = np.isin(self._starts[1:], ends)
        self.episodes = len(self._starts) - 1
        row = sum(archive.arrays[name].nbytes for name in self._names) // max(1, rows)
        self._at_once = max(1, min(ROWS, BYTES // max(1, row)))
        longest, most = int(np.diff(self._starts).max(initial=0)), EpisodeLimit.within(memory_limit).most // max(1, row)
        if longest > most:
            what, fix = f"an episode of {longest:,} rows, too many for the memory limit", "raise --memory-limit"
            raise MemoryLimitExceeded(what, where=archive.url, fix=f"{fix}, or write terminals that divide the rows")

    def fragments(self, prefix: str, first: int, scope: Scope) -> Iterator[Fragments]:
        """Its episodes, whose ids go on from `first`."""
        parts = {name: self._archive.rows(name, scope) for name in self._names}
        begin = 0
        while begin < self.episodes:
            start = int(self._starts[begin])
            stop = max(begin + 1, int(np.searchsorted(self._starts, start + self._at_once, side="right")) - 1)
            count = int(self._starts[stop]) - start
            arrays = {name: part.read(count) for name, part in parts.items()}
            self._tally.rows_in += count
            ids = tuple(f"{prefix}{first + number}" for number in range(begin, stop))
            origins = Origins(
                (self._archive.url,), np.zeros(len(ids), np.int64), self._starts[begin:stop], np.ones(len(ids), np.bool_)
            )
            yield Fragments(self._batch(arrays, ids, begin, stop), origins)
            begin = stop

    def _batch(self, arrays: Mapping[str, NDArray[Any]], ids: tuple[str, ...], begin: int, stop: int) -> EpisodeBatch:
        of_rows = self._starts[begin : stop + 1] - self._starts[begin]
        starts, last, where = of_rows - np.arange(len(of_rows)), of_rows[1:] - 1, self._archive.url
        steps = np.ones(int(of_rows[-1]), np.bool_)
        steps[last] = False
        acted = {name: values[steps] for name, values in arrays.items() if name != OBSERVATIONS}
        ended, terminated = self._ended[begin:stop], np.zeros(len(ids), np.bool_)
        if MASKS in acted:
            zero = one_number_each(acted.pop(MASKS), MASKS, where=where, fix=FIX) == 0
            whole = np.diff(starts) > 0
            terminated[whole] = zero[starts[1:][whole] - 1]
            terminated &= ended
            self._tally.assume("end-flag-before-end", int(zero.sum()) - int(terminated.sum()))
        if REWARDS not in acted:
            self._tally.assume(MISSING_REWARDS, int(starts[-1]))
        rewards = one_number_each(acted.pop(REWARDS, np.zeros(int(starts[-1]))), REWARDS, where=where, fix=FIX)
        kept = {name: values[last] for name, values in arrays.items() if name not in (OBSERVATIONS, REWARDS, MASKS)}
        return EpisodeBatch(
            ids=ids,
            starts=starts.astype(np.int64),
            obs=arrays[OBSERVATIONS],
            actions=choices(acted.pop(ACTIONS)),
            rewards=rewards.astype(np.float64),
            terminated=terminated,
            truncated=ended & ~terminated,
            extra=acted,
            custom_data=tuple({LAST_ROW: {name: row[at].tolist() for name, row in kept.items()}} for at in range(len(ids))),
        )


class _OgbenchSink(ArchiveSink):
    """See the module."""

    kept = (LAST_ROW,)

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "ogbench")
        self._has_ends = False  # rewards or terminations that are worth an array

    def arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """See `ArchiveSink`."""
        for name, tree in (("observations", batch.obs), ("actions", batch.actions)):
            if not isinstance(tree, np.ndarray):
                what = f"{name} of several parts, and OGBench's have one array"
                raise UnsupportedSpace(what, where=f"episode {batch.ids[0]}", fix="--to npz, which has an array for each part")
        unknown = batch.final_obs_assumed & (batch.lengths > 0)
        self.context.tally.assume("last-step-not-kept", int(unknown.sum()))
        self._has_ends |= bool(batch.rewards.any() or batch.terminated.any())
        rows, last = batch.step_rows(), batch.obs_starts[1:] - 1
        said: list[Any] = [data.get(LAST_ROW) for data in batch.custom_data or ({},) * len(batch)]
        extra = {path: leaf for name, tree in batch.extra.items() for path, leaf in named_leaves(name, tree).items()}
        arrays = {OBSERVATIONS: batch.obs}
        for name, leaf in {**extra, ACTIONS: batch.actions, REWARDS: batch.rewards}.items():
            arrays[name] = np.zeros((len(batch.obs), *leaf.shape[1:]), leaf.dtype)
            arrays[name][rows] = leaf
            for at, row in zip(last.tolist(), said, strict=True):
                _restore(arrays[name], at, row.get(name) if isinstance(row, Mapping) else None)
        masks, terminals = np.ones(len(batch.obs), np.float32), np.zeros(len(batch.obs), np.bool_)
        masks[last[batch.terminated & (batch.lengths > 0)] - 1] = 0
        terminals[np.where(unknown, last - 1, last)[batch.terminated | batch.truncated]] = True
        arrays |= {TERMINALS: terminals, MASKS: masks}
        known = np.ones(len(batch.obs), np.bool_)
        known[last[unknown]] = False
        return {name: values[known] for name, values in arrays.items()} if unknown.any() else arrays

    def finish(self) -> None:
        """See `ArchiveSink`."""
        if not self._has_ends:
            self.drop(lambda name: name in (REWARDS, MASKS))


def _restore(rows: NDArray[Any], at: int, value: Any) -> None:
    """Put the value that the archive had into a last row, if it fits there."""
    try:
        found = np.asarray(value, rows.dtype)
    except (TypeError, ValueError, OverflowError):
        return
    if value is not None and found.shape == rows.shape[1:]:
        rows[at] = found


OGBENCH_SINK: Final = SinkKind(
    "ogbench",
    "an OGBench archive, T+1 rows an episode",
    _OgbenchSink,
    check_npz,
    {"overwrite"},
    "steps, last observations, extra outputs, terminations; not ids, spaces, infos, custom data, clocks",
)
