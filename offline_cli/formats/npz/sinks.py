"""What `convert --to npz` and `--to ogbench` write: one archive, whole or not at all.

* `npz`: D4RL's flat arrays, a row a step, with `next_observations`, so that the final observation of an episode is kept;
* `ogbench`: T+1 rows an episode. The last row of `actions`, which is no action, is that of the archive it was read from, else
  zeros. `rewards` and `masks` are written where there are rewards or terminations; OGBench's own reader passes over them.

Rewards are written as float32, as both do, where that changes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists, UnsupportedSpace
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.npz.ogbench import ACTIONS, LAST_ROW, MASKS, OBSERVATIONS, REWARDS, TERMINALS
from offline_cli.formats.npz.writing import ArrayFiles
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.storage.locations import Location
from offline_cli.tally import Reject
from offline_cli.trees import Tree, flatten

__all__ = ["NPZ", "OGBENCH"]

NEXT: Final = "next_observations"
TIMEOUTS: Final = "timeouts"


class _ArchiveSink:
    """Rows of arrays, appended episode by episode."""

    ids_written: ClassVar[frozenset[str]] = frozenset()
    kept: ClassVar[tuple[str, ...]] = ()  # keys of the custom data that are written

    def __init__(self, target: Location, context: SinkContext) -> None:
        self._target, self._context = target, context
        self._arrays = ArrayFiles(context.temp_dir)
        self._episodes = self._steps = self._rows = 0
        self._are_narrow = True  # no reward changes as float32
        self._has_ends = False  # rewards or terminations that are worth an array

    def __enter__(self) -> Self:
        self._arrays.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._arrays.__exit__(kind, error, trace)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        arrays = self._counted(batch)
        self._arrays.append(arrays, where=f"episode {batch.ids[0]}")
        self._episodes, self._steps = self._episodes + len(batch), self._steps + batch.num_steps
        self._rows += len(arrays[ACTIONS]) if ACTIONS in arrays else len(next(iter(arrays.values())))

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        self._counted(batch)

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData: an archive has no place for rows."""
        if rejects:
            fix = "--on-error skip, or --to episodes"
            raise BadData("rows were set aside, and an archive has no place for them", where=self._target.url, fix=fix)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        narrowed = frozenset({REWARDS}) if self._are_narrow else frozenset[str]()
        self._finish()
        size = self._arrays.write(self._target, self._rows, narrowed=narrowed)
        return Written(self._episodes, self._steps, 1, size)

    def _counted(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        with np.errstate(over="ignore"):
            narrow = batch.rewards.astype(np.float32).astype(np.float64)
        self._are_narrow &= bool(np.array_equal(narrow, batch.rewards, equal_nan=True))
        self._has_ends |= bool(batch.rewards.any() or batch.terminated.any())
        count_left_out(batch, self._context.tally, kept=self.kept, ids=False)
        return self._arrays_of(batch)

    def _arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        raise NotImplementedError

    def _finish(self) -> None:
        """Before the archive is written."""


class _FlatSink(_ArchiveSink):
    """See the module."""

    def _arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        terminateds, truncateds = batch.step_flags()
        arrays = {
            **_named(OBSERVATIONS, batch.acted_obs(view=True)),
            **_named(ACTIONS, batch.actions),
            REWARDS: batch.rewards,
            **_named(NEXT, batch.next_obs(view=True)),
            TERMINALS: terminateds,
            TIMEOUTS: truncateds,
        }
        for name, tree in batch.extra.items():
            for path, leaf in _named(name, tree).items():
                arrays.setdefault(path, leaf)
        return arrays


class _OgbenchSink(_ArchiveSink):
    """See the module."""

    kept = (LAST_ROW,)

    def _arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        for name, tree in (("observations", batch.obs), ("actions", batch.actions)):
            if not isinstance(tree, np.ndarray):
                what = f"{name} of several parts, and OGBench's have one array"
                raise UnsupportedSpace(what, where=f"episode {batch.ids[0]}", fix="--to npz, which has an array for each part")
        assert isinstance(batch.obs, np.ndarray)  # as was just checked
        rows = batch.step_rows()
        last = batch.obs_starts[1:] - 1
        said = [(data or {}).get(LAST_ROW) for data in batch.custom_data or ({},) * len(batch)]
        parts = {
            ACTIONS: batch.actions,
            **{path: leaf for name, tree in batch.extra.items() for path, leaf in _named(name, tree).items()},
        }
        arrays = {OBSERVATIONS: batch.obs}
        for name, leaf in parts.items():
            assert isinstance(leaf, np.ndarray)  # as was just checked
            arrays.setdefault(name, _with_last(leaf, rows, last, [_value(row, name, leaf) for row in said]))
        zeros = np.zeros(len(last))
        masks = np.ones(len(batch.obs), np.float32)
        ended = batch.terminated & (batch.lengths > 0)
        masks[last[ended] - 1] = 0
        terminals = np.zeros(len(batch.obs), np.bool_)
        terminals[last[batch.terminated | batch.truncated]] = True
        return arrays | {TERMINALS: terminals, REWARDS: _with_last(batch.rewards, rows, last, list(zeros)), MASKS: masks}

    def _finish(self) -> None:
        if not self._has_ends:
            self._arrays.drop(REWARDS)
            self._arrays.drop(MASKS)


def _with_last(steps: NDArray[Any], rows: NDArray[np.int64], last: NDArray[np.int64], values: list[Any]) -> NDArray[Any]:
    """(N+E, ...) rows of steps, and a value after those of each episode."""
    found = np.zeros((len(rows) + len(last), *steps.shape[1:]), steps.dtype)
    found[rows] = steps
    for at, value in zip(last.tolist(), values, strict=True):
        if value is not None:
            found[at] = value
    return found


def _value(row: Any, name: str, leaf: NDArray[Any]) -> Any:
    """What the archive had there, if it is a row of `leaf`."""
    said = row.get(name) if isinstance(row, Mapping) else None
    if said is None:
        return None
    try:
        value = np.asarray(said, leaf.dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if value.shape == leaf.shape[1:] else None


def _named(name: str, tree: Tree) -> dict[str, NDArray[Any]]:
    """The leaves by the names of their arrays: `observations/camera`."""
    return {path.replace(".", "/"): leaf for path, leaf in flatten(tree, name)}


def _check(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists for a folder, and for a file unless it is to be replaced."""
    if target.is_dir():
        raise OutputExists("a folder is here, and an archive is a file", where=target.url, fix="give a name such as out.npz")
    if target.exists() and not overwrite:
        raise OutputExists("something is here already", where=target.url, fix="give another --out, or --overwrite")


NPZ: Final = SinkKind(
    "npz",
    "a NumPy archive of flat arrays, a row a step, as D4RL's",
    _FlatSink,
    _check,
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, spaces, infos, custom data, clocks",
)
OGBENCH: Final = SinkKind(
    "ogbench",
    "an OGBench archive, T+1 rows an episode",
    _OgbenchSink,
    _check,
    {"overwrite"},
    "steps, last observations, extra outputs, terminations; not ids, spaces, infos, custom data, clocks",
)
