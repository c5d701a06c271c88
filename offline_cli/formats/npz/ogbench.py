"""OGBench's archives: `observations`, `actions` and `terminals`, and T+1 rows for an episode of T steps.

The last row of a trajectory (`terminals` is 1) has its final observation; the action there led nowhere, and is none of the
episode's. `terminals` divide trajectories, and say nothing of the task: they end by time. Where there are `masks`, a 0 in the
last step is a termination. Rewards are computed by OGBench when its tasks are made; most files have none.

What rows of steps cannot hold (the last row of `actions`, `qpos`, `qvel`, `button_states`) is kept in the custom data of its
episode as `last_row`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UsageError
from offline_cli.formats.npz.archive import NpzArchive
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, SourceInfo
from offline_cli.formats.step_rows import one_number_each
from offline_cli.formats.whole_episodes import ACTIONS, OBS, REWARDS, TERMINALS, EpisodeFiles, Reads, blocks
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import MISSING_REWARDS, Tally

MASKS: Final = "masks"
NEEDED: Final = (OBS, ACTIONS, TERMINALS)
LAST_ROW: Final = "last_row"
VALIDATION: Final = "-val.npz"
FIX: Final = "write observations, actions and terminals with a row for each observation, as OGBench does; or --from npz"


def open_ogbench(files: Sequence[Location], context: OpenContext) -> EpisodeFiles:
    """Raises UsageError for a file together with the validation file beside it."""
    names = {file.name: file for file in files if file.name.endswith(".npz")}
    for name, file in names.items():
        training = f"{name.removesuffix(VALIDATION)}.npz"
        if name.endswith(VALIDATION) and training in names:
            what = f"{name} is the validation data of {training}, and a source of its own"
            fix = f"name one of them, {names[training].url}, and convert the other into its own dataset"
            raise UsageError(what, where=file.url, fix=fix)
    declared = SourceInfo(format=OgbenchSource.format, location=context.location, action_scale=ENV_SCALE)
    return OgbenchSource(files, context.location, declared)


@dataclass(slots=True)
class OgbenchSource(EpisodeFiles):
    """Archives of trajectories."""

    format: ClassVar = "ogbench"
    rows_are_steps: ClassVar = True

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """See `EpisodeFiles`."""
        archive = NpzArchive(file, held, memory_limit=self.read_options.memory_limit)
        yield from blocks(_Trajectories(archive, held, tally), prefix)


class _Trajectories:
    """The arrays of one archive: `FlatArrays`."""

    def __init__(self, archive: NpzArchive, held: Scope, tally: Tally) -> None:
        """Raises BadData."""
        self._url, self._tally = archive.url, tally
        shapes = {name: archive.numbers(name).shape for name in NEEDED}
        rows = shapes[OBS][0]
        if any(shape[0] != rows for shape in shapes.values()):
            said = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise BadData(f"arrays with different numbers of rows: {said}", where=archive.url, fix=FIX)
        ends = np.flatnonzero(one_number_each(archive.values(TERMINALS), TERMINALS, where=archive.url, fix=FIX)) + 1
        self.starts = np.unique(np.concatenate([[0], ends, [rows]])).astype(np.int64)
        self._ended = np.isin(self.starts[1:], ends)  # (E,) whether `terminals` say so
        names = list[str]()
        for name, one in archive.arrays.items():
            if name in (Columns.EPS_ID, Columns.T):
                tally.drop_column(name, "the name has a meaning here")
            elif not one.has_rows(rows):
                tally.drop_column(name, one.why_no_column(rows))
            elif name != TERMINALS:
                names.append(name)
        self.row_bytes = sum(archive.arrays[name].row_bytes for name in names)
        self._read = {name: archive.rows(name, held) for name in names}

    def episodes(self, begin: int, stop: int, ids: tuple[str, ...]) -> EpisodeBatch:
        """See `FlatArrays`."""
        of_rows, ended = self.starts[begin : stop + 1] - self.starts[begin], self._ended[begin:stop]
        arrays = {name: read(int(of_rows[-1])) for name, read in self._read.items()}
        starts, last = of_rows - np.arange(len(of_rows)), of_rows[1:] - 1
        steps = np.ones(int(of_rows[-1]), np.bool_)
        steps[last] = False
        acted: dict[str, Any] = {name: values[steps] for name, values in arrays.items() if name != OBS}
        terminated = np.zeros(len(ended), np.bool_)
        if MASKS in acted:
            zero = one_number_each(acted.pop(MASKS), MASKS, where=self._url, fix=FIX) == 0
            whole = np.diff(starts) > 0
            terminated[whole] = zero[starts[1:][whole] - 1]
            terminated &= ended
            self._tally.assume("end-flag-before-end", int(zero.sum()) - int(terminated.sum()))
        self._tally.assume(MISSING_REWARDS, 0 if REWARDS in acted else int(starts[-1]))
        rewards = one_number_each(acted.pop(REWARDS, np.zeros(int(starts[-1]))), REWARDS, where=self._url, fix=FIX)
        kept = {name: values[last] for name, values in arrays.items() if name not in (OBS, REWARDS, MASKS)}
        return EpisodeBatch(
            ids=ids,
            starts=starts,
            obs=arrays[OBS],
            actions=acted.pop(ACTIONS),
            rewards=rewards.astype(np.float64),
            terminated=terminated,
            truncated=ended & ~terminated,
            extra=acted,
            custom_data=tuple({LAST_ROW: {name: row[at].tolist() for name, row in kept.items()}} for at in range(len(ids))),
        )
