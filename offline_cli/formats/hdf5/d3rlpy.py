"""d3rlpy's HDF5 layout (`ReplayBuffer.dump`, version 2.1): arrays of each episode by its number, `observations_0`, ...

* An episode has T observations: the last one, which its last action led to, is not in the file. One that did not terminate
  ended by a time limit.
* Several observations (`observations_0_0`, `observations_0_1`) are a Tuple. d3rlpy knows arrays and tuples of arrays, so Dict
  observations are refused when they are written.
* Discrete actions have a second dimension of 1 in the file, and none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.formats.action_shapes import one_number_each
from offline_cli.formats.flat_steps import narrow
from offline_cli.formats.hdf5.episodes import Hdf5Source, JoinedEpisodes, StoredEpisode
from offline_cli.formats.hdf5.safe import Hdf5File
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5, read_metadata
from offline_cli.formats.left_out import count_finals, count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, SourceInfo
from offline_cli.formats.step_rows import with_finals
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["D3RLPY_SINK", "open_d3rlpy"]

FORMAT: Final = "d3rlpy"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
READ, WRITTEN = "2.", "2.1"  # versions
FIX: Final = "write the file again with d3rlpy, or leave the episode out with --on-error skip"


def open_d3rlpy(files: Sequence[Location], context: OpenContext) -> Hdf5Source:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        ours = read_metadata(file.attributes(), file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **ours})
    return Hdf5Source(files, context.location, info, layout=_Episodes)


class _Episodes:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, tally: Tally) -> None:
        self._file, self._prefix, self._tally = file, prefix, tally
        self._datasets = file.datasets()

    def names(self) -> range:
        """Numbers. Raises BadData for another version."""
        lost = [name for name in ("version", "columns", "num_episodes") if name not in self._datasets]
        if lost:
            raise BadData(f"no dataset {lost[0]}", where=self._file.url, fix=FIX)
        said, names = (np.ravel(self._datasets[name].read()).tolist() for name in ("version", "columns"))
        version, columns = "".join(map(str, said)), set(map(str, names))
        lacking = sorted(set(COLUMNS) - columns)
        if not version.startswith(READ) or lacking:
            fix = "load it with the version of d3rlpy that wrote it, and dump it with d3rlpy 2"
            what = f"a file of version {version[:20]!r}" + f", without {', '.join(lacking)}" * bool(lacking)
            raise BadData(what, where=self._file.url, fix=fix)
        for column in columns - set(COLUMNS):
            self._tally.drop_column(column, "d3rlpy has no such column")
        count = self._datasets["num_episodes"].rows()
        if count.dtype.kind not in "iu" or count.ndim or not 0 <= int(count) <= len(self._datasets):
            raise BadData("num_episodes is not a number of episodes", where=self._file.url, fix=FIX)
        return range(int(count))

    def stored(self, number: int) -> StoredEpisode:
        """See `EpisodeLayout`: arrays by column, parts of a Tuple as `column/0`. Raises BadEpisode without one."""
        where, values = f"{self._file.url} episode {number}", {}
        for column in COLUMNS:
            path, part = f"{column}_{number}", 0
            if path in self._datasets:
                values[column] = np.atleast_1d(self._datasets[path].rows())
            while path not in self._datasets and f"{path}_{part}" in self._datasets:
                values[f"{column}/{part}"] = np.atleast_1d(self._datasets[f"{path}_{part}"].rows())
                part += 1
            if column not in values and not part:
                raise BadEpisode(f"{path} is not in the file, whose num_episodes counts it", where=where, fix=FIX)
        return StoredEpisode(number, where, values, {})

    def batch(self, joined: JoinedEpisodes) -> EpisodeBatch:
        """See `EpisodeLayout`."""
        if "rewards" not in joined.values or "terminated" not in joined.values:
            raise BadEpisode("rewards or terminated of several parts", where=joined.where, fix=FIX)
        steps, once = joined.rows["rewards"], np.ones(len(joined), np.int64)
        joined.check_rows([path for path in joined.values if path != "terminated"], steps)
        joined.check_rows(["terminated"], once)
        if not steps.all():
            raise BadEpisode("no steps", where=joined.where, fix=FIX)
        rewards, ended = (
            one_number_each(np.asarray(joined.values[name]), name, where=joined.where, fix=FIX)
            for name in ("rewards", "terminated")
        )
        starts, obs = joined.starts(steps), _column(joined, "observations")
        return EpisodeBatch(
            ids=tuple(f"{self._prefix}{one.number}" for one in joined.episodes),
            starts=starts,
            obs=map_leaves(lambda leaf: with_finals(leaf, leaf, starts), obs),
            actions=_column(joined, "actions"),
            rewards=rewards.astype(np.float64),
            terminated=ended.astype(np.bool_),
            truncated=~ended.astype(np.bool_),
            final_missing=once == 1,
        )


def _column(joined: JoinedEpisodes, column: str) -> Tree:
    """A column: one array, or one for each part of a Tuple."""
    parts = tuple(values for path, values in joined.values.items() if path.startswith(f"{column}/"))
    return parts or joined.values[column]


class D3rlpySink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        _check(context.observation_space, "observations")
        _check(context.action_space, "actions")

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: some datasets for each episode."""
        count_left_out(batch, self.context.tally, extra=False)
        count_finals(batch, self.context.tally)
        actions = map_leaves(lambda leaf: leaf.reshape(-1, 1) if leaf.ndim == 1 else leaf, batch.actions)
        trees = {"observations": batch.acted_obs(view=True), "actions": actions}
        for at in range(len(batch)):
            number, rows = self.episodes + at, slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            for column, tree in trees.items():
                for part, leaf in enumerate(tree) if isinstance(tree, tuple) else [(None, tree)]:
                    self.root[f"{column}_{number}" if part is None else f"{column}_{number}_{part}"] = leaf[rows]
            self.root[f"rewards_{number}"] = narrow(batch.rewards[rows]).reshape(-1, 1)
            self.root[f"terminated_{number}"] = bool(batch.terminated[at])
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self.root.update({"columns": list(COLUMNS), "num_episodes": self.episodes, "version": WRITTEN})
        self.put_metadata(self.root)
        return self.store()


def _check(space: Space, what: str) -> None:
    """Raise UnsupportedSpace for what is neither an array nor a tuple of arrays."""
    parts: Sequence[Any] = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    if any(isinstance(part, (spaces.Dict, spaces.Tuple)) for part in parts):
        fix = "choose another --to, or record vectors"
        raise UnsupportedSpace(f"d3rlpy has no {what} in a {type(space).__name__}", where=f"--to {FORMAT}", fix=fix)


D3RLPY_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of d3rlpy 2",
    D3rlpySink,
    check_hdf5,
    {"overwrite"},
    "steps, terminations; not last observations, ids, infos, extra outputs, custom data, clocks",
)
