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
from offline_cli.errors import BadData, UnsupportedSpace, UsageError
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.flat_steps import ACTIONS, OBS, REWARDS, TERMINALS, blocks
from offline_cli.formats.leaf_names import named_leaves
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.npz.writing import ArchiveSink, check_npz
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, Source, SourceInfo
from offline_cli.formats.stored_arrays import StoredArray
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["OGBENCH_SINK", "OgbenchSource", "open_ogbench"]

MASKS: Final = "masks"
NEEDED: Final = (OBS, ACTIONS, TERMINALS)
LAST_ROW: Final = "last_row"
VALIDATION: Final = "-val.npz"
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
        known = [_space_of(archive.numbers(name)) for name in (OBS, ACTIONS)]
    declared = SourceInfo(
        format=OgbenchSource.format,
        location=context.location,
        observation_space=None if None in known else known[0],
        action_space=None if None in known else known[1],
        spaces_inferred=True,
        action_scale=ENV_SCALE,
    )
    return OgbenchSource(files, context.location, declared)


def _space_of(array: StoredArray) -> Space | None:
    row, dtype = array.shape[1:], array.dtype
    if dtype is not None and dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, row, dtype.type)
    return spaces.Box(0, 255, row, np.uint8) if dtype == np.uint8 and len(row) == 3 else None


@dataclass(slots=True)
class OgbenchSource(FileSource):
    """Archives in the order given."""

    format: ClassVar = "ogbench"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes, many at a time."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            try:
                with self.scope.part() as held:
                    archive = NpzArchive(file, held, memory_limit=self.read_options.memory_limit)
                    names, starts, ended = _steps(archive, tally)
                    read = {name: archive.rows(name, held) for name in names}
                    for begin, stop in blocks(starts, sum(archive.arrays[name].row_bytes for name in names)):
                        first, rows = int(starts[begin]), int(starts[stop] - starts[begin])
                        ids = tuple(f"{prefix}-{number + at}" for at in range(begin, stop))
                        part = {name: read[name](rows) for name in names}
                        tally.rows_in += rows
                        batch = _batch(part, starts[begin : stop + 1] - first, ended[begin:stop], ids, file.url, tally)
                        zeros, whole = np.zeros(len(ids), np.int64), np.ones(len(ids), np.bool_)
                        yield Fragments(batch, Origins((file.url,), zeros, starts[begin:stop], whole))
                    number += len(ended)
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()


def _steps(archive: NpzArchive, tally: Tally) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_]]:
    """The names of its arrays, the first row of each episode (E+1,), and whether `terminals` end it (E,). Raises BadData."""
    shapes = {name: archive.numbers(name).shape for name in NEEDED}
    rows = shapes[OBS][0]
    if any(shape[0] != rows for shape in shapes.values()):
        said = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise BadData(f"arrays with different numbers of rows: {said}", where=archive.url, fix=FIX)
    ends = np.flatnonzero(one_number_each(archive.values(TERMINALS), TERMINALS, where=archive.url, fix=FIX)) + 1
    names = list[str]()
    for name, one in archive.arrays.items():
        if name in (Columns.EPS_ID, Columns.T):
            tally.drop_column(name, "the name has a meaning here")
        elif not one.has_rows(rows):
            tally.drop_column(name, one.why_no_column(rows))
        elif name != TERMINALS:
            names.append(name)
    starts = np.unique(np.concatenate([[0], ends, [rows]])).astype(np.int64)
    return names, starts, np.isin(starts[1:], ends)


def _batch(
    arrays: Mapping[str, NDArray[Any]],
    of_rows: NDArray[np.int64],
    ended: NDArray[np.bool_],
    ids: tuple[str, ...],
    where: str,
    tally: Tally,
) -> EpisodeBatch:
    """Episodes whose rows begin at `of_rows` (E+1,); `ended` (E,): whether `terminals` say so."""
    starts, last = of_rows - np.arange(len(of_rows)), of_rows[1:] - 1
    steps = np.ones(int(of_rows[-1]), np.bool_)
    steps[last] = False
    acted = {name: values[steps] for name, values in arrays.items() if name != OBS}
    terminated = np.zeros(len(ended), np.bool_)
    if MASKS in acted:
        zero = one_number_each(acted.pop(MASKS), MASKS, where=where, fix=FIX) == 0
        whole = np.diff(starts) > 0
        terminated[whole] = zero[starts[1:][whole] - 1]
        terminated &= ended
        tally.assume("end-flag-before-end", int(zero.sum()) - int(terminated.sum()))
    tally.assume(MISSING_REWARDS, 0 if REWARDS in acted else int(starts[-1]))
    rewards = one_number_each(acted.pop(REWARDS, np.zeros(int(starts[-1]))), REWARDS, where=where, fix=FIX)
    kept = {name: values[last] for name, values in arrays.items() if name not in (OBS, REWARDS, MASKS)}
    return EpisodeBatch(
        ids=ids,
        starts=starts,
        obs=arrays[OBS],
        actions=choices(acted.pop(ACTIONS)),
        rewards=rewards.astype(np.float64),
        terminated=terminated,
        truncated=ended & ~terminated,
        extra=acted,
        custom_data=tuple({LAST_ROW: {name: row[at].tolist() for name, row in kept.items()}} for at in range(len(ended))),
    )


class _OgbenchSink(ArchiveSink):
    """See the module."""

    kept = (LAST_ROW,)

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "ogbench")
        self._has_ends = False  # rewards or terminations that are worth an array

    def arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """See `ArchiveSink`."""
        if not (isinstance(batch.obs, np.ndarray) and isinstance(batch.actions, np.ndarray)):
            what = "observations or actions of several parts, and OGBench's have one array"
            raise UnsupportedSpace(what, where=f"episode {batch.ids[0]}", fix="--to npz, which has an array for each part")
        unknown = batch.final_obs_assumed & (batch.lengths > 0)
        self.context.tally.assume("last-step-not-kept", int(unknown.sum()))
        self._has_ends |= bool(batch.rewards.any() or batch.terminated.any())
        rows, last = batch.step_rows(), batch.obs_starts[1:] - 1
        said: list[Any] = [data.get(LAST_ROW) for data in batch.custom_data or ({},) * len(batch)]
        extra = {path: leaf for name, tree in batch.extra.items() for path, leaf in named_leaves(name, tree).items()}
        arrays = {OBS: batch.obs}
        for name, leaf in {**extra, ACTIONS: batch.actions, REWARDS: batch.rewards}.items():
            arrays[name] = np.zeros((len(batch.obs), *leaf.shape[1:]), leaf.dtype)
            arrays[name][rows] = leaf
            for at, row in zip(last.tolist(), said, strict=True):
                if isinstance(row, Mapping) and name in row:
                    _restore(arrays[name], at, row[name])
        masks, terminals = np.ones(len(batch.obs), np.float32), np.zeros(len(batch.obs), np.bool_)
        masks[last[batch.terminated & (batch.lengths > 0)] - 1] = 0
        terminals[np.where(unknown, last - 1, last)[batch.terminated | batch.truncated]] = True
        arrays |= {TERMINALS: terminals, MASKS: masks}
        known = np.ones(len(batch.obs), np.bool_)
        known[last[unknown]] = False
        return {name: values[known] for name, values in arrays.items()} if unknown.any() else arrays

    def unwanted(self) -> set[str]:
        """See `ArchiveSink`."""
        return set() if self._has_ends else {REWARDS, MASKS}


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
